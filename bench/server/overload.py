#!/usr/bin/env python3
"""Offers Hither's server three times its capacity for a minute, and then little.

    target/server-venv/bin/python bench/server/overload.py --hither target/release/hither

Prints and keeps one row: what was accepted and how fast, how fast the rest was refused, how memory
moved meanwhile, and whether the server is itself again right after. Windows of two seconds tell how much of a tail is
the machine's: each has the share of time that the host of a virtual machine took.
"""

import argparse
import json
import pathlib
import threading

import compare
import machine


def resident(pid, stop, seen):
    """Resident megabytes of the server, twice a second."""
    while not stop.wait(0.5):
        seen.append(int(machine.field(f"/proc/{pid}/status", "VmRSS").split()[0]) // 1024)


def window_facts(window):
    latency, refusal = window["latency"], window["refusal"] or {}
    return {
        "stolen_share": window["stolen_share"], "answered_per_s": window["answered_per_s"],
        "accepted_p50_us": latency["p50_us"], "accepted_p99_us": latency["p99_us"],
        **{f"refusal_{share}_us": refusal.get(f"{share}_us") for share in ("p50", "p90", "p99")},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hither", type=pathlib.Path, default=compare.ROOT / "target/release/hither")
    parser.add_argument("--model", default="mlperf", choices=compare.MODELS)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--times", type=float, default=3)
    parser.add_argument("--slo-ms", type=float, default=10)
    parser.add_argument("--hotness", default="medium")
    parser.add_argument("--work", type=pathlib.Path, default=compare.ROOT / "target/server-bench")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    model = compare.make_model(args.hither, args.model, args.work)
    # A request that waited longer than the SLO is of no use: it is refused instead.
    more = f"timeout_us = {round(args.slo_ms * 1000)}\n"
    server = compare.Hither(args, compare.MODELS[args.model], model, "fp32", 18100, more)
    try:
        url, samples = server.url, args.samples
        undisturbed = ["--stolen-max", 2 * compare.STOLEN_MAX]
        closed = compare.load(args, url, samples, "--concurrency", 8, "--window", "1s", *undisturbed)
        capacity = closed["levels"][0]["answered_per_s"]
        seen, stop = [], threading.Event()
        watch = threading.Thread(target=resident, args=(server.process.pid, stop, seen))
        watch.start()
        windows = ["--windows", args.seconds // 2, "--windows-max", args.seconds // 2]
        over = compare.load(args, url, samples, "--rate", args.times * capacity, "--window", "2s", *windows)
        stop.set()
        watch.join()
        calm = compare.load(args, url, samples, "--rate", 0.5 * capacity, "--warmup", "1us", "--window", "1s", "--windows", 1, "--windows-max", 1)
    finally:
        server.stop()
    over, calm = over["levels"][0], calm["levels"][0]
    facts = machine.facts()
    row = {
        "bench": "server-overload", "cpu": facts["cpu"], "model": args.model, "samples": samples,
        "hotness": args.hotness, "slo_ms": args.slo_ms, "seconds": args.seconds,
        "capacity_per_s": capacity, "offered_per_s": over["requests_per_s"],
        "answered_per_s": over["answered_per_s"], "refused_per_s": over["refused"] / over["span_s"],
        "failed": over["failed"], "timed_out": over["timed_out"],
        "accepted_p50_us": over["latency"]["p50_us"], "accepted_p99_us": over["latency"]["p99_us"],
        "refusal_p50_us": over["refusal"]["p50_us"], "refusal_p99_us": over["refusal"]["p99_us"],
        "client_delay_us": over["send_delay_us"], "stolen_share": over["stolen_share"],
        "windows": [window_facts(window) for window in over["windows"]],
        "resident_mb_first": seen[:5], "resident_mb_last": seen[-5:], "resident_mb_max": max(seen),
        "after_refused": calm["refused"], "after_p99_us": calm["latency"]["p99_us"],
    }
    compare.keep(row)
    print(json.dumps(row, indent=1))


if __name__ == "__main__":
    main()
