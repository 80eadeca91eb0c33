#!/usr/bin/env python3
"""Hither's server against Triton and FastAPI, on one core each for server and client.

    target/server-venv/bin/python bench/server/compare.py --hither target/release/hither

For every model and size of request, all servers are started, each pinned to core 0, and `hither load`
on core 1 asks them in turn, in two rounds: four and 32 callers in a closed loop, then open loops at shares of the
most that those reached. Servers that batch do more with many callers. The result is the highest rate with p99 within
the SLO. One and four callers then tell the server's CPU time beside the model's own. What others take of the machine is noted,
a disturbed measurement is repeated once, and a rate that failed while the machine's host ran something else is offered
again. Rows go to bench/results/server-compare.jsonl, in place of older rows of
the same processor, model, size and server, so that cases can be run one at a time.
"""

import argparse
import csv
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PEERS = ROOT / "bench/serve"
sys.path.insert(0, str(PEERS))

import machine
from triton import Triton, await_ready, environment

RESULTS = ROOT / "bench/results/server-compare.jsonl"
SERVER_CORE, CLIENT_CORE = 0, 1
TICKS = os.sysconf("SC_CLK_TCK")

# Rows are fewer than the presets' (1M, 500K, 1M), so that a copy for every server fits into 8 GB.
MODELS = {
    "mlperf": {"rows": 100_000, "tables": 26, "ids_per_bag": 1, "dense": 13},
    "rm1": {"rows": 100_000, "tables": 32, "ids_per_bag": 80, "dense": 2048},
    "rm2_1": {"rows": 40_000, "tables": 60, "ids_per_bag": 120, "dense": 256},
}
ROUNDS = 2
# Callers that keep batches full.
CROWD = 32
# Shares of a server's own capacity that the open loop offers.
SHARES = [0.05, 0.1, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
TRIES = 2
# Cores that others may use during a measurement.
OTHERS_MAX = 0.15
# The share of a window that the host of a virtual machine may take: half a per cent of a second of two
# cores is one tick of the system's clock.
STOLEN_MAX = 0.005
# Before each measurement both cores must run for so long without a gap of more than a millisecond; after so many
# failed looks, a second apart, it begins all the same.
CALM_S, CALM_GAP_S, CALM_LOOKS = 0.15, 1e-3, 20
# A rate that failed while the host took more than that is offered again, so many times at the most.
RETRIES = 2
SERVERS = {
    "hither-fp32": {"kind": "hither", "mlp": "fp32"},
    "hither-bf16": {"kind": "hither", "mlp": "bf16"},
    "hither-bf16-rows": {"kind": "hither", "mlp": "bf16", "rows": "bf16"},
    "hither-int8": {"kind": "hither", "mlp": "bf16", "rows": "int8"},
    "hither-int4": {"kind": "hither", "mlp": "bf16", "rows": "int4"},
    "triton-torch-fp32": {"kind": "triton", "engine": "torch-fp32"},
    "triton-torch-bf16": {"kind": "triton", "engine": "torch-bf16"},
    "triton-fbgemm-int8": {"kind": "triton", "engine": "fbgemm-int8"},
    "triton-onnx": {"kind": "triton", "engine": "onnx"},
    "fastapi-torch-fp32": {"kind": "fastapi", "engine": "torch-fp32"},
}


def run(command, **more):
    return subprocess.run([str(word) for word in command], check=True, text=True, **more)


def make_model(hither, name, work):
    shape, directory = MODELS[name], work / f"model-{name}-{MODELS[name]['rows']}"
    if not (directory / "model.safetensors").exists():
        run([hither, "model", "generate", "--preset", name, "--rows", shape["rows"], "--seed", 1, "-o", directory])
    return directory


def with_rows(hither, model, dtype):
    """The model with tables of another type."""
    directory = model.with_name(f"{model.name}-{dtype}")
    if not (directory / "model.safetensors").exists():
        run([hither, "model", "quantise", model, "--dtype", dtype, "-o", directory])
    return directory


def peer_environment(shape, model, engine, samples, facts):
    env = environment()
    env.update(
        DLRM_PATH=f"{HERE}{os.pathsep}{PEERS}",
        DLRM_MODEL=str(model),
        DLRM_IDS_PER_BAG=str(shape["ids_per_bag"]),
        DLRM_ENGINE=engine,
        DLRM_SAMPLES=str(samples),
        DLRM_FACTS=str(facts),
        DLRM_DENSE=str(shape["dense"]),
        DLRM_WIDTH=str(shape["tables"] * shape["ids_per_bag"]),
        DLRM_TABLE_ROWS=",".join([str(shape["rows"])] * shape["tables"]),
        # PyTorch's own switch for huge pages: its best setting here.
        THP_MEM_ALLOC_ENABLE="1",
    )
    if engine in ("torch-bf16", "fbgemm-int8"):
        env.update(onednn_settings(env))
    env["PYTHONPATH"] = f"{HERE}:{PEERS}:{env['PYTHONPATH']}"
    return env


def onednn_settings(env):
    """The most of this processor that PyTorch's bf16 runs with: oneDNN finds AMX, but cannot use it, in a virtual
    machine that hides the shape of tiles."""
    layer = "import torch; torch.nn.Linear(64, 64).bfloat16()(torch.randn(16, 64).bfloat16())"
    for isa in ("ALL", "AVX512_CORE_FP16", "AVX512_CORE_BF16", "AVX512_CORE"):
        setting = {"ONEDNN_MAX_CPU_ISA": isa}
        done = subprocess.run([sys.executable, "-c", layer], env={**env, **setting}, capture_output=True)
        if done.returncode == 0:
            return setting
    return {}


class Hither:
    """`hither serve` on one core, as a user starts it; `rows` is the type of its tables, fp32 unless told."""

    def __init__(self, args, shape, model, mlp, port, more="", rows=None):
        name = f"{mlp}-{rows}" if rows else mlp
        model = with_rows(args.hither, model, rows) if rows else model
        repository = args.work / f"repository-{name}"
        shutil.rmtree(repository, ignore_errors=True)
        (repository / "dlrm").mkdir(parents=True)
        (repository / "dlrm/1").symlink_to(model.resolve())
        config = f'ids_per_bag = {shape["ids_per_bag"]}\nmlp = "{mlp}"\n{more}'
        (repository / "dlrm/config.toml").write_text(config)
        log = args.work / f"hither-{name}.log"
        ports = ["--http-port", port, "--grpc-port", port + 1, "--metrics-port", port + 2]
        command = ["taskset", "-c", SERVER_CORE, args.hither, "serve", repository, "--threads", 1, *ports]
        self.process = subprocess.Popen([str(w) for w in command], stdout=open(log, "w"), stderr=subprocess.STDOUT)
        await_ready(f"http://127.0.0.1:{port}/v2/health/ready", self.process, log)
        self.url, self.facts = f"grpc://127.0.0.1:{port + 1}", {"mlp": mlp, "rows": rows or "fp32"}
        self.metrics = f"http://127.0.0.1:{port + 2}/metrics"
        # Until then tables are being copied, on the same core.
        while metric(self.metrics, "hither_tables_settled") != 1:
            time.sleep(0.05)

    def stop(self):
        self.process.terminate()
        self.process.wait()


class TritonDlrm:
    """Triton with its Python backend: one instance, dynamic batching."""

    def __init__(self, args, shape, model, engine, samples, port):
        repository = args.work / f"repository-triton-{engine}"
        shutil.rmtree(repository, ignore_errors=True)
        (repository / "dlrm/1").mkdir(parents=True)
        shutil.copy(HERE / "triton_model.py", repository / "dlrm/1/model.py")
        rows = ",".join([str(shape["rows"])] * shape["tables"])
        width = shape["tables"] * shape["ids_per_bag"]
        (repository / "dlrm/config.pbtxt").write_text(
            f"""backend: "python"
max_batch_size: 4096
input [
  {{ name: "dense" data_type: TYPE_FP32 dims: [ {shape["dense"]} ] }},
  {{ name: "sparse" data_type: TYPE_INT64 dims: [ {width} ] }}
]
output [ {{ name: "scores" data_type: TYPE_FP32 dims: [ 1 ] }} ]
dynamic_batching {{ }}
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
parameters {{ key: "table_rows" value: {{ string_value: "{rows}" }} }}
parameters {{ key: "ids_per_bag" value: {{ string_value: "{shape["ids_per_bag"]}" }} }}
"""
        )
        facts = args.work / "facts.json"
        env = peer_environment(shape, model, engine, samples, facts)
        self.server = Triton(repository, args.work / f"triton-{engine}.log", http=port, core=SERVER_CORE, env=env)
        self.process = self.server.process
        self.url, self.facts = f"grpc://127.0.0.1:{port + 1}", json.loads(facts.read_text())
        self.metrics = f"http://127.0.0.1:{port + 2}/metrics"

    def stop(self):
        self.server.stop()


class FastApi:
    def __init__(self, args, shape, model, engine, samples, port):
        facts, log = args.work / "facts.json", args.work / "fastapi.log"
        env = peer_environment(shape, model, engine, samples, facts)
        command = ["taskset", "-c", str(SERVER_CORE), sys.executable, "-m", "uvicorn", "fastapi_app:app"]
        command += ["--host", "127.0.0.1", "--port", str(port), "--no-access-log"]
        self.process = subprocess.Popen(command, env=env, cwd=HERE, stdout=open(log, "w"), stderr=subprocess.STDOUT)
        await_ready(f"http://127.0.0.1:{port}/v2/health/ready", self.process, log)
        self.url, self.facts, self.metrics = f"http://127.0.0.1:{port}", json.loads(facts.read_text()), None

    def stop(self):
        self.process.terminate()
        self.process.wait()


def start(args, name, shape, model, samples, port):
    server = SERVERS[name]
    if server["kind"] == "hither":
        return Hither(args, shape, model, server["mlp"], port, rows=server.get("rows"))
    kind = {"triton": TritonDlrm, "fastapi": FastApi}[server["kind"]]
    # Batches gather: a set-up that is only best for one sample would be chosen wrongly.
    return kind(args, shape, model, server["engine"], max(samples, 16), port)


def family(pid):
    """A process and all that it started."""
    found, todo = [], [pid]
    while todo:
        pid = todo.pop()
        found.append(pid)
        for children in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
            todo += [int(child) for child in children.read_text().split()]
    return found


def cpu_s(pid, is_counted=lambda name: True):
    """CPU seconds of a server and its children, of all threads or of those with some names."""
    total_ns = 0
    for one in family(pid):
        for thread in pathlib.Path(f"/proc/{one}/task").iterdir():
            if is_counted((thread / "comm").read_text().strip()):
                total_ns += int((thread / "schedstat").read_text().split()[0])
    return total_ns / 1e9


def memory_mb(pid):
    total = 0
    for one in family(pid):
        kb = machine.field(f"/proc/{one}/smaps_rollup", "Pss")
        total += int(kb.split()[0])
    return total // 1024


def await_calm():
    """Waits while the machine's host runs something else: a loop that only reads the clock then stands still."""
    looks = [f"""import os, time
os.sched_setaffinity(0, [{core}])
last = begin = time.perf_counter()
gap = 0
while last < begin + {CALM_S}:
    now = time.perf_counter()
    gap, last = max(gap, now - last), now
print(gap)""" for core in (SERVER_CORE, CLIENT_CORE)]
    for _ in range(CALM_LOOKS):
        both = [subprocess.Popen([sys.executable, "-S", "-c", look], stdout=subprocess.PIPE, text=True) for look in looks]
        if max(float(one.communicate()[0]) for one in both) < CALM_GAP_S:
            return
        time.sleep(1)


def load(args, url, samples, *words):
    await_calm()
    command = ["taskset", "-c", CLIENT_CORE, args.hither, "load", url, "-m", "dlrm", "--samples", samples]
    command += ["--hotness", args.hotness, "--threads", 1, "--slo", f"{args.slo_ms}ms", "--json", "--quiet", *words]
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, 1):  # 1: no rate kept the SLO
        raise RuntimeError(f"{command} ended with {done.returncode}")
    return json.loads(done.stdout)


def client_cpu():
    usage = os.times()
    return usage.children_user + usage.children_system


def metric(url, name):
    """A metric's sum over its labels."""
    with urllib.request.urlopen(url, timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name + "{"))


def counters(url):
    """Requests that succeeded and microseconds in the model, by Triton's names."""
    names = "nv_inference_request_success", "nv_inference_compute_infer_duration_us"
    return [metric(url, name) for name in names] if url else None


def is_engine(name):
    """Whether a thread of Hither's computes batches."""
    return name.startswith("hither-") and name[7:].isdigit()


def per_request(args, server, samples, callers, cpu, connections=4):
    """CPU and model microseconds per request while so many callers ask; the least disturbed of a few measurements."""
    words = ["--warmup", "100ms", "--window", f"{args.window_ms}ms", "--windows", 1, "--windows-max", 1]
    measured = []
    for _ in range(1 + RETRIES):
        before = counters(server.metrics), cpu()
        level = load(args, server.url, samples, "--concurrency", callers, "--connections", connections, *words)["levels"][0]
        after = counters(server.metrics), cpu()
        requests = after[0][0] - before[0][0]
        stolen = level["stolen_share"] or 0
        measured.append((stolen, (after[1] - before[1]) * 1e6 / requests, (after[0][1] - before[0][1]) / requests))
        if stolen <= STOLEN_MAX:
            break
    return min(measured)[1:]


def overhead(args, server, samples):
    """The server's CPU time per request beside the model's own.

    With one caller no requests share a batch, and one thread computes: time in the model is CPU time. But the
    processors sleep between requests, and waking them costs more than the request. With four callers
    they hardly sleep; there the threads that compute are left out, and what those do beside the model is taken
    from one caller. Four callers have a connection each, or one together, as those of perf_analyzer do.
    """
    if server.metrics is None:
        return {}
    pid = server.process.pid
    cpu_us, model_us = per_request(args, server, samples, 1, lambda: cpu_s(pid))
    row = {"cpu_us_per_request": cpu_us, "model_us_per_request": model_us, "overhead_us_per_request": cpu_us - model_us}
    if isinstance(server, Hither):
        engine_us, model_us = per_request(args, server, samples, 1, lambda: cpu_s(pid, is_engine))
        others = lambda: cpu_s(pid, lambda name: not is_engine(name))
        for name, connections in ("four_callers", 4), ("one_connection", 1):
            others_us, _ = per_request(args, server, samples, 4, others, connections)
            row[f"overhead_us_{name}"] = others_us + engine_us - model_us
    return row


def closed_loop(args, server, samples, callers=4):
    """Throughput with so many callers, and how busy the client's core was."""
    begin = client_cpu(), time.monotonic()
    words = ["--concurrency", callers, "--warmup", "300ms", "--window", f"{args.window_ms // 2}ms", "--windows-max", 6]
    words += ["--stolen-max", 2 * STOLEN_MAX]
    level = load(args, server.url, samples, *words)["levels"][0]
    client_share = (client_cpu() - begin[0]) / (time.monotonic() - begin[1])
    return {
        "samples_per_s": level["samples_per_s"],
        "p50_us": level["latency"]["p50_us"],
        "p99_us": level["latency"]["p99_us"],
        "server": level["server"],
        "client_cpu_share": client_share,
    }


def busy_s():
    """CPU seconds of the whole machine so far, without idle and stolen time."""
    fields = [int(field) for field in open("/proc/stat").readline().split()[1:8]]
    return (sum(fields) - fields[3] - fields[4]) / TICKS


def undisturbed(server, measure):
    """Measures again, once more, where anything but server and client takes more than a little CPU time."""
    for _ in range(TRIES):
        begin, own = (time.monotonic(), busy_s()), cpu_s(server.process.pid) + client_cpu()
        row = measure()
        took = time.monotonic() - begin[0]
        others = (busy_s() - begin[1] - (cpu_s(server.process.pid) + client_cpu() - own)) / took
        if others < OTHERS_MAX:
            break
    return {**row, "others_cpu": round(others, 3)}


def offer(args, server, samples, rates):
    """Latency at some rates in an open loop, and the bytes of a request."""
    words = ["--warmup", "300ms", "--window", f"{args.window_ms}ms", "--windows", 1, "--windows-max", 1]
    found = load(args, server.url, samples, "--rate", ",".join(f"{rate:.2f}" for rate in rates), *words)
    levels = [
        {"rate": level["level"]["rate"], "p50_us": level["latency"]["p50_us"], "p99_us": level["latency"]["p99_us"],
         "answered": level["answered"], "lost": level["requests"] - level["answered"],
         "stolen_share": level["stolen_share"]}
        for level in found["levels"]
    ]
    return levels, found["request_bytes"]


def has_kept(level, slo_us):
    return level["p99_us"] <= slo_us and level["answered"] > 0 and not level["lost"]


def sweep(args, server, samples, capacity_per_s):
    """Latency at shares of what callers in a closed loop reached, in an open loop."""
    levels, request_bytes = offer(args, server, samples, [share * capacity_per_s for share in args.shares])
    for _ in range(RETRIES):
        is_unclear = lambda level: (level["stolen_share"] or 0) > STOLEN_MAX and not has_kept(level, args.slo_ms * 1e3)
        unclear = [at for at, level in enumerate(levels) if is_unclear(level)]
        if not unclear:
            break
        again, _ = offer(args, server, samples, [levels[at]["rate"] for at in unclear])
        for at, level in zip(unclear, again):
            levels[at] = {**level, "offered_again": levels[at].get("offered_again", 0) + 1}
    return {"request_bytes": request_bytes, "levels": levels}


def highest(sweeps, slo_us):
    """The highest rate that kept the SLO in either round: a stall of the machine must not decide."""
    kept = [level for sweep in sweeps for level in sweep["levels"] if has_kept(level, slo_us)]
    best = max(kept, key=lambda level: level["rate"], default=None)
    return best or {"rate": None, "p50_us": None, "p99_us": None}


def perf_analyzer(args, server, shape, samples):
    """Triton's own load generator with four callers: samples/s, so that no figure rests on ours alone."""
    draw = random.Random(1)
    one = lambda: {
        "dense": [draw.gauss(0, 1) for _ in range(shape["dense"])],
        "sparse": [draw.randrange(shape["rows"]) for _ in range(shape["tables"] * shape["ids_per_bag"])],
    }
    data, table = args.work / "perf-input.json", args.work / "perf.csv"
    data.write_text(json.dumps({"data": [one() for _ in range(1024)]}))
    venv = pathlib.Path(sys.prefix) / "perf"
    env = dict(os.environ, LD_LIBRARY_PATH=str(venv / "nvidia/cuda_runtime/lib"))
    command = ["taskset", "-c", CLIENT_CORE, venv / "bin/perf_analyzer", "-m", "dlrm", "-u", server.url.split("//")[1], "-i", "grpc"]
    command += ["-b", samples, "--concurrency-range", 4, "--input-data", data, "-p", 2000, "-s", 20, "-f", table]
    run(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with open(table) as lines:
        row = next(csv.DictReader(lines))
    return {"perf_analyzer_samples_per_s": float(row["Inferences/Second"]), "perf_analyzer_p99_us": float(row["p99 latency"])}


def engine(args, shape, model, samples):
    """What Hither's engine computes in process, on the server's core."""
    command = ["taskset", "-c", SERVER_CORE, args.hither, "bench", "model", model, "--batch", samples]
    command += ["--pooling", shape["ids_per_bag"], "--hotness", args.hotness, "--threads", 1, "--batches", 64]
    command += ["--seconds", 2, "--json", "--quiet"]
    lines = run(command, stdout=subprocess.PIPE).stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    return {row["variant"]: row["samples_per_s"] for row in rows if "variant" in row}


def keep(row):
    """Adds a row in place of an older one of the same kind."""
    key = lambda row: tuple(row.get(k) for k in ("bench", "cpu", "model", "server", "samples", "hotness"))
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    rows = [old for old in rows if key(old) != key(row)] + [row]
    RESULTS.write_text("".join(json.dumps(row) + "\n" for row in rows))


def case(args, common, shape, model, samples):
    """One model and size of request through all servers, in turn."""
    servers = {}
    try:
        for i, name in enumerate(name for name in args.servers if name != "engine"):
            try:
                servers[name] = start(args, name, shape, model, samples, 18100 + 10 * i)
            except RuntimeError as error:
                print(f"{common['model']} {name}: {error}", file=sys.stderr)
        closed = {name: [] for name in servers}
        crowded = {name: [] for name in servers}
        sweeps = {name: [] for name in servers}
        engines = []
        for _ in range(ROUNDS):
            if "engine" in args.servers:
                engines.append(engine(args, shape, model, samples))
            for name, server in servers.items():
                closed[name].append(undisturbed(server, lambda: closed_loop(args, server, samples)))
                crowded[name].append(undisturbed(server, lambda: closed_loop(args, server, samples, CROWD)))
        for _ in range(ROUNDS):
            for name, server in servers.items():
                capacity = max(one["samples_per_s"] for one in closed[name] + crowded[name]) / samples
                sweeps[name].append(undisturbed(server, lambda: sweep(args, server, samples, capacity)))
        for variant in engines[0] if engines else []:
            rates = [one[variant] for one in engines]
            keep({"bench": "server-compare", "server": f"engine-{variant}", "samples": samples, "samples_per_s": rates, **common})
            print(f"{common['model']:7} engine-{variant:12} {samples:3} samples: {[show(rate) for rate in rates]} samples/s", flush=True)
        rows = {}
        for name, server in servers.items():
            best = highest(sweeps[name], args.slo_ms * 1e3)
            row = {"bench": "server-compare", "server": name, "samples": samples, "slo_ms": args.slo_ms, **common}
            row.update({"rate_max_per_s": best["rate"], "samples_max_per_s": best["rate"] and best["rate"] * samples})
            row.update(p50_us=best["p50_us"], p99_us=best["p99_us"], closed=closed[name], crowded=crowded[name], sweeps=sweeps[name])
            # Kept before the overheads are measured, so that a run that is cut short has the rates.
            rows[name] = {**row, "facts": server.facts}
            keep(rows[name])
        for name, server in servers.items():
            row = rows[name]
            row.update(undisturbed(server, lambda: overhead(args, server, samples)))
            if args.perf_analyzer and server.url.startswith("grpc"):
                row.update(perf_analyzer(args, server, shape, samples))
            row.update(memory_mb=memory_mb(server.process.pid), load_average=os.getloadavg()[0])
            keep(row)
            reached = sum(one["samples_per_s"] for one in row["closed"]) / ROUNDS
            print(
                f"{common['model']:7} {name:19} {samples:3} samples: {show(row['samples_max_per_s']):>9} samples/s with p99 <= {args.slo_ms} ms; "
                f"closed {show(reached)}, overhead {show(row.get('overhead_us_per_request'))} us, with four callers {show(row.get('overhead_us_four_callers'))}, on one connection {show(row.get('overhead_us_one_connection'))}, "
                f"client {row['closed'][0]['client_cpu_share']:.0%} of its core, others {max(one['others_cpu'] for one in row['closed'] + row['sweeps']):.0%}",
                flush=True,
            )
    finally:
        for server in servers.values():
            server.stop()


def show(value):
    return "–" if value is None else f"{value:,.0f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hither", type=pathlib.Path, default=ROOT / "target/release/hither")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--servers", nargs="+", default=["engine", *SERVERS], choices=["engine", *SERVERS])
    parser.add_argument("--samples", nargs="+", type=int, default=[1, 16, 64])
    parser.add_argument("--hotness", default="medium")
    parser.add_argument("--slo-ms", type=float, default=10)
    parser.add_argument("--window-ms", type=int, default=1000)
    parser.add_argument("--shares", nargs="+", type=float, default=SHARES, help="of a server's capacity, offered in the open loop")
    parser.add_argument("--perf-analyzer", action="store_true", help="also measure with Triton's load generator")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "target/server-bench")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    facts = machine.facts()
    version = run([args.hither, "--version"], stdout=subprocess.PIPE).stdout.strip()
    keep({"bench": "machine", "cpu": facts["cpu"], "facts": facts, "hither": version, "triton": "2.51.0"})
    for name in args.models:
        shape, model = MODELS[name], make_model(args.hither, name, args.work)
        common = {"cpu": facts["cpu"], "model": name, "hotness": args.hotness, **shape}
        for samples in args.samples:
            case(args, common, shape, model, samples)


if __name__ == "__main__":
    main()
