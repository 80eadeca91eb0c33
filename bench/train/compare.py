"""Hither against PyTorch Geometric and DGL: seconds and memory of a training epoch.

    bench/train/setup.sh
    cargo build --release
    python3 bench/train/compare.py [--dataset FILE ...] [--case CASE ...] [--threads 1 2]

Programs run in turn, round by round. A peer first tries each of its backends, and the fastest runs
in all rounds. Prints a table; rows with machine facts are added to bench/results/train-compare.jsonl.
Progress goes to stderr. Exit 0: every goal was reached; 1: some were not, or Hither did not run;
2: nothing ran. Needs the standard library only.
"""

import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.append(str(HERE.parent / "serve"))

CASES = ["sage-minibatch", "gcn-full", "sage-full"]
# How much faster than the peer's an epoch has to be; memory has to be half of the peer's.
GOALS = {
    ("sage-minibatch", "pyg"): 2.0, ("gcn-full", "pyg"): 1.5,
    ("sage-minibatch", "dgl"): 2.5, ("gcn-full", "dgl"): 2.5,
}
MEMORY_GOAL = 0.5
# glibc's heap, told never to give memory back: PyTorch then spares the kernel's zeroing of fresh
# pages for every large tensor, and takes about half as much memory again.
HEAP = ["MALLOC_MMAP_MAX_=0", "MALLOC_TRIM_THRESHOLD_=100000000000"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--dataset", nargs="+", type=pathlib.Path, help="files in Hither's mapped form; else two")
    add("--case", nargs="+", default=CASES, choices=CASES)
    add("--threads", nargs="+", type=int, default=[1, 2])
    add("--rounds", type=int, default=5)
    add("--epochs", type=int, default=3, help="of a process; the first is warm-up")
    add("--hither", type=pathlib.Path, default=ROOT / "target/release/hither-bench")
    add("--pyg", type=pathlib.Path, default=ROOT / "target/train-pyg/bin/python")
    add("--dgl", type=pathlib.Path, default=ROOT / "target/train-dgl/bin/python")
    add("--without", nargs="+", default=[], choices=["hither", "pyg", "dgl"])
    add("--peer-heap", action="store_true", help="peers keep freed memory instead of giving it back")
    add("--first", action="store_true", help="run before other processes (root)")
    add("--work", type=pathlib.Path, default=ROOT / "target/bench-train")
    add("--out", type=pathlib.Path, default=ROOT / "bench/results/train-compare.jsonl")
    return parser.parse_args()


def programs(options):
    """Command of each program that is there; a line for each that is not."""
    found = {
        "hither": (options.hither, [str(options.hither), "train"]),
        "pyg": (options.pyg, [str(options.pyg), "-W", "ignore", str(HERE / "peer_pyg.py")]),
        "dgl": (options.dgl, [str(options.dgl), "-W", "ignore", str(HERE / "peer_dgl.py")]),
    }
    for name, (path, _) in found.items():
        if name not in options.without and not path.exists():
            print(f"compare.py: no {name}: {path} is not there", file=sys.stderr)
    here = lambda name, path: name not in options.without and path.exists()
    return {name: command for name, (path, command) in found.items() if here(name, path)}


def datasets(options):
    """The given files, or two generated ones."""
    if options.dataset:
        return options.dataset
    found = []
    for name, nodes, edges in [("g200k", 200_000, 2_000_000), ("g1m", 1_000_000, 10_000_000)]:
        path = options.work / f"{name}.safetensors"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".partial")
            # Either environment has numpy.
            python = options.pyg if options.pyg.exists() else options.dgl
            command = [python, HERE / "dataset.py", str(nodes), str(edges), "-o", partial]
            subprocess.run(command, check=True, stdout=sys.stderr)
            partial.rename(path)
        found.append(path)
    return found


def run(command, dataset, case, threads, epochs, backend=None):
    """One process; its record, or None if it failed, which it says on stderr."""
    command = [*command, "--dataset", str(dataset), "--case", case, "--threads", str(threads)]
    command += ["--epochs", str(epochs)] + (["--backend", backend] if backend else [])
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        print(f"compare.py: exit {done.returncode}: {' '.join(command)}", file=sys.stderr)
        return None
    return json.loads(done.stdout.strip().splitlines()[-1])


def contest(options, commands, dataset, case, threads):
    """All rounds of one case: program → its records."""
    backends, records = {}, {name: [] for name in commands}
    for name, command in commands.items():
        if name == "hither":
            backends[name] = (None, None)
            continue
        chosen = run(command, dataset, case, threads, 2)
        if chosen is None:
            del records[name]
        else:
            backends[name] = (chosen["backend"], chosen["trials"])
    for number in range(options.rounds):
        for name in list(records):
            record = run(commands[name], dataset, case, threads, options.epochs, backends[name][0])
            if record is None:
                del records[name]
                continue
            record["trials"] = backends[name][1]
            records[name].append(record)
            best = min(record["seconds"][1:])
            print(f"    {number + 1}/{options.rounds} {name}: {best:.3f} s", file=sys.stderr)
    return {name: found for name, found in records.items() if found}


def summary(dataset, case, threads, name, records):
    """One program's row: epochs after the warm-up, of all rounds."""
    seconds = [value for record in records for value in record["seconds"][1:]]
    peak = lambda key: max((r[key] for r in records if r.get(key) is not None), default=None)
    last = records[-1]
    return {
        "bench": "train", "dataset": dataset.stem, "case": case, "threads": threads,
        "program": name, "rounds": len(records),
        "s_median": statistics.median(seconds), "s_min": min(seconds), "seconds": seconds,
        "rss_peak_mb": peak("rss_peak_mb"), "rss_loaded_mb": peak("rss_loaded_mb"),
        "rss_peak_over_loaded_mb": peak("rss_peak_over_loaded_mb"),
        "rss_peak_workers_mb": peak("rss_peak_workers_mb"),
        "load_share": last.get("load_share"), "loss": last.get("loss"), "backend": last.get("backend"), "trials": last.get("trials"),
        "versions": last.get("versions"),
    }


def ratios(rows, records):
    """Each peer by Hither: round by round, by minima, and in memory."""
    if "hither" not in records:
        return []
    found = []
    ours = next(row for row in rows if row["program"] == "hither")
    middle = lambda record: statistics.median(record["seconds"][1:])
    for row in rows:
        if row["program"] == "hither":
            continue
        pairs = zip(records[row["program"]], records["hither"])
        reached = statistics.median(middle(theirs) / middle(mine) for theirs, mine in pairs)
        goal = GOALS.get((row["case"], row["program"]))
        memory = ours["rss_peak_mb"] / row["rss_peak_mb"]
        over = [r["rss_peak_over_loaded_mb"] for r in (ours, row)]
        found.append({
            "bench": "train-compare", "dataset": row["dataset"], "case": row["case"],
            "threads": row["threads"], "against": row["program"], "backend": row["backend"],
            "reached": reached, "reached_by_minima": row["s_min"] / ours["s_min"], "goal": goal,
            "memory": memory,
            "memory_over_loaded": over[0] / over[1] if None not in over and over[1] > 0 else None,
            "ok": memory <= MEMORY_GOAL and (goal is None or reached >= goal),
        })
    return found


def line(row):
    if row["bench"] == "train":
        return (
            f"{row['dataset']:<10} {row['case']:<15} {row['threads']}T {row['program']:<7}"
            f" {row['s_median']:8.3f} s (min {row['s_min']:.3f})"
            f"  peak {row['rss_peak_mb']:6.0f} MB, over loaded {row['rss_peak_over_loaded_mb']:6.0f}"
            f"  {row['backend'] or ''}"
        )
    over = row["memory_over_loaded"]
    return (
        f"{row['dataset']:<10} {row['case']:<15} {row['threads']}T against {row['against']}:"
        f" {row['reached']:.2f} times as fast (minima {row['reached_by_minima']:.2f}"
        f"{'' if row['goal'] is None else ', goal ' + str(row['goal'])});"
        f" memory {row['memory']:.2f} of it (over loaded {'-' if over is None else round(over, 2)})"
        f" {'ok' if row['ok'] else 'below'}"
    )


def go_first():
    """Goes on in a child that runs before other processes, and ends with it. Where the kernel
    groups processes by session, `nice` acts only within one: the group has to be put first."""
    child = os.fork()
    if child:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: os.killpg(child, signal.SIGTERM))
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    os.setsid()
    os.nice(-20)
    try:
        pathlib.Path("/proc/self/autogroup").write_text("-20")
    except OSError:
        pass  # no such groups: nice is enough


def main():
    options = arguments()
    import machine  # the serving comparison's

    if options.first:
        go_first()
    commands = programs(options)
    if options.peer_heap:
        for name in {"pyg", "dgl"} & set(commands):
            commands[name] = ["env", *HEAP, *commands[name]]
    if not commands:
        return 2
    every = []
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with open(options.out, "a") as out:
        facts = {**machine.facts(), "peer_heap": options.peer_heap}
        out.write(json.dumps({"bench": "machine", "facts": facts}) + "\n")
        for dataset in datasets(options):
            for case in options.case:
                for threads in options.threads:
                    print(f"{dataset.stem} {case} {threads}T", file=sys.stderr, flush=True)
                    records = contest(options, commands, dataset, case, threads)
                    rows = [
                        summary(dataset, case, threads, name, found)
                        for name, found in records.items()
                    ]
                    rows += ratios(rows, records)
                    for row in rows:
                        row["load_average"] = round(machine.load_average(), 2)
                        out.write(json.dumps(row) + "\n")
                        print("    " + line(row), file=sys.stderr)
                    out.flush()
                    every += rows
    for row in every:
        print(line(row))
    compared = [row for row in every if row["bench"] == "train-compare"]
    if not every:
        return 2
    return 0 if compared and all(row["ok"] for row in compared) else 1


if __name__ == "__main__":
    sys.exit(main())
