#!/usr/bin/env python3
"""Two builds of the server in turns: what each answers, and the CPU time that a request takes in it.

    python3 bench/server/builds.py --old OLD/target/release/hither --new target/release/hither

Both are asked by the new build's client, with the same ids, `--rounds` times, in an order that changes from round
to round. Rows go to standard output as JSON lines; the last lines are the medians of the ratios, new to old.
"""

import argparse
import copy
import json
import pathlib
import statistics

import compare

CASES = ["mlperf:16", "mlperf:64", "rm2_1:16"]


def measured(args, build, model, samples):
    shape = compare.MODELS[model]
    own = copy.copy(args)
    own.hither = build
    directory = compare.make_model(args.new, model, args.work)
    server = compare.Hither(own, shape, directory, args.mlp, 18800)
    try:
        client = copy.copy(args)
        client.hither = args.new
        four = compare.closed_loop(client, server, samples)
        crowd = compare.closed_loop(client, server, samples, compare.CROWD)
        pid = server.process.pid
        cpu_us, _ = compare.per_request(client, server, samples, 4, lambda: compare.cpu_s(pid))
        others = lambda: compare.cpu_s(pid, lambda name: not compare.is_engine(name))
        others_us, _ = compare.per_request(client, server, samples, 4, others)
        return {
            "four_callers": four["samples_per_s"],
            "four_callers_p99_us": four["p99_us"],
            "crowd": crowd["samples_per_s"],
            "cpu_us_per_request": cpu_us,
            # Of threads that do not compute: sockets, protocols, waking.
            "others_us_per_request": others_us,
        }
    finally:
        server.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=pathlib.Path, required=True)
    parser.add_argument("--new", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", nargs="+", default=CASES, help="MODEL:SAMPLES")
    parser.add_argument("--mlp", default="fp32")
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("/tmp/hither-builds"))
    parser.add_argument("--window-ms", type=int, default=2000)
    args = parser.parse_args()
    args.hotness, args.slo_ms = "medium", 10
    args.work.mkdir(parents=True, exist_ok=True)
    for case in args.cases:
        model, samples = case.split(":")
        samples, ratios = int(samples), {}
        for number in range(args.rounds):
            row = {}
            for name in ("old", "new")[:: 1 if number % 2 == 0 else -1]:
                row[name] = measured(args, getattr(args, name), model, samples)
                print(json.dumps({"model": model, "samples": samples, "round": number, "build": name, **row[name]}), flush=True)
            for key, value in row["new"].items():
                ratios.setdefault(key, []).append(value / row["old"][key])
        medians = {key: round(statistics.median(values), 3) for key, values in ratios.items()}
        print(json.dumps({"model": model, "samples": samples, "new_to_old": medians, "rounds": ratios}), flush=True)


if __name__ == "__main__":
    main()
