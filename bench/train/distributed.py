#!/usr/bin/env python3
"""Table and plot of `hither-bench distributed`: distributed.py RESULTS.jsonl [PLOT.svg]

The table goes to standard output as Markdown. Of several lines for the same case the last one counts."""

import json
import sys

MODES = ["llcg", "llcg-stale", "psgd-pa", "ggs", "dgl"]
COLOURS = {"llcg": "#1b6ca8", "llcg-stale": "#5aa9e6", "psgd-pa": "#8d99ae", "ggs": "#d1495b", "dgl": "#edae49"}


def links(gbit):
    return f"{gbit:g} Gbit" if gbit >= 1 else f"{1000 * gbit:g} Mbit"


def read(path):
    rows = {}
    for line in open(path):
        row = json.loads(line)
        if row.get("what") == "distributed":
            rows[row["placement"], row["gbit"], row["mode"]] = row
    cases = [key for key in dict.fromkeys((place, gbit) for place, gbit, _ in rows)]
    order = ["machine", "rack", "network"]
    cases.sort(key=lambda case: (order.index(case[0]), -case[1]))
    return rows, cases


def name(place, gbit):
    return "one machine" if place == "machine" else f"{place}, {links(gbit)}"


def table(rows, cases):
    targets = [reached["target"] for reached in next(iter(rows.values()))["reached"]]
    heads = ["placement, links", "mode"]
    heads += [f"s to {100 * target:g} %" for target in targets]
    heads += ["s per round", "computing", "exposed", "predicted exposed", "predicted round",
              "own machines", "MB counted", "MB by kernel"]
    print("| " + " | ".join(heads) + " |")
    print("|---|---|" + "---:|" * (len(heads) - 2))
    for place, gbit in cases:
        for mode in MODES:
            row = rows.get((place, gbit, mode))
            if row is None:
                continue
            cells = [name(place, gbit), f"`{mode}`"]
            for reached in row["reached"]:
                spent = reached["spent"]
                cells.append(f"{spent['wall_s']:.2f}" if spent else "–")
            every, count = row["all_rounds"], row["all_rounds"]["rounds"]
            # Of DGL only the wall-clock time and the kernel's bytes are known.
            per = lambda key: f"{every[key] / count:.3f}" if key in every else "–"
            cells += [per("wall_s"), per("compute_s"), per("exposed_s"),
                      per("predicted_messages_s"), per("predicted_shared_cores_s"),
                      per("predicted_s")]
            kernel = "–" if place == "machine" else f"{row['kernel_bytes'] / 1e6:.1f}"
            counted = row.get("counted_bytes")
            cells += [f"{counted / 1e6:.1f}" if counted else "–", kernel]
            print("| " + " | ".join(cells) + " |")


def plot(rows, cases, path):
    wide, high, left, bottom, top = 860, 330, 60, 60, 40
    per = lambda row, key: row["all_rounds"][key] / row["all_rounds"]["rounds"]
    most = max(per(row, "wall_s") for row in rows.values()) * 1.05
    scale = (high - bottom - top) / most
    group = (wide - left - 10) / len(cases)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" '
           'font-family="sans-serif" font-size="12">',
           f'<rect width="{wide}" height="{high}" fill="white"/>']
    ground = high - bottom
    step = next(s for s in (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10) if most / s <= 8)
    mark = 0
    while mark * step <= most:
        y = ground - mark * step * scale
        out.append(f'<line x1="{left}" x2="{wide - 10}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{mark * step:g}</text>')
        mark += 1
    out.append(f'<text x="14" y="{(ground + top) / 2}" text-anchor="middle" '
               f'transform="rotate(-90 14 {(ground + top) / 2})">seconds per round</text>')
    for at, (place, gbit) in enumerate(cases):
        x = left + at * group
        bar = group * 0.8 / len(MODES)
        for number, mode in enumerate(MODES):
            row = rows.get((place, gbit, mode))
            if row is None:
                continue
            wall = per(row, "wall_s") * scale
            compute = per(row, "compute_s") * scale if mode != "dgl" else wall
            exposed = wall - compute
            bx = x + group * 0.1 + number * bar
            colour = COLOURS[mode]
            out.append(f'<rect x="{bx:.1f}" y="{ground - compute:.1f}" width="{bar - 1:.1f}" '
                       f'height="{compute:.1f}" fill="{colour}"/>')
            out.append(f'<rect x="{bx:.1f}" y="{ground - compute - exposed:.1f}" '
                       f'width="{bar - 1:.1f}" height="{exposed:.1f}" fill="{colour}" '
                       f'fill-opacity="0.35" stroke="{colour}" stroke-width="0.5"/>')
        middle = x + group / 2
        first, *rest = name(place, gbit).split(", ")
        out.append(f'<text x="{middle:.1f}" y="{ground + 16}" text-anchor="middle">{first}</text>')
        for word in rest:
            out.append(f'<text x="{middle:.1f}" y="{ground + 32}" text-anchor="middle">{word}</text>')
    x = left
    for mode in MODES:
        out.append(f'<rect x="{x}" y="12" width="12" height="12" fill="{COLOURS[mode]}"/>')
        out.append(f'<text x="{x + 17}" y="22">{mode}</text>')
        x += 100
    out.append(f'<text x="{x}" y="22">solid: the slowest rank computes (dgl: all); light: waiting</text>')
    out.append("</svg>\n")
    open(path, "w").write("\n".join(out))


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    rows, cases = read(sys.argv[1])
    table(rows, cases)
    if len(sys.argv) == 3:
        plot(rows, cases, sys.argv[2])
