"""Reads and makes datasets in Hither's mapped form: one safetensors file of plain arrays.

    python bench/train/dataset.py NODES EDGES -o FILE [--features 128] [--classes 16] [--seed 1]

Needs numpy only, so that environments with an old PyTorch can read the same file.
"""

import argparse
import json
import mmap
import pathlib
import struct
import sys

import numpy

TYPES = {"F32": "<f4", "U8": "u1", "U32": "<u4", "U64": "<u8", "I64": "<i8", "F64": "<f8"}


def read(path):
    """Arrays by name, mapped; and the metadata."""
    with open(path, "rb") as file:
        whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    (length,) = struct.unpack("<Q", whole[:8])
    header = json.loads(whole[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    arrays = {}
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        dtype = numpy.dtype(TYPES[entry["dtype"]])
        flat = numpy.frombuffer(whole, dtype, (end - start) // dtype.itemsize, 8 + length + start)
        arrays[name] = flat.reshape(entry["shape"])
    return arrays, metadata


def write(path, arrays, metadata):
    names = {numpy.dtype(value): key for key, value in TYPES.items()}
    header, at = {"__metadata__": metadata}, 0
    # The widest first: every array is then aligned to its elements.
    order = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    for name in order:
        array = arrays[name]
        span = [at, at + array.nbytes]
        header[name] = {"dtype": names[array.dtype], "shape": array.shape, "data_offsets": span}
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in order:
            file.write(numpy.ascontiguousarray(arrays[name]))


def dense(arrays, metadata):
    """Features as rows of f32, whichever way the file keeps them."""
    if "features" in arrays:
        return arrays["features"]
    offsets, indices = arrays["feature_offsets"], arrays["feature_indices"]
    rows = numpy.zeros((len(offsets) - 1, int(metadata["feature_dim"])), numpy.float32)
    at = numpy.repeat(numpy.arange(len(rows)), numpy.diff(offsets.astype(numpy.int64)))
    rows[at, indices] = arrays.get("feature_values", numpy.float32(1))
    return rows


def generate(nodes, edges, features, classes, seed):
    """Planted classes of uneven degrees. Nodes stand in random order, so that neighbours are far
    apart in memory, as they are in a graph that nobody sorted."""
    random = numpy.random.default_rng(seed)
    labels = random.integers(classes, size=nodes, dtype=numpy.uint32)
    weights = (1 - random.random(nodes)) ** -0.4  # Pareto: a few nodes have very many neighbours
    by_class = numpy.argsort(labels, kind="stable")
    ends = numpy.cumsum(weights[by_class])
    starts = numpy.searchsorted(labels[by_class], numpy.arange(classes + 1))
    bounds = numpy.concatenate([[0.0], ends])[starts]

    def drawn(low, high):
        at = numpy.searchsorted(ends, low + random.random(len(low)) * (high - low), side="right")
        return by_class[numpy.minimum(at, nodes - 1)]

    keys = numpy.empty(0, numpy.int64)
    while len(keys) < edges:
        count = int((edges - len(keys)) * 1.1) + 16
        u = drawn(numpy.zeros(count), numpy.full(count, ends[-1]))
        inside = random.random(count) < 0.7
        low = numpy.where(inside, bounds[labels[u]], 0.0)
        high = numpy.where(inside, bounds[labels[u] + 1], ends[-1])
        v = drawn(low, high)
        low, high = numpy.minimum(u, v), numpy.maximum(u, v)
        keys = numpy.unique(numpy.concatenate([keys, (low * nodes + high)[low != high]]))
    if len(keys) > edges:
        keys = numpy.sort(random.choice(keys, edges, replace=False))
    u, v = keys // nodes, keys % nodes
    both = numpy.sort(numpy.concatenate([u * nodes + v, v * nodes + u]))
    offsets = numpy.searchsorted(both, numpy.arange(nodes + 1) * nodes).astype(numpy.uint64)
    centres = random.standard_normal((classes, features), numpy.float32)
    rows = random.standard_normal((nodes, features), numpy.float32)
    rows += 0.2 * centres[labels]
    order = random.permutation(nodes).astype(numpy.uint32)
    cuts = [int(nodes * 0.6), int(nodes * 0.8)]
    train, valid, test = (numpy.sort(part) for part in numpy.split(order, cuts))
    return {
        "offsets": offsets,
        "neighbours": (both % nodes).astype(numpy.uint32),
        "features": rows,
        "labels": labels,
        "train": train,
        "valid": valid,
        "test": test,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("nodes", type=int)
    parser.add_argument("edges", type=int)
    parser.add_argument("-o", "--out", type=pathlib.Path, required=True)
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--classes", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    arrays = generate(
        options.nodes, options.edges, options.features, options.classes, options.seed
    )
    metadata = {"format": "hither-graph", "version": "1", "name": options.out.stem}
    metadata |= {"metric": "accuracy", "classes": str(options.classes)}
    metadata |= {"feature_dim": str(options.features)}
    write(options.out, arrays, metadata)
    degrees = numpy.diff(arrays["offsets"])
    print(f"{options.out}: {options.nodes} nodes, {options.edges} edges, degree ≤ {degrees.max()}")


if __name__ == "__main__":
    sys.exit(main())
