"""One case: the peers and Hither on the same ids and weights, pass by pass in turn."""

import functools
import math
import statistics
import time

import safetensors
import torch
from safetensors.torch import load_file

import cases
import driven
import ids
import machine
import peers

ROUNDS_MIN, ROUNDS_MAX, CASE_S = 7, 41, 6.0
REST_S = 0.01  # OpenMP's threads spin a little after a pass; none may while another runs


class Model:
    """The weights on disk and, for the peers, in PyTorch's own memory."""

    def __init__(self, directory):
        self.directory = directory
        with safetensors.safe_open(directory / "model.safetensors", "pt") as file:
            names = set(file.keys())
            # A clone: PyTorch's allocator, not pages of the file that Hither maps too.
            table = lambda t: file.get_tensor(f"emb_l.{t}.weight").clone()
            count = sum(name.startswith("emb_l.") for name in names)
            self.tables = [table(t) for t in range(count)]
            self.bottom = self.layers(file, names, "bot_l")
            self.top = self.layers(file, names, "top_l")
        self.built = {}

    @staticmethod
    def layers(file, names, stack):
        found = []
        while f"{stack}.{2 * len(found)}.weight" in names:
            prefix = f"{stack}.{2 * len(found)}"
            tensor = lambda part: file.get_tensor(f"{prefix}.{part}").clone()
            found.append((tensor("weight"), tensor("bias")))
        return found

    def once(self, key, make):
        """What is dear to build is built once for all cases of this model."""
        if key not in self.built:
            self.built[key] = make()
        return self.built[key]

    def keep_only(self, dtype):
        """Frees the tables of other types that peers built."""
        self.built = {key: made for key, made in self.built.items() if key[1] == dtype}


def candidates(model, case, peer):
    """The set-ups of a peer from which the fastest is taken, by name."""
    padding = cases.PADDING_INDEX if case.padding else None
    float_bags = lambda index_type: peers.TorchBags().setup(
        model.tables, case.mode, padding, index_type
    )
    named = lambda make: {
        str(kind).removeprefix("torch."): functools.partial(make, kind)
        for kind in peers.INDEX_TYPES
    }
    if peer == "PyTorch fp32":
        return named(float_bags)
    if peer.startswith("PyTorch int"):
        make = lambda: peers.TorchQuantised().setup(model.tables, case.dtype)
        packed = model.once(("torch", case.dtype), make)

        def quantised(index_type):
            other = peers.TorchQuantised()
            other.op = packed.op
            return other.share(packed.tables, index_type)

        return named(quantised)
    if peer.startswith("FBGEMM"):
        make = lambda: peers.Fbgemm().setup(model.tables, case.dtype)
        return {"int32": lambda: model.once(("fbgemm", case.dtype), make)}
    if peer == "PyTorch model fp32":
        return stacks(model, case, torch.float32, {"": model.tables})
    if peer == "PyTorch model bf16":
        make = lambda: [table.bfloat16() for table in model.tables]
        half = model.once(("bf16 tables", case.dtype), make)
        tables = {" fp32 tables": model.tables, " bf16 tables": half}
        return stacks(model, case, torch.bfloat16, tables)
    raise ValueError(f"no peer {peer!r}")


def stacks(model, case, dtype, tables):
    """Whole models: each way to run the MLPs over each kind of tables."""

    def make(kind, kept):
        bags = peers.TorchBags().setup(kept)
        return peers.Dlrm().setup(bags, model.bottom, model.top, kind, dtype, case.batch)

    return {
        kind + suffix: functools.partial(make, kind, kept)
        for kind in peers.STACKS
        for suffix, kept in tables.items()
    }


def inputs(case, size, batches, seed, traces, dense_width):
    """Ids (and dense features) of all batches: as arrays for the file, and batch by batch."""
    padding = (cases.PADDING_INDEX, cases.PADDING_SHARE) if case.padding else None
    indices, offsets = ids.make(
        case.hotness,
        size.tables,
        size.rows,
        batches,
        case.batch,
        size.pooling,
        seed,
        traces,
        padding,
    )
    raw = list(ids.split(indices, offsets, size.tables, case.batch))
    dense = None
    if case.stage == "model":
        dense = ids.dense(batches, case.batch, dense_width, seed)
        parts = dense.reshape(batches, case.batch, dense_width)
        raw = [(*one, part) for one, part in zip(raw, parts)]
    return indices, offsets, dense, raw


def difference(entry, written):
    """Largest absolute difference between a peer's outputs and Hither's."""
    largest, at = 0.0, 0
    for output in entry.outputs():
        rows = written[at : at + len(output)].reshape(len(output), -1)
        if rows.shape != output.shape:
            raise driven.HitherFailed(
                f"output has shape {tuple(rows.shape)} a batch, the peer's {tuple(output.shape)}"
            )
        largest = max(largest, (output - rows).abs().max().item())
        at += len(output)
    if at != len(written):
        raise driven.HitherFailed(f"output has {len(written)} rows, the peer's {at}")
    return largest


def variant_for(variants, peer):
    """Hither's variant that answers a peer: of its type for models, else the first."""
    if peer.startswith("PyTorch model"):
        wanted = peer.rsplit(" ", 1)[1]
        for variant in variants:
            if wanted in variant.replace("_", "-").split("-"):
                return variant
        raise driven.HitherFailed(f"no variant {wanted} among {variants}")
    return next(variant for variant in variants if variant != "touch")


def interleave(entries, hither, rounds=None):
    """Times of every peer and variant, round by round."""
    hither.go()
    first = sum(entry.go() for entry in entries) * 1e-9
    start = time.monotonic()
    hither.go()
    first += time.monotonic() - start
    if rounds is None:
        rounds = min(max(math.ceil(CASE_S / first), ROUNDS_MIN), ROUNDS_MAX)
    times = {entry.name: [] for entry in entries}
    for _ in range(rounds):
        for entry in entries:
            time.sleep(REST_S)
            times[entry.name].append(entry.go())
        time.sleep(REST_S)
        for variant, ns in hither.go().items():
            times.setdefault(("hither", variant), []).append(ns)
    return times


def verdict(theirs, ours, goal):
    """Ratio of a peer's times to ours: above one means that Hither is faster."""
    by_round = [a / b for a, b in zip(theirs, ours, strict=True)]
    reached = statistics.median(by_round)
    ms = lambda ns: round(ns * 1e-6, 4)
    return {
        "goal": goal,
        "reached": round(reached, 3),
        "reached_by_minima": round(min(theirs) / min(ours), 3),
        "lowest_round": round(min(by_round), 3),
        "highest_round": round(max(by_round), 3),
        "ok": None if goal is None else reached >= goal,
        "peer_ms_median": ms(statistics.median(theirs)),
        "peer_ms_min": ms(min(theirs)),
        "hither_ms_median": ms(statistics.median(ours)),
        "hither_ms_min": ms(min(ours)),
        "rounds": len(ours),
    }


def bench_arguments(case, directory, ids_file, output, levers):
    arguments = ["bench", case.stage, directory, "--ids", ids_file, "--batch", case.batch]
    arguments += ["--threads", case.threads, "--write-output", output]
    return arguments + (["--levers", levers] if levers else [])


def run(case, model, directory, size, options):
    """One case; yields a record for every peer with its figure."""
    torch.set_num_threads(case.threads)
    model.keep_only(case.dtype)
    batches = options.batches or case.batches
    width = model.bottom[0][0].shape[1] if model.bottom else 0
    indices, offsets, dense, raw = inputs(
        case, size, batches, options.seed, options.traces, width
    )
    ids_file = options.work / "ids" / f"{case.name}.safetensors"
    output = options.work / "ids" / f"{case.name}.output.safetensors"
    ids.write(ids_file, indices, offsets, dense)
    entries, trials = [], {}
    for peer in case.goals:
        if peer == cases.TOUCH:
            continue
        entry, took = peers.fastest(candidates(model, case, peer), raw)
        trials[peer] = {"chosen": entry.name, "ms": {k: ns * 1e-6 for k, ns in took.items()}}
        entry.name = peer
        entries.append(entry)
    arguments = bench_arguments(case, directory, ids_file, output, options.levers)
    with driven.Driven(options.hither, *arguments) as hither:
        written = load_file(output)["output"].float()
        times = interleave(entries, hither, options.rounds)
        ready = hither.ready
    unique = ids.unique_share(indices, offsets, size.tables, case.batch)
    common = {
        "bench": "serve-compare",
        "case": case.name,
        **{k: getattr(case, k) for k in ("preset", "stage", "dtype", "mode", "hotness")},
        **{k: getattr(case, k) for k in ("batch", "threads")},
        "batches": batches,
        "padding_share": cases.PADDING_SHARE if case.padding else 0.0,
        "tables": size.tables,
        "rows": size.rows,
        "dim": size.dim,
        "pooling": size.pooling,
        "table_gb": round(size.table_bytes * 1e-9, 3),
        "reduced": list(size.reduced),
        "unique_share": round(unique, 4),
        "peer_huge_page_share": machine.huge_share(),
        "load_average": machine.load_average(),
        "hither_ready": ready,
        "hither_variants_ms": {
            key[1]: round(statistics.median(ns) * 1e-6, 4)
            for key, ns in times.items()
            if isinstance(key, tuple)
        },
    }
    by_name = {entry.name: entry for entry in entries}
    for peer, goal in case.goals.items():
        if peer == cases.TOUCH:
            if ("hither", "touch") not in times:
                raise driven.HitherFailed(f"no variant touch among {ready['variants']}")
            variant = variant_for(ready["variants"], peer)
            theirs = times["hither", "touch"]
            extra = {}
        else:
            variant = variant_for(ready["variants"], peer)
            theirs = times[peer]
            extra = {"peer_setup": trials[peer]}
            extra["max_abs_difference"] = difference(by_name[peer], written)
        found = verdict(theirs, times["hither", variant], goal)
        yield {**common, "against": peer, "variant": variant, **found, **extra}
    output.unlink()
    ids_file.unlink()
