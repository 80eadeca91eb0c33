"""How much memory a large graph takes: import, partition, one llcg round and an evaluation.

    python bench/train/large.py DIR [--nodes 5000000] [--degree 20] [--features 128] [--limit-gb 12] [--hither PATH]

Makes a graph in OGB's binary layout below DIR, with compressed features as OGB's are, and runs

    hither dataset convert    OGB folder -> one mapped file
    hither partition --write  8 parts by ldg -> a folder of parts
    hither train              one llcg round, scores of all validation and test nodes

For each it prints a JSON line: wall-clock and CPU seconds, and the largest anonymous and mapped memory,
which /proc/PID/status tells apart (looked at ten times a second). Anonymous memory must fit; the system
can drop mapped pages and read them again. With --limit-gb the system refuses more anonymous memory than that
(RLIMIT_DATA), so a step that takes more fails. A step whose output exists is skipped; each input is deleted
once its output is whole. Needs numpy, and disk for four times the features.
"""

import argparse
import json
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib

import numpy

COMMUNITY = 4096
CLASSES = 16
BLOCK_ROWS = 4 * COMMUNITY
# Features repeat after this many blocks, a multiple of the classes' period. Packing takes most of the time, and
# deflate looks back only 32 KiB, so a reader cannot gain from it.
BLOCKS = 32


class RepeatedBlocks:
    """A deflate compressor that packs each distinct block once."""

    def __init__(self):
        self.packed = {}

    def compress(self, block):
        if block not in self.packed:
            packer = zlib.compressobj(1, zlib.DEFLATED, -15)
            # After a full flush the packed blocks can follow each other in any order.
            self.packed[block] = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)
        return self.packed[block]

    def flush(self):
        return zlib.compressobj(1, zlib.DEFLATED, -15).flush()


def member(archive, name, dtype, shape, chunks, compressor=None):
    """Streams one array into an archive."""
    header = {"descr": numpy.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        if compressor:
            file._compressor = compressor
        numpy.lib.format.write_array_header_1_0(file, header)
        for chunk in chunks:
            file.write(chunk if isinstance(chunk, bytes) else chunk.astype(dtype, copy=False).tobytes())


def ends(nodes, edges):
    """Both ends of all edges, one end at a time: the same draws give both. Most edges stay in a community."""
    block = 1 << 20
    for end in range(2):
        random = numpy.random.default_rng(1)
        for start in range(0, edges, block):
            count = min(block, edges - start)
            pair = random.integers(nodes, size=(2, count))
            inside = random.random(count) < 0.8
            near = pair[0] // COMMUNITY * COMMUNITY + random.integers(COMMUNITY, size=count)
            pair[1] = numpy.where(inside, numpy.minimum(near, nodes - 1), pair[1])
            yield pair[end]


def feature_rows(nodes, features):
    """Features around the mean of a node's class, a block at a time."""
    random = numpy.random.default_rng(2)
    means = random.standard_normal((CLASSES, features), dtype=numpy.float32) * 0.3
    blocks = []
    for block in range(BLOCKS):
        # Half-precision noise packs to about half, as real features do.
        noise = random.standard_normal((BLOCK_ROWS, features), dtype=numpy.float32).astype(numpy.float16)
        rows = noise.astype(numpy.float32) + means[classes(block * BLOCK_ROWS, BLOCK_ROWS)].astype(numpy.float16)
        blocks.append(rows.tobytes())
    for start in range(0, nodes, BLOCK_ROWS):
        rows = min(BLOCK_ROWS, nodes - start)
        yield blocks[start // BLOCK_ROWS % BLOCKS][: rows * features * 4]


def classes(start, count):
    return numpy.arange(start, start + count) // COMMUNITY % CLASSES


def make(folder, nodes, degree, features):
    """A graph of communities whose classes the features of a node and its neighbours tell."""
    raw, split = folder / "raw", folder / "split" / "random"
    raw.mkdir(parents=True)
    split.mkdir(parents=True)
    edges = nodes * degree // 2
    with zipfile.ZipFile(raw / "data.npz", "w", compression=zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        one = numpy.dtype("<i8")
        member(archive, "num_nodes_list", one, (1,), [numpy.array([nodes])])
        member(archive, "num_edges_list", one, (1,), [numpy.array([edges])])
        member(archive, "edge_index", one, (2, edges), ends(nodes, edges))
        rows = feature_rows(nodes, features)
        member(archive, "node_feat", numpy.dtype("<f4"), (nodes, features), rows, RepeatedBlocks())
    numpy.savez(raw / "node-label.npz", node_label=classes(0, nodes).reshape(-1, 1))
    drawn = numpy.random.default_rng(3).random(nodes)
    for name, low, high in [("train", 0, 0.6), ("valid", 0.6, 0.8), ("test", 0.8, 1)]:
        chosen = numpy.flatnonzero((drawn >= low) & (drawn < high))
        with open(split / f"{name}.csv", "w") as file:
            for start in range(0, len(chosen), 1 << 16):
                file.writelines(f"{node}\n" for node in chosen[start : start + (1 << 16)].tolist())


def memory(pid):
    """Anonymous and mapped bytes at the moment."""
    found = {}
    try:
        for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
            key, _, value = line.partition(":")
            if key in ("RssAnon", "RssFile", "RssShmem"):
                found[key] = int(value.split()[0]) * 1024
    except OSError:
        pass
    return found.get("RssAnon", 0), found.get("RssFile", 0) + found.get("RssShmem", 0)


def run(name, command, limit):
    """Runs one step, prints what it took, and returns what it printed."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    # A file, not a pipe: nobody reads before the step ends, and a full pipe would stop it.
    output = tempfile.TemporaryFile("w+")
    process = subprocess.Popen(
        command, stdout=output, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    )
    anonymous = mapped = together = 0
    while process.poll() is None:
        now = memory(process.pid)
        anonymous, mapped = max(anonymous, now[0]), max(mapped, now[1])
        together = max(together, sum(now))
        time.sleep(0.1)
    if process.returncode:
        sys.exit(f"large.py: {' '.join(map(str, command))}: status {process.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    row = {
        "step": name,
        "wall_s": round(time.perf_counter() - start, 1),
        "cpu_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        "anonymous_gb": round(anonymous / 1e9, 2),
        "mapped_gb": round(mapped / 1e9, 2),
        "both_gb": round(together / 1e9, 2),
    }
    print(json.dumps(row), flush=True)
    output.seek(0)
    return output.read()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dir", type=pathlib.Path)
    parser.add_argument("--nodes", type=int, default=5_000_000)
    parser.add_argument("--degree", type=int, default=20)
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--limit-gb", type=float, help="refuse more anonymous memory than this")
    parser.add_argument("--hither", default="target/release/hither")
    parser.add_argument("--threads", default="2")
    args = parser.parse_args()
    folder, graph, parts = (args.dir / f"large-{args.nodes}{end}" for end in ("", ".graph.safetensors", ".parts"))
    hither = [args.hither, "--threads", args.threads]
    limit = int(args.limit_gb * 1e9) if args.limit_gb else resource.RLIM_INFINITY
    # Long arrays are unpacked to files in this directory.
    os.environ["TMPDIR"] = str(args.dir)
    if not (folder.exists() or graph.exists() or parts.exists()):
        start, unfinished = time.perf_counter(), args.dir / "unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        make(unfinished, args.nodes, args.degree, args.features)
        unfinished.rename(folder)
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        print(json.dumps({"step": "make", "wall_s": round(time.perf_counter() - start, 1), "bytes": size}), flush=True)
    if folder.exists():
        run("convert", [*hither, "dataset", "convert", folder, "-o", graph, "--force"], limit)
        shutil.rmtree(folder)
    if graph.exists():
        cut = ["--parts", "8", "--method", "ldg", "--write", parts, "--force"]
        run("partition", [*hither, "partition", graph, *cut], limit)
        graph.unlink()
    rounds = ["--rounds", "1", "--batch", "1024", "--server-batch", "1024", "--server-steps", "5"]
    command = [*hither, "train", parts, "--mode", "llcg", "--model", "sage", *rounds, "--json"]
    print(run("llcg", command, limit))


if __name__ == "__main__":
    main()
