#!/usr/bin/env python3
"""The p99 of a server while it reloads a model of 2 GB, once per window or again and again, beside its p99 in peace.

    python3 bench/server/reload.py --hither target/release/hither

The server is on core 0, the client on core 1. Windows in peace and windows with reloads take turns; a reload copies the
tables of the changed file to huge pages and then takes the place of the version before. Rows go to standard output as JSON
lines; the last one has the medians.
"""

import argparse
import json
import os
import pathlib
import signal
import statistics
import threading

import compare

SHAPE = {"rows": 1_000_000, "tables": 4, "ids_per_bag": 20, "dense": 13}


def make_model(args):
    directory = args.work / "model-2gb"
    if not (directory / "model.safetensors").exists():
        words = ["--preset", "mlperf", "--tables", SHAPE["tables"], "--rows", SHAPE["rows"], "--seed", 1]
        compare.run([args.hither, "model", "generate", *words, "-o", directory])
    return directory


class Reloads:
    """Reloads a server's model for as long as it lives, one load after the other."""

    def __init__(self, server, model, pause_s):
        self.server, self.model, self.pause_s, self.count = server, model, pause_s, 0
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.is_over.is_set():
            os.utime(self.model / "model.safetensors")
            self.server.process.send_signal(signal.SIGHUP)
            self.count += 1
            # The new version serves mapped, and then from its copy.
            self.wait_for(lambda settled: settled != 1)
            self.wait_for(lambda settled: settled == 1)
            self.is_over.wait(self.pause_s)

    def wait_for(self, is_so):
        for _ in range(200):
            if self.is_over.wait(0.02) or is_so(compare.metric(self.server.metrics, "hither_tables_settled")):
                return

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.is_over.set()
        self.thread.join()


def p99_us(args, server, rate):
    words = ["--rate", rate, "--warmup", "300ms", "--window", f"{args.window_ms}ms", "--windows", 1, "--windows-max", 1]
    level = compare.load(args, server.url, args.samples, *words)["levels"][0]
    return {"p99_us": level["latency"]["p99_us"], "p50_us": level["latency"]["p50_us"],
            "answered": level["answered"], "failed": level["failed"], "stolen": level["stolen_share"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hither", type=pathlib.Path, required=True)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--share", type=float, default=0.4, help="of what four callers reach")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pause-s", type=float, default=60, help="from the end of a reload to the next one")
    parser.add_argument("--window-ms", type=int, default=8000)
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("/tmp/hither-reload"))
    args = parser.parse_args()
    args.hotness, args.slo_ms = "medium", 50
    args.work.mkdir(parents=True, exist_ok=True)
    model = make_model(args)
    server = compare.Hither(args, SHAPE, model, "fp32", 18810)
    try:
        reached = compare.closed_loop(args, server, args.samples)["samples_per_s"] / args.samples
        rate = max(1, round(args.share * reached))
        rows = []
        for number in range(args.rounds):
            row = {"round": number, "rate": rate, "peace": p99_us(args, server, rate)}
            with Reloads(server, model, args.pause_s) as reloads:
                row["reloads"] = p99_us(args, server, rate)
            row["count"] = reloads.count
            row["ratio"] = row["reloads"]["p99_us"] / row["peace"]["p99_us"]
            rows.append(row)
            print(json.dumps(row), flush=True)
            while compare.metric(server.metrics, "hither_tables_settled") != 1:
                server.process.poll()
        of = lambda key: statistics.median(row[key]["p99_us"] for row in rows)
        print(json.dumps({"rate": rate, "peace_p99_us": of("peace"), "reloads_p99_us": of("reloads"),
                          "median_ratio": statistics.median(row["ratio"] for row in rows)}), flush=True)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
