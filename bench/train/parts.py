#!/usr/bin/env python3
"""Trains on several partitions of every graph and collects one row per run.

    python3 bench/train/parts.py --out RUNS --partitions metis-even,random --only tolokers,pubmed --seeds 1,2,3
    python3 bench/train/parts.py --out RUNS --collect > bench/results/train-parts.jsonl
    python3 bench/train/parts.py --out RUNS --tables

Graphs and options are those of modes.py. Runs that are finished are kept. Every run is one command, which
`--before` precedes. `--extra` adds options under a name of their own: `--extra share2=--server-share=2`.
"""

import argparse
import json
import pathlib
import shlex
import statistics
import subprocess
import sys

import modes


def runs(args):
    name, _, extra = args.extra.partition("=")
    for graph in args.only:
        _, model, full, _, rounds = modes.GRAPHS[graph]
        full, rounds = args.batch or full, args.rounds or rounds
        for seed in args.seeds:
            for partition in args.partitions:
                place = args.out / graph / partition / (name or "default") / f"seed-{seed}"
                options = f"{model} {full} --rounds {rounds} --partition {partition} --seed {seed} --threads 1"
                yield graph, place, f"{options} --modes {args.modes} {extra}".split()


def run(args):
    for graph, place, options in runs(args):
        if (place / "summary.json").exists():
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        words = [*shlex.split(args.before), args.hither, "train", "compare", modes.dataset(graph, args), *options]
        print(*words, file=sys.stderr, flush=True)
        words += ["--resume", "--quiet", "-o", place]
        subprocess.run(words, check=False, stdout=subprocess.DEVNULL)


def rows(args):
    """One row per finished run; scores in points, paths in computed seconds."""
    for summary in sorted(args.out.glob("*/*/*/seed-*/summary.json")):
        graph, partition, options, seed = summary.relative_to(args.out).parts[:4]
        for mode in sorted(summary.parent.iterdir()):
            lines = modes.lines(mode / "metrics.jsonl") if mode.is_dir() else []
            if not lines:
                continue
            header = json.loads((mode / "summary.json").read_text())["runs"][0]["header"]
            row = modes.row(graph, mode.name, int(seed.removeprefix("seed-")), lines, args.target.get(graph, 2.0))
            row |= {"bench": "train-parts", "options": options, "asked": partition}
            row |= {"partition": header["partition"], "cut_share": round(header["cut_share"], 4)}
            yield row


def tables(args):
    """Test scores, one line per graph, mode and partition."""
    found = {}
    for row in rows(args):
        key = row["graph"], row["mode"], row["asked"], row["options"]
        found.setdefault(key, []).append(row)
    print("| graph | mode | partition | options | seeds | valid | test | server's share | path, s |")
    print("|---|---|---|---|---|---|---|---|---|")
    for key, some in sorted(found.items()):
        share = statistics.mean(row["server_share"] for row in some)
        path = statistics.mean(row["path_s"] for row in some)
        valid, test = (modes.spread([row[score] for row in some]) for score in ("valid", "test"))
        print("|", " | ".join([*key, str(len(some)), valid, test, f"{100 * share:.0f} %", f"{path:.3f}"]), "|")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--graphs", type=pathlib.Path, default=pathlib.Path("../shared/data/graphs"))
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--hither", type=pathlib.Path, default=pathlib.Path("target/release/hither"))
    parser.add_argument("--before", default="", help="words before each command")
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(modes.GRAPHS))
    parser.add_argument("--partitions", type=lambda text: text.split(","), default=["metis-even"])
    parser.add_argument("--modes", default="psgd-pa,llcg,server-only")
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[1, 2, 3])
    parser.add_argument("--batch", default="", help="options in place of the graph's own --batch")
    parser.add_argument("--rounds", type=int, default=0, help="in place of the graph's own")
    parser.add_argument("--extra", default="", help="NAME=OPTIONS")
    parser.add_argument("--collect", action="store_true", help="print rows instead of running")
    parser.add_argument("--tables", action="store_true", help="print a table instead of running")
    args = parser.parse_args()
    args.target = {}
    if args.collect:
        for row in rows(args):
            print(json.dumps(row))
    elif args.tables:
        tables(args)
    else:
        run(args)


if __name__ == "__main__":
    main()
