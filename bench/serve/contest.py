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
import runtimes

ROUNDS_MIN, ROUNDS_MAX, CASE_S = 7, 41, 6.0
QUICK_ROUNDS_MIN, QUICK_CASE_S = 5, 2.0
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

    def keep_only(self, peer_names):
        """Frees what only other peers need."""
        self.built = {key: made for key, made in self.built.items() if key in peer_names or key == "bf16"}


def by_index_type(make):
    return {
        str(kind).removeprefix("torch."): functools.partial(make, kind)
        for kind in peers.INDEX_TYPES
    }


def candidates(model, case, peer, raw):
    """The set-ups of a peer from which the fastest is taken, by name."""
    if peer == "PyTorch fp32":
        padding = cases.PADDING_INDEX if case.padding else None
        setup = lambda kind: peers.TorchBags().setup(model.tables, case.mode, padding, kind)
        return by_index_type(setup)
    if peer.startswith("PyTorch int"):
        make = lambda: peers.TorchQuantised().setup(model.tables, case.dtype)
        made = model.once(peer, make)
        share = lambda kind: peers.TorchQuantised().share(made.op, made.tables, kind)
        return by_index_type(share)
    if peer.startswith("FBGEMM"):
        made = model.once(peer, lambda: peers.Fbgemm().setup(model.tables, case.dtype))
        return by_index_type(lambda kind: peers.Fbgemm().share(made.op, kind))
    if peer in ("PyTorch model fp32", "PyTorch compiled fp32"):
        return stacks(model, case, torch.float32, {"": model.tables}, raw, peer)
    if peer in ("PyTorch model bf16", "PyTorch compiled bf16"):
        half = model.once("bf16", lambda: [table.bfloat16() for table in model.tables])
        tables = {" fp32 tables": model.tables, " bf16 tables": half}
        return stacks(model, case, torch.bfloat16, tables, raw, peer)
    if peer in runtimes.RUNTIMES:
        make = functools.partial(runtimes.RUNTIMES[peer], model, case)
        return {"": make}
    if case.stage == "mlp":
        _, stack, name = peer.split()
        layers, last = {"bottom": (model.bottom, "relu"), "top": (model.top, "sigmoid")}[stack]
        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[name]
        make = lambda kind: peers.Mlp().setup(layers, last, kind, dtype, case.batch)
        return {kind: functools.partial(make, kind) for kind in peers.STACKS}
    raise ValueError(f"no peer {peer!r}")


def stacks(model, case, dtype, tables, raw, peer):
    """Whole models: each way to run the MLPs over each kind of tables."""
    bags_only = [one[:2] for one in raw]
    setup = lambda kind: peers.TorchBags().setup(model.tables, index_type=kind)
    bags, _ = peers.fastest(by_index_type(setup), bags_only)
    index_type = bags.peer.index_type

    def make(kind, kept):
        bags = peers.TorchBags().setup(kept, index_type=index_type)
        return peers.Dlrm().setup(bags, model.bottom, model.top, kind, dtype, case.batch)

    named = str(index_type).removeprefix("torch.")
    kinds = ["compiled"] if "compiled" in peer else peers.STACKS
    return {
        f"{kind}{suffix} {named}": functools.partial(make, kind, kept)
        for kind in kinds
        for suffix, kept in tables.items()
    }


class Inputs:
    """What all programs are given in one case: in a file for Hither, batch by batch for peers."""

    def __init__(self, case, size, model, batches, options):
        self.case, self.size, self.batches = case, size, batches
        self.tensors = {}
        width = lambda layers: layers[0][0].shape[1]
        made = lambda name, layers: ids.features(
            name, batches, case.batch, width(layers), options.seed
        )
        if case.stage in ("mlp", "model"):
            self.tensors["dense"] = made("dense", model.bottom)
        if case.stage == "mlp":
            self.tensors["features"] = made("features", model.top)
        else:
            self.tensors |= self.bags(options, "measured")

    def planned(self, options):
        """Another sample of the same lookups: what hot rows are chosen by."""
        return self.bags(options, "planned")

    def bags(self, options, sample):
        case, size = self.case, self.size
        padding = (cases.PADDING_INDEX, cases.PADDING_SHARE) if case.padding else None
        shape = (size.tables, size.rows, self.batches, case.batch, size.pooling)
        indices, offsets = ids.make(
            case.hotness, *shape, options.seed, options.traces, padding, sample
        )
        return {"indices": indices, "offsets": offsets}

    def split_bags(self):
        tensors = self.tensors
        return ids.split(tensors["indices"], tensors["offsets"], self.size.tables, self.case.batch)

    def split_rows(self, name):
        tensor = self.tensors[name]
        return tensor.reshape(self.batches, self.case.batch, tensor.shape[1])

    def raw(self, peer):
        """The batches as a peer's `prepare` takes them."""
        if self.case.stage == "bags":
            return list(self.split_bags())
        if self.case.stage == "model":
            return [(*one, x) for one, x in zip(self.split_bags(), self.split_rows("dense"))]
        name = "dense" if "bottom" in peer else "features"
        return [(x,) for x in self.split_rows(name)]

    def unique_share(self):
        if self.case.stage == "mlp":
            return None
        tensors, tables = self.tensors, self.size.tables
        share = ids.unique_share(tensors["indices"], tensors["offsets"], tables, self.case.batch)
        return round(share, 4)


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


def variant_for(variants, peer, stage):
    """Hither's variant that answers a peer: of its type and stack, or else the first."""
    if stage == "bags":
        return next(variant for variant in variants if variant != "touch")
    wanted = peer.split()[-1] if stage == "model" else "-".join(peer.split()[1:])
    if wanted not in variants:
        raise driven.HitherFailed(f"no variant {wanted} among {variants}")
    return wanted


def interleave(entries, hither, options):
    """Times of every peer and variant, round by round."""
    rounds = options.rounds
    least, seconds = (QUICK_ROUNDS_MIN, QUICK_CASE_S) if options.quick else (ROUNDS_MIN, CASE_S)
    hither.go()
    first = sum(entry.go() for entry in entries) * 1e-9
    start = time.monotonic()
    hither.go()
    first += time.monotonic() - start
    if rounds is None:
        rounds = min(max(math.ceil(seconds / first), least), ROUNDS_MAX)
    times = {("peer", entry.name): [] for entry in entries}
    for _ in range(rounds):
        for entry in entries:
            time.sleep(REST_S)
            times["peer", entry.name].append(entry.go())
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


def bench_arguments(case, directory, ids_file, plan_file, output, options):
    levers = options.levers
    arguments = ["bench", case.stage, directory, "--ids", ids_file, "--batch", case.batch]
    arguments += ["--threads", case.threads, "--write-output", output, "--force"]
    if options.quick:
        arguments += ["--seconds", 2]
    if case.stage == "bags":
        levers = levers or levers_for(case, options.quick)
        arguments += ["--plan-ids", plan_file, "--levers", levers]
    return arguments


def levers_for(case, quick):
    """What Hither chooses from by itself; a quick run tries only what can gain."""
    if quick and case.hotness not in ("high", "medium"):
        return "pages+prefetch"
    return "auto"


def enter(case, model, inputs, options):
    """The peers of a case, each in its fastest set-up, and what was tried."""
    entries, trials = [], {}
    for peer in case.goals:
        if peer == cases.TOUCH or peer in options.without:
            continue
        options.announce(case.name, peer)
        raw = inputs.raw(peer)
        try:
            passes = 1 if options.quick else 3
            entry, took = peers.fastest(candidates(model, case, peer, raw), raw, passes)
        except runtimes.Unavailable as error:
            trials[peer] = {"failed": str(error)}
            continue
        took = {name: round(ns * 1e-6, 4) for name, ns in took.items()}
        trials[peer] = {"chosen": entry.name, "tried_ms": took}
        entry.name = peer
        entries.append(entry)
    return entries, trials


def facts(case, inputs, ready, times):
    size = inputs.size
    told = ("preset", "stage", "dtype", "mode", "hotness", "batch", "threads")
    medians = {
        key[1]: round(statistics.median(ns) * 1e-6, 4)
        for key, ns in times.items()
        if key[0] == "hither"
    }
    return {
        "bench": "serve-compare",
        "case": case.name,
        **{name: getattr(case, name) for name in told},
        "batches": inputs.batches,
        "padding_share": cases.PADDING_SHARE if case.padding else 0.0,
        "tables": size.tables,
        "rows": size.rows,
        "dim": size.dim,
        "pooling": size.pooling,
        "table_gb": round(size.table_bytes * 1e-9, 3),
        "reduced": list(size.reduced),
        "unique_share": inputs.unique_share(),
        "peer_huge_page_share": machine.huge_share(),
        "load_average": machine.load_average(),
        "hither_ready": ready,
        "hither_variants_ms": medians,
    }


def run(case, model, directory, size, options):
    """One case; yields a record for every peer with its figure."""
    torch.set_num_threads(case.threads)
    model.keep_only(case.goals)
    inputs = Inputs(case, size, model, options.batches or case.batches, options)
    ids_file = options.work / "ids" / f"{case.name}.safetensors"
    output = options.work / "ids" / f"{case.name}.output.safetensors"
    ids.write(ids_file, inputs.tensors)
    plan_file = options.work / "ids" / f"{case.name}.plan.safetensors"
    if case.stage == "bags":
        ids.write(plan_file, inputs.planned(options))
    entries, trials = enter(case, model, inputs, options)
    options.announce(case.name, None)
    arguments = bench_arguments(case, directory, ids_file, plan_file, output, options)
    with driven.Driven(options.hither, *arguments) as hither:
        written = load_file(output)
        times = interleave(entries, hither, options)
        ready = hither.ready
    common = facts(case, inputs, ready, times)
    by_name = {entry.name: entry for entry in entries}
    for peer, goal in case.goals.items():
        if peer in options.without or "failed" in trials.get(peer, {}):
            why = options.without.get(peer) or trials[peer]["failed"]
            yield {**common, "against": peer, "failed": why}
            continue
        variant = variant_for(ready["variants"], peer, case.stage)
        if peer == cases.TOUCH:
            if ("hither", "touch") not in times:
                raise driven.HitherFailed(f"no variant touch among {ready['variants']}")
            theirs, extra = times["hither", "touch"], {}
        else:
            theirs, extra = times["peer", peer], {"peer_setup": trials[peer]}
            name = "output" if case.stage != "mlp" else peer.split()[1]
            extra["max_abs_difference"] = difference(by_name[peer], written[name].float())
        found = verdict(theirs, times["hither", variant], goal)
        yield {**common, "against": peer, "variant": variant, **found, **extra}
    for file in (output, ids_file, plan_file):
        file.unlink(missing_ok=True)
