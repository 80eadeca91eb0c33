#!/usr/bin/env python3
"""Prints the rows of bench/results/serve-compare.jsonl as a Markdown table, a column per processor.

    bench/serve/table.py [--only TEXT] [FILE]      (--only: processors whose label holds the text)
"""

import argparse
import json
import pathlib

import machine

ROOT = pathlib.Path(__file__).resolve().parents[2]


def blocks(path):
    """The rows of each processor, under its label."""
    found = {}
    rows = None
    for line in path.read_text().splitlines():
        record = json.loads(line)
        if record["bench"] == "machine":
            rows = found.setdefault(machine.label(record["facts"]), {})
        else:
            rows[record["case"], record["against"], record.get("variant", "")] = record
    return found


def cell(row):
    if row is None:
        return ""
    if "failed" in row:
        return "failed"
    text = f"{row['reached']:.2f} ({row['lowest_round']:.2f}–{row['highest_round']:.2f})"
    return f"**{text}**" if row["ok"] is False else text


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="processors whose label holds this text")
    default = ROOT / "bench/results/serve-compare.jsonl"
    parser.add_argument("file", nargs="?", type=pathlib.Path, default=default)
    options = parser.parse_args()
    found = {name: rows for name, rows in blocks(options.file).items() if options.only in name}
    keys = list(dict.fromkeys(key for rows in found.values() for key in rows))
    print("| case | against | Hither's variant | goal | " + " | ".join(found) + " |")
    print("|---" * (4 + len(found)) + "|")
    for key in keys:
        rows = [rows.get(key) for rows in found.values()]
        # The figure of the newest run: older rows may have been measured against another.
        goal = next((r["goal"] for r in reversed(rows) if r and r.get("goal") is not None), "")
        print("| " + " | ".join([*key, str(goal), *map(cell, rows)]) + " |")


if __name__ == "__main__":
    main()
