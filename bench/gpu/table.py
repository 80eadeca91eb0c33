#!/usr/bin/env python3
"""Prints the tables of docs/results-gpu.md from the lines of `hither-bench gpu`.

    hither-bench gpu --traces FOLDER > forecasts.jsonl
    bench/gpu/table.py forecasts.jsonl
"""

import json
import sys


def row(cells):
    print("| " + " | ".join(str(cell) for cell in cells) + " |")


def head(cells):
    row(cells)
    row(["---"] * len(cells))


def ns(variant):
    return max(variant["dram_ns"], variant["l2_ns"], variant["latency_ns"])


def bound(variant):
    return max(("DRAM", "L2", "latency"), key=lambda name: variant[f"{name.lower()}_ns"])


def resources(lines):
    """What each variant takes of an SM: the same whatever the ids."""
    gpus = list(dict.fromkeys(line["forecast"]["gpu"] for line in lines))
    first = {gpu: next(l["forecast"] for l in lines if l["forecast"]["gpu"] == gpu) for gpu in gpus}
    head(["variant", "min blocks"] + [f"{gpu}: {what}" for gpu in gpus for what in
         ("registers", "spilled B", "shared B", "warps/SM", "limited by")])
    for index, one in enumerate(first[gpus[0]]["variants"]):
        cells = [one["variant"], one["min_blocks"]]
        for gpu in gpus:
            v = first[gpu]["variants"][index]
            cells += [v["registers"], v["spill_bytes"], v["shared_bytes"], v["warps"], v["limit"]]
        row(cells)


def caches(lines):
    head(["GPU", "ids", "L1 hits", "L2 hits", "L2 hits, pinned", "DRAM B/lookup", "pinned", "pinned rows' share"])
    for line in lines:
        forecast = line["forecast"]
        plain = next(v for v in forecast["variants"] if v["variant"] == "vec4")["traffic"]
        pinned = next(v for v in forecast["variants"] if v["variant"] == "pin-prefetch")["traffic"]
        row([forecast["gpu"], line["ids"], f"{plain['l1_hits']:.1%}", f"{plain['l2_hits']:.1%}",
             f"{pinned['l2_hits']:.1%}", f"{plain['dram_bytes']:.0f} → {pinned['dram_bytes']:.0f}",
             f"{forecast['pinned_bytes'] / 1e6:.1f} MB", f"{forecast['pinned_share']:.1%}"])


def by_variant(lines):
    """L1 hits, L2 hits and DRAM bytes per lookup of each variant, at its better register cap."""
    names = list(dict.fromkeys(v["variant"] for v in lines[0]["forecast"]["variants"]))
    head(["GPU", "ids"] + names)
    for line in lines:
        variants = line["forecast"]["variants"]
        best = [min((v for v in variants if v["variant"] == name), key=ns)["traffic"] for name in names]
        row([line["forecast"]["gpu"], line["ids"]]
            + [f"{t['l1_hits']:.0%} / {t['l2_hits']:.0%} / {t['dram_bytes']:.0f}" for t in best])


def agreement(lines):
    """The largest difference between machine code and ids, over all variants and register caps."""
    head(["GPU", "ids", "L1 hits, points", "L2 hits, points", "DRAM bytes", "choice by code", "choice by ids"])
    for line in lines:
        code, ids = line["forecast"], line["by_ids"]
        pairs = [(a["traffic"], b["traffic"]) for a, b in zip(code["variants"], ids["variants"])]
        points = lambda what: max(abs(a[what] - b[what]) for a, b in pairs) * 100
        dram = max(abs(b["dram_bytes"] / max(a["dram_bytes"], 1) - 1) for a, b in pairs if a["dram_bytes"] > 1)
        chosen = [f"{v['variant']}, {v['min_blocks']}" for v in (f["variants"][f["chosen"]] for f in (code, ids))]
        row([code["gpu"], line["ids"], f"{points('l1_hits'):.1f}", f"{points('l2_hits'):.1f}", f"{dram:.1%}"] + chosen)


def gains(lines):
    """The bound of each variant's best register cap against base without a cap."""
    names = list(dict.fromkeys(v["variant"] for v in lines[0]["forecast"]["variants"]))
    head(["GPU", "ids", "base, ns"] + names[1:] + ["bounded by", "chosen"])
    for line in lines:
        variants = line["forecast"]["variants"]
        base = ns(variants[0])
        best = {name: min((v for v in variants if v["variant"] == name), key=ns) for name in names}
        chosen = variants[line["forecast"]["chosen"]]
        row([line["forecast"]["gpu"], line["ids"], f"{base:.3f}"]
            + [f"{base / ns(best[name]):.2f}" for name in names[1:]]
            + [bound(chosen), f"{chosen['variant']}, {chosen['min_blocks']}"])


def in_flight(lines):
    """Bytes in flight against what Little's law asks for."""
    head(["GPU", "variant", "min blocks", "KiB in flight", "KiB wanted", "share"])
    for gpu in dict.fromkeys(line["forecast"]["gpu"] for line in lines):
        forecast = next(l["forecast"] for l in lines if l["forecast"]["gpu"] == gpu and l["ids"] == "random")
        for v in forecast["variants"]:
            flight, wanted = v["in_flight_bytes"] / 1024, v["wanted_bytes"] / 1024
            row([gpu, v["variant"], v["min_blocks"], f"{flight:.0f}", f"{wanted:.0f}", f"{flight / wanted:.2f}"])


def main():
    lines = [json.loads(line) for line in open(sys.argv[1])]
    for table in (resources, caches, by_variant, agreement, in_flight, gains):
        print(f"\n{table.__name__.replace('_', ' ')}\n")
        table(lines)


main()
