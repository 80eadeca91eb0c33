#!/usr/bin/env python3
"""Hither against its peers in one interleaved run, on the same ids and weights.

    bench/serve/compare.py [--only NAME ...] [--traces DIR] [--quick]

Makes the environment and builds Hither first, where they are missing. Prints the table of figures;
rows with machine facts go to bench/results/serve-compare.jsonl, in place of older rows of the same
processor. Progress goes to stderr. Exit 0: every figure was reached; 1: some were not; 2: it did
not run.

A few cases at a time, on a machine that is quiet only now and then: --prepare makes the models
beforehand, and --only with --keep runs some cases and adds their rows.

Cases run in a process of their own. A peer that crashes there ends no other case: PyTorch is tried
again with oneDNN limited to AVX-512 (a hypervisor may hide what AMX needs), and a peer that still
crashes has a row that says so.
"""

import argparse
import fnmatch
import gc
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
VENV = pathlib.Path(os.environ.get("HITHER_BENCH_VENV", ROOT / "target/bench-venv"))
ONEDNN = "ONEDNN_MAX_CPU_ISA"


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
    parser.add_argument("--prepare", action="store_true", help="make the models and end")
    parser.add_argument(
        "--peer-huge-pages", action="store_true", help="PyTorch asks for huge pages too"
    )
    parser.add_argument(
        "--out", type=pathlib.Path, default=ROOT / "bench/results/serve-compare.jsonl"
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds and shorter trials")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--without", type=json.loads, default={}, help=argparse.SUPPRESS)
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


def commit():
    """The commit that is checked out; with a + where files of it were changed."""
    git = lambda *words: subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True)
    changed = git("status", "--porcelain", "--", "crates").stdout.strip()
    return git("rev-parse", "--short", "HEAD").stdout.strip() + ("+" if changed else "")


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
            "commit": commit(),
            "torch": torch.__version__,
            "torch_cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "fbgemm_gpu": fbgemm_gpu.__version__,
            "fbgemm_repair": peers.FBGEMM_FACTS,
            "peer_huge_pages": options.peer_huge_pages,
            "memory_gb_max": options.memory_gb,
            "quick": options.quick,
            "seed": options.seed,
        },
    }


def child(options):
    """Runs cases of one model and tells the parent what happens, a line of JSON at a time."""
    import cases
    import contest

    tell = lambda **event: print(json.dumps(event), flush=True)
    options.announce = lambda case, peer: tell(case=case, peer=peer)
    tell(machine=machine_record(options))
    model = None
    for case in selected(options):
        size = cases.size(case.preset, options.memory_gb * 1e9, options.pooling_max)
        directory = model_directory(options, case, size)
        model = model or contest.Model(directory)
        used = quantised_directory(options, directory, case.dtype)
        options.announce(case.name, None)
        for row in contest.run(case, model, used, size, options):
            if limit := os.environ.get(ONEDNN):
                row["peer_environment"] = f"{ONEDNN}={limit}"
            tell(row=row)
        tell(done=case.name)
        gc.collect()


class Group:
    """Cases of one model, and the children that run them, one after the other."""

    def __init__(self, names, write, without):
        self.pending, self.write = list(names), write
        self.rows, self.machine = [], None
        self.environment, self.without = {}, dict(without)

    def run(self):
        while self.pending:
            case, peer, status = self.attempt()
            if status == 0 or case is None:
                if status:
                    raise ValueError(f"the comparison ended with exit {status}; see above")
                return
            if status > 0:
                raise ValueError(f"{case}: ended with exit {status}; see above")
            died = f"killed by {signal.Signals(-status).name}"
            print(f"    {case}: {peer or 'a peer'} was {died}", file=sys.stderr, flush=True)
            if ONEDNN not in self.environment and ONEDNN not in os.environ:
                self.environment[ONEDNN] = "AVX512_CORE_FP16"
            elif peer and peer not in self.without:
                self.without[peer] = died
            else:
                raise ValueError(f"{case}: {died}, outside of any peer")

    def attempt(self):
        """Runs a child for what is pending. Returns the case and the peer that it was last at."""
        command = [sys.executable, __file__, *sys.argv[1:], "--child", "--only", *self.pending]
        command += ["--without", json.dumps(self.without)]
        environment = {**os.environ, **self.environment}
        case = peer = None
        rows = []
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
            for line in process.stdout:
                event = json.loads(line)
                if "machine" in event:
                    self.machine = self.machine or event["machine"]
                elif "row" in event:
                    rows.append(event["row"])
                elif "done" in event:
                    self.pending.remove(event["done"])
                    for row in rows:
                        self.rows.append(row)
                        self.write(self.machine, row)
                    rows, case, peer = [], None, None
                else:
                    if event["case"] != case:
                        print(event["case"], file=sys.stderr, flush=True)
                    case, peer = event["case"], event["peer"] or peer
        return case, peer, process.returncode


class Results:
    """The file of all rows. Those of other processors stay; this one's are replaced."""

    def __init__(self, path, is_partial):
        self.path, self.is_partial = path, is_partial
        self.own, self.head = [], None
        self.blocks = []
        for line in path.read_text().splitlines() if path.exists() else []:
            record = json.loads(line)
            if record["bench"] == "machine":
                self.blocks.append((record, []))
            else:
                self.blocks[-1][1].append(record)

    def write(self, machine, row):
        self.head = machine
        self.own.append(row)
        print("    " + line(row), file=sys.stderr, flush=True)
        self.save()

    def save(self):
        import machine

        own = machine.identity(self.head["facts"])
        key = lambda row: (row["case"], row["against"], row.get("variant"))
        mine = {key(row) for row in self.own}
        blocks = []
        for head, rows in self.blocks:
            if machine.identity(head["facts"]) == own:
                rows = [r for r in rows if self.is_partial and key(r) not in mine]
            if rows:
                blocks.append((head, rows))
        blocks.append((self.head, self.own))
        lines = [json.dumps(r) for head, rows in blocks for r in (head, *rows)]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_name(self.path.name + ".partial")
        partial.write_text("\n".join(lines) + "\n")
        partial.replace(self.path)


def line(row):
    if "failed" in row:
        return f"{row['case']:<28} {row['against']:<22} failed: {row['failed'].splitlines()[0]}"
    goal = "-" if row["goal"] is None else f"{row['goal']:.2f}"
    word = {None: "", True: "ok", False: "below"}[row["ok"]]
    difference = row.get("max_abs_difference")
    difference = "" if difference is None else f"{difference:.1e}"
    return (
        f"{row['case']:<28} {row['against']:<22} {row['variant']:<23} {goal:>6} {row['reached']:>8.2f} "
        f"{row['reached_by_minima']:>8.2f} {word:<6} {row['hither_ms_median']:>10.3f} "
        f"{row['peer_ms_median']:>10.3f} {difference:>8}"
    )


def table(rows):
    head = (
        f"{'case':<28} {'against':<22} {'variant':<23} {'goal':>6} {'reached':>8} {'minima':>8} {'':<6} "
        f"{'hither ms':>10} {'peer ms':>10} {'max diff':>8}"
    )
    print(head)
    for row in rows:
        print(line(row))
    for text in sorted({f"{r['preset']}: {what}" for r in rows for what in r["reduced"]}):
        print(f"reduced to fit --memory-gb or --pooling-max: {text}")


def prepare(options):
    """The environment and the program, where they are missing. Then starts again inside of it."""
    python = VENV / "bin/python"
    if not python.exists():
        subprocess.run([ROOT / "bench/serve/setup.sh", VENV], check=True)
    if pathlib.Path(sys.prefix).resolve() != VENV.resolve():
        os.execv(python, [str(python), *sys.argv])
    if not options.list and not pathlib.Path(options.hither).exists():
        subprocess.run(["cargo", "build", "--release", "--locked"], cwd=ROOT, check=True)


def prepare_models(options, chosen):
    import cases

    for case in chosen:
        size = cases.size(case.preset, options.memory_gb * 1e9, options.pooling_max)
        quantised_directory(options, model_directory(options, case, size), case.dtype)


def run(options):
    chosen = selected(options)
    if options.list:
        print("\n".join(case.name for case in chosen))
        return 0
    if options.prepare:
        prepare_models(options, chosen)
        return 0
    results = Results(options.out, bool(options.only))
    groups = {}
    for case in chosen:
        groups.setdefault(case.model, []).append(case.name)
    rows = []
    for names in groups.values():
        group = Group(names, results.write, options.without)
        group.run()
        rows += group.rows
        if not options.keep:
            shutil.rmtree(options.work, ignore_errors=True)
    table(rows)
    return 0 if all(row.get("ok") is not False for row in rows) else 1


def main():
    options = arguments()
    if options.peer_huge_pages:
        os.environ["THP_MEM_ALLOC_ENABLE"] = "1"  # PyTorch reads it when it first allocates
    try:
        if options.child:
            child(options)
            return 0
        prepare(options)
        return run(options)
    except (ValueError, OSError, subprocess.CalledProcessError) as error:
        print(f"compare.py: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        if type(error).__module__ not in ("driven", "fbgemm_repair"):
            raise
        print(f"compare.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
