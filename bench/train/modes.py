#!/usr/bin/env python3
"""Trains every mode on every graph with five seeds, and collects one row per run.

    python3 bench/train/modes.py --graphs DATA --out RUNS --hither target/release/hither
    python3 bench/train/modes.py --out RUNS --collect > bench/results/train-modes.jsonl
    python3 bench/train/modes.py --out RUNS --tables

Runs that are finished are kept: the same command goes on where it was stopped. Scores, counted work and
critical paths do not depend on the machine or on what else it does, so that several copies may run
side by side, each with `--only GRAPH,…`.
"""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys

SEEDS = 5
MODES = "single,psgd-pa,llcg,llcg-stale,server-only"
# Graph: its file under --graphs (or a generated one), options of all runs, of sampled steps, and rounds.
FULL = "--batch full"
SAMPLED = "--batch 256"
GRAPHS = {
    "tolokers": ("tolokers.npz", "--model sage", FULL, SAMPLED, 30),
    "flickr": ("shchur/flickr.npz", "--model gcn", FULL, SAMPLED, 30),
    "debian-run": ("debian/debian-run.npz", "--model gcn", FULL, SAMPLED, 30),
    "debian-all": ("debian/debian-all.npz", "--model gcn", FULL, SAMPLED, 20),
    "pubmed": ("planetoid-pubmed", "--model gcn", FULL, SAMPLED, 30),
    "dblp": ("shchur/dblp.npz", "--model gcn", FULL, SAMPLED, 30),
    "facebook-page": ("facebook-page", "--model gcn", FULL, SAMPLED, 30),
    "amazon_cs": ("shchur/amazon_cs.npz", "--model gcn", FULL, SAMPLED, 30),
    "noisy-1m": (
        "--family noisy-features --degree 20 --tail 0 --nodes 1000000 --communities 3200 --seed 1",
        "--model sage --server-batch 1024 --eval-every 2",
        "--batch 1024",
        "--batch 1024",
        16,
    ),
    "mixed-1m": (
        "--family cut-homophily --homophily-inside 0.3 --homophily-outside 0.6 --leaving 0.3 "
        "--degree 16 --tail 0 --nodes 1000000 --communities 3200 --seed 2",
        "--model sage --server-batch 1024 --eval-every 2",
        "--batch 1024",
        "--batch 1024",
        16,
    ),
}


def ways(graph, modes=MODES, seeds=SEEDS, first_seed=1):
    """What is run on a graph: a name, the command, and its options."""
    _, model, full, sampled, rounds = GRAPHS[graph]
    common = f"{model} --seed {first_seed} --runs {seeds} --threads 1"
    yield "compared", ["train", "compare"], f"{common} {full} --rounds {rounds} --modes {modes}"
    # These have no server, and an option that nothing uses is refused.
    steps = re.sub(r"--server-batch \d+ ?", "", f"{common} {sampled} --rounds {rounds}")
    yield "single-sampled", ["train"], f"{steps} --local-steps 20"
    yield "ggs", ["train"], f"{steps} --mode ggs"


def dataset(graph, args):
    source = GRAPHS[graph][0]
    if not source.startswith("--"):
        return args.graphs / source
    path = args.out / f"{graph}.graph.safetensors"
    if not path.exists():
        subprocess.run([args.hither, "dataset", "generate", *source.split(), "-o", path], check=True)
    return path


def run(args):
    for graph in args.only:
        for way, command, options in ways(graph, args.modes, args.seeds, args.first_seed):
            place = args.out / graph / way
            if args.ways and way not in args.ways:
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            words = [args.hither, *command, dataset(graph, args), *options.split()]
            print(*words, file=sys.stderr, flush=True)
            words += ["--resume", "--quiet", "-o", place]
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def rows(args):
    """One row per finished run; scores in points, the path in computed seconds."""
    for graph in args.only:
        rounds = {}
        for way, _, _ in ways(graph):
            top = args.out / graph / way
            places = top.iterdir() if way == "compared" and top.exists() else [top]
            for place in places:
                name = place.name if way == "compared" else way
                for line in lines(place / "metrics.jsonl"):
                    rounds.setdefault((name, line["seed"]), []).append(line)
        wanted = expected(graph)
        for (name, seed), run in sorted(rounds.items()):
            if len(run) < wanted:
                continue
            reference = rounds.get(("single", seed), [])
            target = max((r["valid"] or 0 for r in reference), default=1) - 0.005
            yield row(graph, name, seed, run, target)


def expected(graph):
    return GRAPHS[graph][4]


def lines(path):
    return [json.loads(line) for line in open(path)] if path.exists() else []


def row(graph, name, seed, run, target):
    best = max((r for r in run if r["valid"] is not None), key=lambda r: r["valid"])
    path, sent, reached = 0.0, 0, None
    for r in run:
        path += sum(r["path"].values())
        sent += sum(r[key] for key in r if key.endswith("_bytes"))
        if reached is None and r["valid"] is not None and r["valid"] >= target:
            reached = {"path_s": round(path, 5), "bytes": sent, "round": r["round"]}

    def work(*parts):
        return sum(sum(r["work"][part].values()) for r in run for part in parts)

    server = work("server", "judge")
    return {
        "bench": "train-modes",
        "graph": graph,
        "mode": name,
        "seed": seed,
        "rounds": len(run),
        "valid": round(100 * best["valid"], 3),
        "test": round(100 * best["test"], 3),
        "best_round": best["round"],
        "path_s": round(path, 5),
        "bytes_per_round": round(sent / len(run)),
        "server_steps_per_round": round(statistics.mean(r["server_steps"] for r in run), 2),
        "work": work("workers", "server", "judge"),
        "server_share": round(server / max(1, server + work("workers")), 4),
        # Until the validation score of full-batch `single` with this seed, less half a point.
        "reached": reached,
    }


def spread(values):
    mean = statistics.mean(values)
    return f"{mean:.2f} ± {statistics.stdev(values):.2f}" if len(values) > 1 else f"{mean:.2f}"


def tables(args):
    """Scores, then paths and bytes; one line per graph, means over the seeds that both modes have."""
    found = {}
    for r in rows(args):
        found.setdefault(r["graph"], {}).setdefault(r["mode"], {})[r["seed"]] = r
    names = [*MODES.split(","), "single-sampled", "ggs"]

    def mean(runs, key):
        return statistics.mean(r[key] for r in runs.values())

    def line(cells):
        print("| " + " | ".join(cells) + " |")

    line(["graph", "seeds", *names, "llcg to single", "recovered", "server steps", "server share"])
    line(["---"] * (len(names) + 6))
    for graph, modes in found.items():
        scores = [spread([r["test"] for r in modes[m].values()]) if m in modes else "–" for m in names]
        cells = [graph, str(max(len(runs) for runs in modes.values())), *scores]
        if all(m in modes for m in ["single", "psgd-pa", "llcg"]):
            single, local, llcg = (mean(modes[m], "test") for m in ["single", "psgd-pa", "llcg"])
            cells += [f"{llcg - single:+.2f}", f"{100 * (llcg - local) / (single - local):.0f} %",
                      f"{mean(modes['llcg'], 'server_steps_per_round'):.0f}",
                      f"{100 * mean(modes['llcg'], 'server_share'):.0f} %"]
        line(cells)
    print()
    line(["graph", "figure", *names])
    line(["---"] * (len(names) + 2))
    for graph, modes in found.items():
        def each(figure, text):
            line([graph, figure, *[text(modes[m]) if m in modes else "–" for m in names]])

        def reached(runs, key, digits):
            done = [r["reached"][key] for r in runs.values() if r["reached"]]
            share = "" if len(done) == len(runs) else f" ({len(done)} of {len(runs)})"
            return f"{statistics.mean(done) / (1e6 if key == 'bytes' else 1):.{digits}f}{share}" if done else "never"

        each("path of all rounds, s", lambda runs: f"{mean(runs, 'path_s'):.3f}")
        each("path until single − 0.5, s", lambda runs: reached(runs, "path_s", 3))
        each("MB per round", lambda runs: f"{mean(runs, 'bytes_per_round') / 1e6:.2f}")
        each("MB until single − 0.5", lambda runs: reached(runs, "bytes", 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--graphs", type=pathlib.Path, default=pathlib.Path("../shared/data/graphs"))
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--hither", type=pathlib.Path, default=pathlib.Path("target/release/hither"))
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(GRAPHS))
    parser.add_argument("--ways", type=lambda text: text.split(","), default=None)
    parser.add_argument("--modes", default=MODES, help="of these; further ones can be added later")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="of these; further ones can be added later")
    parser.add_argument("--first-seed", type=int, default=1, help="with an --out of its own")
    parser.add_argument("--collect", action="store_true", help="print rows instead of running")
    parser.add_argument("--tables", action="store_true", help="print a table instead of running")
    args = parser.parse_args()
    if args.collect:
        for r in rows(args):
            print(json.dumps(r))
    elif args.tables:
        tables(args)
    else:
        run(args)


if __name__ == "__main__":
    main()
