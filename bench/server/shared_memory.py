#!/usr/bin/env python3
"""Latency of requests of some megabytes, sent or left in shared memory, in turns.

    hither model generate --tables 60 --rows 10000 --dim 32 -o models/large/1
    hither serve models/ --shared-memory
    bench/server/shared_memory.py large

Needs tritonclient[all] and numpy. Prints one line of JSON per protocol: medians in ms.
"""

import argparse
import json
import statistics
import time

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.http as http
import tritonclient.utils.shared_memory as shm

args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
args.add_argument("model")
args.add_argument("--http", default="127.0.0.1:8000")
args.add_argument("--grpc", default="127.0.0.1:8001")
args.add_argument("--samples", type=int, default=64)
args.add_argument("--ids", type=int, default=120, help="ids per bag")
args.add_argument("--rounds", type=int, default=100)
args = args.parse_args()


def tensors(client):
    draw = np.random.default_rng(1)
    dense = client.get_model_metadata(args.model)["inputs"][0]["shape"][1]
    rows = client.get_model_config(args.model)["parameters"]["table_rows"]["string_value"].split(",")
    per_table = args.samples * args.ids
    return [
        ("dense", draw.random((args.samples, int(dense)), np.float32)),
        ("values", np.concatenate([draw.integers(0, int(count), per_table) for count in rows])),
        ("lengths", np.full(len(rows) * args.samples, args.ids, np.int64)),
    ]


def inputs(module, arrays):
    made = []
    for name, array in arrays:
        kind = {"f": "FP32", "i": "INT64"}[array.dtype.kind]
        made.append(module.InferInput(name, list(array.shape), kind))
    return made


def measure(module, address, arrays):
    client = module.InferenceServerClient(address)
    sent, shared = inputs(module, arrays), inputs(module, arrays)
    size = sum(array.nbytes for _, array in arrays)
    key = f"/hither-bench-{module.__name__}"
    region = shm.create_shared_memory_region("bench", key, size)
    times = {"sent": [], "shared": []}
    try:
        client.register_system_shared_memory("bench", key, size)
        place = 0
        for one, (_, array) in zip(shared, arrays):
            one.set_shared_memory("bench", array.nbytes, place)
            place += array.nbytes
        for _ in range(args.rounds):
            # Both times include handing the arrays over, as a client would for every request.
            start = time.perf_counter()
            for one, (_, array) in zip(sent, arrays):
                one.set_data_from_numpy(array)
            client.infer(args.model, sent)
            times["sent"].append(time.perf_counter() - start)
            start = time.perf_counter()
            shm.set_shared_memory_region(region, [array for _, array in arrays])
            client.infer(args.model, shared)
            times["shared"].append(time.perf_counter() - start)
        client.unregister_system_shared_memory("bench")
    finally:
        shm.destroy_shared_memory_region(region)
    medians = {name: statistics.median(values) * 1e3 for name, values in times.items()}
    print(json.dumps({"protocol": module.__name__.split(".")[-1], "bytes": size, "samples": args.samples}
                     | {f"{name}_ms": round(value, 2) for name, value in medians.items()}))


arrays = tensors(http.InferenceServerClient(args.http))
measure(http, args.http, arrays)
measure(grpc, args.grpc, arrays)
