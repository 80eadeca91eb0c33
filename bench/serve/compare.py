"""Hither against PyTorch and FBGEMM in one interleaved run, on the same ids and weights.

    bench/serve/setup.sh
    cargo build --release
    target/bench-venv/bin/python bench/serve/compare.py [--only NAME ...] [--traces DIR]

Prints the table of figures; rows with machine facts go to bench/results/serve-compare.jsonl.
Progress goes to stderr. Exit 0: every figure was reached; 1: some were not; 2: it did not run.
"""

import argparse
import fnmatch
import gc
import json
import os
import pathlib
import shutil
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hither", default=str(ROOT / "target/release/hither"))
    parser.add_argument("--only", nargs="+", metavar="NAME", help="cases, * as a wildcard")
    parser.add_argument("--list", action="store_true", help="name the cases and end")
    parser.add_argument("--traces", type=pathlib.Path, metavar="DIR", help="real id traces")
    parser.add_argument("--memory-gb", type=float, default=4.2, help="most bytes of tables")
    parser.add_argument("--pooling-max", type=int, help="most ids a bag")
    parser.add_argument("--batches", type=int, help="batches a pass, for every case")
    parser.add_argument("--rounds", type=int, help="rounds, for every case (else 7 to 41)")
    parser.add_argument("--levers", help="passed on to `hither bench`")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "target/bench-serve")
    parser.add_argument("--keep", action="store_true", help="keep the models in --work")
    parser.add_argument(
        "--peer-huge-pages", action="store_true", help="PyTorch asks for huge pages too"
    )
    parser.add_argument(
        "--out", type=pathlib.Path, default=ROOT / "bench/results/serve-compare.jsonl"
    )
    parser.add_argument("--append", action="store_true", help="add to --out instead of anew")
    return parser.parse_args()


def selected(options):
    import cases

    found = cases.every(options.traces is not None)
    if options.only:
        for pattern in options.only:
            if not any(fnmatch.fnmatch(case.name, pattern) for case in found):
                raise ValueError(f"no case {pattern!r}; --list names them")
        hit = lambda case: any(fnmatch.fnmatch(case.name, p) for p in options.only)
        found = [case for case in found if hit(case)]
    return found


def model_directory(options, case, size):
    """Has Hither make the model that a case needs, unless it is there."""
    import cases

    preset, mode, padding = case.model
    name = f"{preset}-{size.rows}-{mode}" + ("-padding" if padding else "")
    directory = options.work / "models" / name
    if not directory.exists():
        directory.parent.mkdir(parents=True, exist_ok=True)
        command = ["model", "generate", "--preset", preset]
        command += ["--tables", size.tables, "--rows", size.rows]
        command += ["--dtype", "fp32", "--seed", options.seed]
        command += ["--pooling", mode]
        make(options, directory, command, cases.PADDING_INDEX if padding else None)
    return directory


def make(options, directory, command, padding=None):
    """Has Hither make a directory in another place first: half a model is never used."""
    import driven

    partial = options.work / "partial" / directory.name
    shutil.rmtree(partial, ignore_errors=True)
    partial.parent.mkdir(parents=True, exist_ok=True)
    driven.call(options.hither, *command, "-o", partial)
    if padding is not None:
        set_padding(partial / "model.toml", padding)
    partial.rename(directory)


def set_padding(path, index):
    """Gives every table a padding index: a key of model.toml beside its pooling."""
    lines = []
    for line in path.read_text().splitlines():
        lines.append(line)
        if line.startswith("pooling = "):
            lines.append(f"padding = {index}")
    path.write_text("\n".join(lines) + "\n")


def quantised_directory(options, directory, dtype):
    if dtype == "fp32":
        return directory
    smaller = directory.with_name(f"{directory.name}-{dtype}")
    if not smaller.exists():
        make(options, smaller, ["model", "quantise", directory, "--dtype", dtype])
    return smaller


def machine_record(options):
    import fbgemm_gpu
    import torch

    import driven
    import machine
    import peers

    return {
        "bench": "machine",
        "facts": {
            **machine.facts(),
            "hither": driven.call(options.hither, "--version").strip(),
            "torch": torch.__version__,
            "torch_cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "fbgemm_gpu": fbgemm_gpu.__version__,
            "fbgemm_repair": peers.FBGEMM_FACTS,
            "peer_huge_pages": options.peer_huge_pages,
            "memory_gb_max": options.memory_gb,
            "seed": options.seed,
        },
    }


def run(options, chosen, write):
    """All cases, model by model; the peers' tables are freed between models."""
    import cases
    import contest

    rows, model, key = [], None, None
    made = set()
    for number, case in enumerate(chosen, 1):
        size = cases.size(case.preset, options.memory_gb * 1e9, options.pooling_max)
        directory = model_directory(options, case, size)
        if case.model != key:
            model, key = None, case.model
            gc.collect()
            remove(made, options)
            model = contest.Model(directory)
        made.add(directory)
        used = quantised_directory(options, directory, case.dtype)
        made.add(used)
        print(f"[{number}/{len(chosen)}] {case.name}", file=sys.stderr, flush=True)
        for row in contest.run(case, model, used, size, options):
            rows.append(row)
            write(row)
            print("    " + line(row), file=sys.stderr, flush=True)
    remove(made, options)
    return rows


def remove(made, options):
    if not options.keep:
        for directory in made:
            shutil.rmtree(directory)
    made.clear()


def line(row):
    goal = "-" if row["goal"] is None else f"{row['goal']:.2f}"
    word = {None: "", True: "ok", False: "below"}[row["ok"]]
    difference = row.get("max_abs_difference")
    difference = "" if difference is None else f"{difference:.1e}"
    return (
        f"{row['case']:<28} {row['against']:<19} {row['variant']:<23} {goal:>6} {row['reached']:>8.2f} "
        f"{row['reached_by_minima']:>8.2f} {word:<6} {row['hither_ms_median']:>10.3f} "
        f"{row['peer_ms_median']:>10.3f} {difference:>8}"
    )


def table(rows):
    head = (
        f"{'case':<28} {'against':<19} {'variant':<23} {'goal':>6} {'reached':>8} {'minima':>8} {'':<6} "
        f"{'hither ms':>10} {'peer ms':>10} {'max diff':>8}"
    )
    print(head)
    for row in rows:
        print(line(row))
    for text in sorted({f"{r['preset']}: {what}" for r in rows for what in r["reduced"]}):
        print(f"reduced to fit --memory-gb or --pooling-max: {text}")


def main():
    options = arguments()
    if options.peer_huge_pages:
        os.environ["THP_MEM_ALLOC_ENABLE"] = "1"  # PyTorch reads it when it first allocates
    try:
        chosen = selected(options)
        if options.list:
            print("\n".join(case.name for case in chosen))
            return 0
        machine = machine_record(options)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with open(options.out, "a" if options.append else "w") as out:

            def write(record):
                out.write(json.dumps(record) + "\n")
                out.flush()

            write(machine)
            rows = run(options, chosen, write)
    except (ValueError, OSError) as error:
        print(f"compare.py: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        if type(error).__module__ not in ("driven", "fbgemm_repair"):
            raise
        print(f"compare.py: {error}", file=sys.stderr)
        return 2
    table(rows)
    return 0 if all(row["ok"] is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
