#!/usr/bin/env python3
"""Prints the tables of docs/results-server.md from bench/results/server-compare.jsonl.

    python3 bench/server/table.py [CPU]        # a part of the processor's name; the last one measured
"""

import json
import pathlib
import sys

RESULTS = pathlib.Path(__file__).resolve().parents[1] / "results/server-compare.jsonl"
BASE = "triton-torch-fp32"


def number(value):
    return "none" if value is None else f"{value:,.0f}"


def ratio(value, base):
    return f" ({value / base:.2f}×)" if value and base else ""


def mean(row, key):
    return sum(one[key] for one in row["closed"]) / len(row["closed"])


def highest(row, limit_ms):
    """Samples/s of the highest rate that kept the limit in either round; `None` if none did."""
    levels = [level for sweep in row["sweeps"] for level in sweep["levels"]]
    kept = [level["rate"] for level in levels if level["p99_us"] <= limit_ms * 1e3 and level["answered"] and not level["lost"]]
    return max(kept) * row["samples"] if kept else None


def span(row):
    rates = sorted(one["samples_per_s"] for one in row["closed"])
    return f"{number(rates[0])}–{number(rates[-1])}"


def grid(title, rows, sizes, cell):
    """One line per server, one column per size; `cell` takes a row and the base's."""
    print(f"\n{title}\n\n| server | " + " | ".join(f"{n} per request" for n in sizes) + " |")
    print("|---|" + "---|" * len(sizes))
    for server in dict.fromkeys(server for server, _ in rows):
        cells = [cell(rows[server, n], rows.get((BASE, n))) if (server, n) in rows else "–" for n in sizes]
        print(f"| {server} | " + " | ".join(cells) + " |")


def model_tables(name, rows, engine):
    sizes = sorted({n for _, n in rows})
    slo = next(iter(rows.values()))["slo_ms"]
    for limit_ms in (slo, 5 * slo):
        rate = lambda row: highest(row, limit_ms)
        grid(
            f"### {name}: samples/s at the highest rate with p99 ≤ {limit_ms:g} ms",
            rows,
            sizes,
            lambda row, base: number(rate(row)) + ratio(rate(row), base and rate(base)),
        )
    closed = lambda row: mean(row, "samples_per_s")
    grid(
        f"### {name}: four callers, samples/s in the two rounds, and the ratio of their means",
        rows,
        sizes,
        lambda row, base: f"{span(row)}{ratio(closed(row), base and closed(base))}",
    )
    if any("perf_analyzer_samples_per_s" in row for row in rows.values()):
        analysed = {key: row for key, row in rows.items() if "perf_analyzer_samples_per_s" in row}
        told = lambda row: row["perf_analyzer_samples_per_s"]
        grid(
            f"### {name}: four callers of perf_analyzer, samples/s",
            analysed,
            sizes,
            lambda row, base: number(told(row)) + ratio(told(row), base and told(base)),
        )
    print(f"\n### {name}: µs per request, one caller\n\n| server | samples | CPU | model | everything else |\n|---|---|---|---|---|")
    for (server, n), row in rows.items():
        if "overhead_us_per_request" in row:
            keys = "cpu_us_per_request", "model_us_per_request", "overhead_us_per_request"
            print(f"| {server} | {n} | " + " | ".join(number(row[key]) for key in keys) + " |")
    print(f"\n### {name}: the engine in process, samples/s\n\n| variant | " + " | ".join(f"{n} per request" for n in sizes) + " |")
    print("|---|" + "---|" * len(sizes))
    for variant in dict.fromkeys(variant for variant, _ in engine):
        print(f"| {variant} | " + " | ".join(number(engine.get((variant, n)) and sum(engine[variant, n]) / len(engine[variant, n])) for n in sizes) + " |")


def main():
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    wanted = sys.argv[1] if len(sys.argv) > 1 else rows[-1]["cpu"]
    rows = [row for row in rows if wanted in row["cpu"]]
    compared = [row for row in rows if row["bench"] == "server-compare"]
    for name in dict.fromkeys(row["model"] for row in compared):
        own = [row for row in compared if row["model"] == name]
        served = {(row["server"], row["samples"]): row for row in own if "closed" in row}
        engine = {(row["server"], row["samples"]): row["samples_per_s"] for row in own if "closed" not in row}
        model_tables(name, {key: served[key] for key in sorted(served)}, engine)
    for row in rows:
        if row["bench"] == "server-overload":
            print("\n### overload\n\n" + json.dumps(row, indent=1))


if __name__ == "__main__":
    main()
