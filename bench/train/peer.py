"""What the peers' programs share: arguments, the clock, memory, the choice of the fastest way.

A peer's program names the ways ("backends") in which its library can run a case. Without --backend
each is tried in a process of its own, and the fastest runs: a library is judged by its best.
"""

import argparse
import glob
import json
import os
import resource
import subprocess
import sys
import time

CASES = {
    # model, nodes a batch (none: the whole graph at once)
    "sage-minibatch": ("sage", 1024),
    "gcn-full": ("gcn", None),
    "sage-full": ("sage", None),
}
LAYERS, HIDDEN, FANOUT, LEARNING_RATE = 2, 256, 10, 0.01
# Batches of a trial; an epoch of mini-batches is longer than a choice needs.
TRIAL_BATCHES = 12


def arguments(doc):
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--dataset", required=True, help="a file in Hither's mapped form")
    parser.add_argument("--case", required=True, choices=CASES)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=4, help="the first is warm-up")
    parser.add_argument("--backend", help="one way instead of the fastest")
    parser.add_argument("--batches", type=int, help="end an epoch after so many")
    parser.add_argument("--profile", action="store_true", help="shares of operators (full batches)")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def rss_mb():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def workers_mb():
    """Peaks of the processes that load batches, which live as long as this one."""
    found = 0
    for path in glob.glob("/proc/self/task/*/children"):
        for child in open(path).read().split():
            lines = open(f"/proc/{child}/status").read().splitlines()
            found += sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return found * 1024 / 1e6


class Meter:
    """Peak memory over what the process held once the dataset was loaded."""

    def __init__(self):
        self.loaded_mb = rss_mb()

    def facts(self):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
        return {
            "rss_loaded_mb": round(self.loaded_mb, 1),
            "rss_peak_mb": round(peak, 1),
            # If loading itself peaked higher than training did, the share of training is unknown
            # and this is its upper bound.
            "rss_peak_over_loaded_mb": round(peak - self.loaded_mb, 1),
            "rss_peak_workers_mb": round(workers_mb(), 1),
        }


def fastest(program, options, backends, needed_gb):
    """Tries each backend in its own process. The name of the fastest, and what each took or why it
    is out: no memory, an error, or (full batches all begin alike) not the first one's loss."""
    found = {}
    for backend in backends:
        needed, free = needed_gb(backend), available_gb()
        if needed > 0.8 * free:
            found[backend] = f"needs {needed:.0f} GB, {free:.0f} GB are free"
        else:
            found[backend] = trial(program, options, backend)
    ran = {name: value for name, value in found.items() if isinstance(value, dict)}
    if not ran:
        sys.exit(f"{program}: no backend ran: {found}")
    usual = next(iter(ran.values()))["loss"]
    for name, value in ran.items():
        if CASES[options.case][1] is None and abs(value["loss"] - usual) > 0.02 * usual:
            found[name] = f"wrong: loss {value['loss']:.4f}, expected {usual:.4f}"
        else:
            found[name] = value["seconds"]
    for name, value in found.items():
        print(f"    {name}: {value}", file=sys.stderr, flush=True)
    timed = {name: value for name, value in found.items() if isinstance(value, float)}
    return min(timed, key=timed.get), found


def trial(program, options, backend):
    command = [sys.executable, "-W", "ignore", program, "--backend", backend, "--epochs", "3"]
    command += ["--dataset", options.dataset, "--case", options.case]
    command += ["--threads", str(options.threads), "--batches", str(TRIAL_BATCHES)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1][:200]
    record = json.loads(done.stdout.splitlines()[-1])
    return {"seconds": min(record["seconds"][1:]), "loss": record["loss"]}


def available_gb():
    with open("/proc/meminfo") as file:
        line = next(line for line in file if line.startswith("MemAvailable"))
    return int(line.split()[1]) * 1024 / 1e9


def epochs(options, epoch):
    """Seconds of each epoch, by the clock and of all threads' work; the loss of the last one."""
    seconds, cpu_seconds, loss = [], [], None
    for _ in range(options.epochs):
        start, cpu_start = time.perf_counter(), time.process_time()
        loss = epoch()
        seconds.append(round(time.perf_counter() - start, 5))
        cpu_seconds.append(round(time.process_time() - cpu_start, 5))
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "loss": loss}


class Phases:
    """How an epoch of batches divides: until a batch is there (sampled, its features gathered), and
    learning from it."""

    def __init__(self):
        self.load_s, self.learn_s = 0.0, 0.0

    def batches(self, loader, parts, most):
        """Batches of a loader, timed by when they are asked for and when they are done with."""
        asked = time.perf_counter()
        for number, batch in enumerate(loader):
            ready = parts(batch)
            begun = time.perf_counter()
            yield ready
            asked, ended = time.perf_counter(), asked
            self.load_s += begun - ended
            self.learn_s += asked - begun
            if number + 1 == most:
                break

    def facts(self):
        whole = self.load_s + self.learn_s
        return {"load_share": round(self.load_s / whole, 3) if whole else None}


def run(name, options, ways):
    """One case by a peer: `ways` is its program, with `backends`, `needed_gb`, `full_epoch`,
    `minibatch_epoch` and `versions`. Prints the record."""
    import torch  # by now the threads are set that it reads when it is imported
    from tensors import Tensors

    trials, backend = None, options.backend
    if backend is None:
        names = ways.backends(options.case, options.threads)
        backend, trials = fastest(ways.__file__, options, names, ways.needed_gb(options))
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads - (1 if backend.endswith("worker") else 0))
    tensors = Tensors(options.dataset)
    meter, phases = Meter(), Phases()
    if CASES[options.case][1] is None:
        epoch = ways.full_epoch(backend, tensors, options.case)
    else:
        epoch = ways.minibatch_epoch(backend, tensors, options.case, options.batches, phases)
    measured = epochs(options, epoch)
    record = {
        "program": name, "case": options.case, "threads": options.threads, **measured,
        **meter.facts(), **phases.facts(), "backend": backend, "trials": trials,
        "versions": {
            "torch": torch.__version__,
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            **ways.versions(),
        },
    }
    print(json.dumps(record), flush=True)
    profiled(options, torch, epoch)


def profiled(options, torch, epoch):
    """One epoch more, under PyTorch's profiler, which keeps too much for an epoch of batches."""
    if options.profile and CASES[options.case][1] is None:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            epoch()
        table = profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=25)
        print(table, file=sys.stderr)
