#!/usr/bin/env python3
"""The curve of a training run as CSV: round, loss, scores and seconds of each evaluated round.

    python3 bench/train/curve.py DIR/metrics.jsonl > curve.csv
"""

import json
import sys


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: curve.py METRICS.jsonl")
    rounds = [json.loads(line) for line in open(sys.argv[1])]
    evaluated = [r for r in rounds if r["test"] is not None]
    further = sorted({name for r in evaluated for name in r.get("further", {})})
    print(",".join(["run", "round", "loss", "valid", "test", *further, "train_s", "evaluate_s"]))
    train_s = {}
    for r in rounds:
        train_s[r["run"]] = train_s.get(r["run"], 0) + r["local_s"] + r["server_s"]
        if r["test"] is None:
            continue
        score = lambda value: "" if value is None else f"{value:.5f}"
        scores = [score(r["valid"]), score(r["test"])]
        scores += [score(r.get("further", {}).get(name)) for name in further]
        times = [f"{train_s[r['run']]:.1f}", f"{r['evaluate_s']:.1f}"]
        print(",".join([str(r["run"]), str(r["round"]), f"{r['loss']:.5f}", *scores, *times]))


main()
