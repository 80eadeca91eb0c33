"""Triton's own Python clients against a running server.

usage: clients.py HTTP_ADDRESS GRPC_ADDRESS METRICS_ADDRESS EXPECTED.safetensors

The server has two models of the same checkpoint: `dlrm`, whose metadata describes ids as values and
lengths, and `lists`, which describes indices and offsets per table. EXPECTED holds inputs and the
answers of PyTorch. Every check prints a line; the first that fails ends the script.
"""

import asyncio
import json
import struct
import sys
import threading
import urllib.request

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http
import tritonclient.http.aio as http_aio
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

HTTP, GRPC, METRICS, EXPECTED = sys.argv[1:]
MODEL, LISTS = "dlrm", "lists"


def read_safetensors(path):
    data = open(path, "rb").read()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    types = {"F32": np.float32, "I64": np.int64}
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = (8 + length + at for at in entry["data_offsets"])
            values = np.frombuffer(data[start:end], types[entry["dtype"]])
            tensors[name] = values.reshape(entry["shape"])
    return tensors


TENSORS = read_safetensors(EXPECTED)
DENSE, IDS, OFFSETS = TENSORS["dense"], TENSORS["indices"], TENSORS["offsets"]
SCORES = TENSORS["probability"].reshape(-1, 1)
SAMPLES = len(DENSE)
TABLES = (len(OFFSETS) - 1) // SAMPLES


def tensor(module, name, values, **options):
    kind = {"f": "FP32", "i": f"INT{values.dtype.itemsize * 8}"}[values.dtype.kind]
    one = module.InferInput(name, list(values.shape), kind)
    one.set_data_from_numpy(values, **options)
    return one


def joined(module, integers=np.int64, **options):
    """Ids of all tables as values and lengths."""
    return [
        tensor(module, "dense", DENSE, **options),
        tensor(module, "values", IDS.astype(integers), **options),
        tensor(module, "lengths", np.diff(OFFSETS).astype(integers), **options),
    ]


def lists(module, names, last_offset, weights=None):
    """Ids of each table as indices and offsets."""
    inputs = [tensor(module, "dense", DENSE)]
    for table, name in enumerate(names):
        offsets = OFFSETS[table * SAMPLES : (table + 1) * SAMPLES + 1]
        ids = IDS[offsets[0] : offsets[-1]]
        offsets = offsets - offsets[0]
        inputs.append(tensor(module, f"{name}.indices", ids))
        inputs.append(tensor(module, f"{name}.offsets", offsets if last_offset else offsets[:-1]))
        if weights is not None:
            values = np.full(len(ids), weights, np.float32)
            inputs.append(tensor(module, f"{name}.weights", values))
    return inputs


def check(name, is_right):
    if not is_right:
        sys.exit(f"FAILED: {name}")
    print("ok:", name)


def same(name, scores):
    check(name, scores.shape == SCORES.shape and np.abs(scores - SCORES).max() < 1e-6)


def refused(name, call, *words, status=None):
    try:
        call()
    except InferenceServerException as error:
        found = f"{error.status()} {error.message()}"
        check(f"{name}: {found}", all(word in found for word in words))
        if status:
            check(f"{name}: status", status in str(error.status()))
        return
    sys.exit(f"FAILED: {name}: not refused")


def metadata(client, asked):
    answer = asked(client.get_model_metadata(MODEL))
    check("metadata: inputs", [i["name"] for i in answer["inputs"]] == ["dense", "values", "lengths", "weights"])
    check("metadata: dense", [int(n) for n in answer["inputs"][0]["shape"]] == [-1, DENSE.shape[1]])
    check("metadata: output", answer["outputs"][0]["name"] == "scores")
    names = [i["name"] for i in asked(client.get_model_metadata(LISTS))["inputs"]]
    check("metadata: lists", names[1:4] == ["emb_l.0.indices", "emb_l.0.offsets", "emb_l.0.weights"] or len(names) == 1 + 3 * TABLES)
    return [name.removesuffix(".indices") for name in names if name.endswith(".indices")]


def over_http():
    client = http.InferenceServerClient(HTTP, concurrency=4)
    check("http: live and ready", client.is_server_live() and client.is_server_ready() and client.is_model_ready(MODEL))
    check("http: server", client.get_server_metadata()["name"] == "hither")
    names = metadata(client, lambda answer: answer)
    config = client.get_model_config(MODEL)
    check("http: config", config["max_batch_size"] == 0 and config["input"][3]["optional"])
    same("http: binary", client.infer(MODEL, joined(http)).as_numpy("scores"))
    same("http: JSON in", client.infer(MODEL, joined(http, binary_data=False)).as_numpy("scores"))
    output = [http.InferRequestedOutput("scores", binary_data=False)]
    same("http: JSON out", client.infer(MODEL, joined(http), outputs=output).as_numpy("scores"))
    same("http: INT32", client.infer(MODEL, joined(http, np.int32)).as_numpy("scores"))
    same("http: indices and offsets", client.infer(LISTS, lists(http, names, True)).as_numpy("scores"))
    same("http: offsets without the last", client.infer(LISTS, lists(http, names, False)).as_numpy("scores"))
    same("http: weights of 1", client.infer(LISTS, lists(http, names, True, 1.0)).as_numpy("scores"))
    doubled = client.infer(LISTS, lists(http, names, True, 2.0)).as_numpy("scores")
    check("http: weights of 2 differ", np.abs(doubled - SCORES).max() > 1e-4)
    for algorithm in ["gzip", "deflate"]:
        answer = client.infer(MODEL, joined(http), request_compression_algorithm=algorithm, response_compression_algorithm=algorithm)
        same(f"http: {algorithm}", answer.as_numpy("scores"))
    answer = client.infer(MODEL, joined(http), request_id="r-7", model_version="1")
    check("http: id and version", answer.get_response()["id"] == "r-7" and answer.get_response()["model_version"] == "1")
    pending = [client.async_infer(MODEL, joined(http)) for _ in range(32)]
    for one in pending:
        same("http: async", one.get_result().as_numpy("scores"))
    bad(http, client, "400", "404")
    shared_memory(http, client, "404")
    client.close()


def over_grpc():
    client = grpc.InferenceServerClient(GRPC)
    check("grpc: live and ready", client.is_server_live() and client.is_server_ready() and client.is_model_ready(MODEL))
    check("grpc: server", client.get_server_metadata().name == "hither")
    names = metadata(client, lambda answer: as_dict(answer))
    config = client.get_model_config(MODEL).config
    check("grpc: config", config.max_batch_size == 0 and config.input[3].optional)
    same("grpc: raw", client.infer(MODEL, joined(grpc)).as_numpy("scores"))
    same("grpc: INT32", client.infer(MODEL, joined(grpc, np.int32)).as_numpy("scores"))
    same("grpc: indices and offsets", client.infer(LISTS, lists(grpc, names, True)).as_numpy("scores"))
    same("grpc: gzip", client.infer(MODEL, joined(grpc), compression_algorithm="gzip").as_numpy("scores"))
    answer = client.infer(MODEL, joined(grpc), request_id="r-8").get_response()
    check("grpc: id", answer.id == "r-8" and answer.model_version == "1")
    results, done = [], threading.Semaphore(0)

    def arrived(result, error):
        results.append(error or result.as_numpy("scores"))
        done.release()

    for _ in range(32):
        client.async_infer(MODEL, joined(grpc), arrived)
    for _ in range(32):
        done.acquire()
    for scores in results:
        same("grpc: async", scores)
    client.start_stream(arrived)
    for _ in range(4):
        client.async_stream_infer(MODEL, joined(grpc))
        done.acquire()
        same("grpc: stream", results[-1])
    client.stop_stream()
    bad(grpc, client, "INVALID_ARGUMENT", "NOT_FOUND")
    shared_memory(grpc, client, "NOT_FOUND")
    stats = client.get_inference_statistics(MODEL).model_stats[0]
    check("grpc: statistics", stats.inference_count > 100 and stats.inference_stats.success.count > 20)
    check("grpc: failures are counted", stats.inference_stats.fail.count >= 4)
    repository(client)
    client.close()


def shared_memory(module, client, missing):
    """Inputs and scores in one object of shared memory; only names and places are sent."""
    arrays = [("dense", DENSE), ("values", IDS), ("lengths", np.diff(OFFSETS))]
    places = np.cumsum([0] + [array.nbytes for _, array in arrays])
    region = shm.create_shared_memory_region("tensors", f"/hither-{module.__name__}", int(places[-1]) + SCORES.nbytes)
    try:
        shm.set_shared_memory_region(region, [array.view(np.uint8).reshape(-1) for _, array in arrays])
        client.register_system_shared_memory("tensors", f"/hither-{module.__name__}", int(places[-1]) + SCORES.nbytes)
        refused("shared memory: twice", lambda: client.register_system_shared_memory("tensors", f"/hither-{module.__name__}", 8), "already in manager")
        refused("shared memory: no object", lambda: client.register_system_shared_memory("other", "/no-such-object", 8), "Unable to open shared memory region")
        inputs = joined(module)
        for one, (_, array), place in zip(inputs, arrays, places):
            one.set_shared_memory("tensors", array.nbytes, int(place))
        output = module.InferRequestedOutput("scores")
        output.set_shared_memory("tensors", SCORES.nbytes, int(places[-1]))
        client.infer(MODEL, inputs, outputs=[output])
        scores = shm.get_contents_as_numpy(region, np.float32, SCORES.shape, int(places[-1]))
        same(f"{module.__name__}: shared memory", scores)
        same(f"{module.__name__}: shared inputs alone", client.infer(MODEL, inputs).as_numpy("scores"))
        mixed = joined(module)
        mixed[1] = inputs[1]
        same(f"{module.__name__}: one shared input", client.infer(MODEL, mixed).as_numpy("scores"))
        inputs[0].set_shared_memory("tensors", DENSE.nbytes, int(places[-1]) + SCORES.nbytes)
        refused("shared memory: past the end", lambda: client.infer(MODEL, inputs), "Invalid offset + byte size")
        check("shared memory: status", "tensors" in str(client.get_system_shared_memory_status()))
        client.unregister_system_shared_memory()
        client.unregister_cuda_shared_memory()
        refused("shared memory: gone", lambda: client.infer(MODEL, mixed), "Unable to find shared memory region: 'tensors'", status=missing)
    finally:
        shm.destroy_shared_memory_region(region)


def as_dict(message):
    from google.protobuf.json_format import MessageToDict

    return MessageToDict(message, preserving_proto_field_name=True)


def bad(module, client, invalid, missing):
    """Errors in Triton's words."""
    dense, values, lengths = joined(module)
    refused("unknown model", lambda: client.infer("nosuch", [dense]), "Request for unknown model: 'nosuch' is not found", status=missing)
    refused("unknown version", lambda: client.infer(MODEL, [dense], model_version="9"), "version 9 is not found", status=missing)
    refused("missing input", lambda: client.infer(MODEL, [dense, lengths]), "expected 3 inputs but got 2", "values", status=invalid)
    extra = tensor(module, "extra", DENSE)
    refused("unknown input", lambda: client.infer(MODEL, [dense, values, lengths, extra]), "unexpected inference input 'extra' for model 'dlrm'", status=invalid)
    flat = tensor(module, "dense", DENSE.reshape(-1))
    refused("shape", lambda: client.infer(MODEL, [flat, values, lengths]), "unexpected shape for input 'dense' for model 'dlrm'. Expected [-1,13], got [78]", status=invalid)
    whole = tensor(module, "dense", np.zeros(DENSE.shape, np.int64))
    refused("type", lambda: client.infer(MODEL, [whole, values, lengths]), "inference input 'dense' data-type is 'INT64', but model 'dlrm' expects 'FP32'", status=invalid)
    output = [module.InferRequestedOutput("nosuch")]
    refused("output", lambda: client.infer(MODEL, [dense, values, lengths], outputs=output), "unexpected inference output 'nosuch' for model 'dlrm'", status=invalid)
    large = tensor(module, "values", np.full(IDS.shape, 1 << 40))
    refused("id", lambda: client.infer(MODEL, [dense, large, lengths], request_id="x"), "[request id: x]", "1099511627776", "not below", status=invalid)
    short = tensor(module, "lengths", np.diff(OFFSETS) * 0)
    refused("lengths", lambda: client.infer(MODEL, [dense, values, short]), "sum must be the number of `values`", status=invalid)
    same("after bad requests", client.infer(MODEL, joined(module)).as_numpy("scores"))


def repository(client):
    index = {(m.name, m.version): m.state for m in client.get_model_repository_index().models}
    check("index", index == {(MODEL, "1"): "READY", (LISTS, "1"): "READY"})
    client.unload_model(LISTS)
    check("unloaded", not client.is_model_ready(LISTS))
    refused("after unload", lambda: client.infer(LISTS, joined(grpc)), "'lists' has no available versions")
    states = {m.name: (m.state, m.reason) for m in client.get_model_repository_index().models}
    check("index after unload", states[LISTS] == ("UNAVAILABLE", "unloaded"))
    client.load_model(LISTS)
    check("loaded again", client.is_model_ready(LISTS))
    refused("load of nothing", lambda: client.load_model("nosuch"), "failed to load 'nosuch'")


async def asynchronous():
    async with http_aio.InferenceServerClient(HTTP) as client:
        answers = await asyncio.gather(*(client.infer(MODEL, joined(http_aio)) for _ in range(32)))
        for answer in answers:
            same("http aio", answer.as_numpy("scores"))
    async with grpc_aio.InferenceServerClient(GRPC) as client:
        answers = await asyncio.gather(*(client.infer(MODEL, joined(grpc_aio)) for _ in range(32)))
        for answer in answers:
            same("grpc aio", answer.as_numpy("scores"))


def concurrent():
    """Eight clients with connections of their own, good and bad requests side by side."""
    problems = []

    def work(number):
        client = grpc.InferenceServerClient(GRPC)
        for turn in range(50):
            inputs = joined(grpc)
            is_bad = (turn + number) % 5 == 0
            if is_bad:
                inputs[1] = tensor(grpc, "values", IDS + 1000)
            try:
                scores = client.infer(MODEL, inputs).as_numpy("scores")
                if is_bad or np.abs(scores - SCORES).max() > 1e-6:
                    problems.append("wrong scores")
            except InferenceServerException as error:
                if not is_bad:
                    problems.append(error.message())
        client.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check(f"concurrent clients {problems[:1]}", not problems)


def metrics():
    text = urllib.request.urlopen(f"http://{METRICS}/metrics").read().decode()
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    for name in ["request_success", "request_failure", "count", "exec_count", "request_duration_us", "queue_duration_us", "compute_infer_duration_us", "pending_request_count"]:
        check(f"metrics: {name}", f'nv_inference_{name}{{model="dlrm",version="1"}}' in values)
    count = float(values['nv_inference_count{model="dlrm",version="1"}'])
    runs = float(values['nv_inference_exec_count{model="dlrm",version="1"}'])
    check("metrics: samples and batches", count > 0 and 0 < runs <= count)


over_http()
over_grpc()
asyncio.run(asynchronous())
concurrent()
metrics()
