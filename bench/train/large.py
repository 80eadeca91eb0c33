"""How much memory a large graph takes: import, partition, one llcg round and an evaluation.

    python bench/train/large.py DIR [--nodes 5000000] [--degree 20] [--features 128] [--hither PATH]

Makes a graph in OGB's binary layout below DIR, with compressed features as OGB's are, and runs

    hither dataset convert    OGB folder -> one mapped file
    hither partition --write  8 parts by ldg -> a folder of parts
    hither train              one llcg round, scores of all validation and test nodes

For each it prints a JSON line: wall-clock and CPU seconds, and the largest anonymous and mapped memory,
which /proc/PID/status tells apart (looked at ten times a second). Anonymous memory must fit; the system
can drop mapped pages and read them again. Needs numpy, and disk for four times the features.
"""

import argparse
import json
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import time
import zipfile

import numpy

COMMUNITIES = 4096
CLASSES = 16


def member(archive, name, dtype, shape, chunks):
    """Streams one array into an archive."""
    header = {"descr": numpy.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        numpy.lib.format.write_array_header_1_0(file, header)
        for chunk in chunks:
            file.write(chunk.astype(dtype, copy=False).tobytes())


def make(folder, nodes, degree, features):
    """A graph of communities whose classes the features of a node and its neighbours tell."""
    raw, split = folder / "raw", folder / "split" / "random"
    raw.mkdir(parents=True)
    split.mkdir(parents=True)
    edges, block = nodes * degree // 2, 1 << 20
    size = -(-nodes // COMMUNITIES)

    def ends(seed):
        """Both ends of all edges, one end at a time: the same draws give both."""
        for end in range(2):
            random = numpy.random.default_rng(seed)
            for start in range(0, edges, block):
                count = min(block, edges - start)
                pair = random.integers(nodes, size=(2, count))
                inside = random.random(count) < 0.8
                near = pair[0] // size * size + random.integers(size, size=count)
                pair[1] = numpy.where(inside, numpy.minimum(near, nodes - 1), pair[1])
                yield pair[end]

    def rows(seed):
        random = numpy.random.default_rng(seed)
        means = random.standard_normal((CLASSES, features), dtype=numpy.float32) * 0.3
        for start in range(0, nodes, 1 << 14):
            count = min(1 << 14, nodes - start)
            classes = (numpy.arange(start, start + count) // size) % CLASSES
            # Half-precision noise packs to about half, as real features do.
            noise = random.standard_normal((count, features), dtype=numpy.float32)
            yield noise.astype(numpy.float16).astype(numpy.float32) + means[classes].astype(numpy.float16)

    fast = {"compression": zipfile.ZIP_DEFLATED, "compresslevel": 1}
    with zipfile.ZipFile(raw / "data.npz", "w", **fast) as archive:
        one = numpy.dtype("<i8")
        member(archive, "num_nodes_list", one, (1,), [numpy.array([nodes])])
        member(archive, "num_edges_list", one, (1,), [numpy.array([edges])])
        member(archive, "edge_index", one, (2, edges), ends(1))
        member(archive, "node_feat", numpy.dtype("<f4"), (nodes, features), rows(2))
    labels = (numpy.arange(nodes) // size) % CLASSES
    numpy.savez(raw / "node-label.npz", node_label=labels.reshape(-1, 1))
    drawn = numpy.random.default_rng(3).random(nodes)
    for name, low, high in [("train", 0, 0.6), ("valid", 0.6, 0.8), ("test", 0.8, 1)]:
        chosen = numpy.flatnonzero((drawn >= low) & (drawn < high))
        numpy.savetxt(split / f"{name}.csv", chosen, fmt="%d")


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


def run(name, command):
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
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
    return process.stdout.read()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dir", type=pathlib.Path)
    parser.add_argument("--nodes", type=int, default=5_000_000)
    parser.add_argument("--degree", type=int, default=20)
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--hither", default="target/release/hither")
    parser.add_argument("--threads", default="2")
    args = parser.parse_args()
    folder = args.dir / f"large-{args.nodes}"
    graph, parts = args.dir / "large.graph.safetensors", args.dir / "large.parts"
    if not folder.exists():
        start = time.perf_counter()
        make(folder, args.nodes, args.degree, args.features)
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        print(json.dumps({"step": "make", "wall_s": round(time.perf_counter() - start, 1), "bytes": size}))
    hither = [args.hither, "--threads", args.threads]
    # Long arrays are unpacked to files in this directory.
    os.environ["TMPDIR"] = str(args.dir)
    run("convert", [*hither, "dataset", "convert", folder, "-o", graph, "--force"])
    shutil.rmtree(folder)
    cut = ["--parts", "8", "--method", "ldg", "--write", parts, "--force"]
    run("partition", [*hither, "partition", graph, *cut])
    graph.unlink()
    rounds = ["--rounds", "1", "--batch", "1024", "--server-batch", "1024", "--server-steps", "5"]
    table = run("llcg", [*hither, "train", parts, "--mode", "llcg", "--model", "sage", *rounds, "--json"])
    print(table)


if __name__ == "__main__":
    main()
