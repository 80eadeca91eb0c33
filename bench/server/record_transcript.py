#!/usr/bin/env python3
"""Records what real Triton answers to good and bad requests.

    target/server-venv/bin/python bench/server/record_transcript.py [-o FILE]

The model is `identity`: it takes what a small DLRM of ours takes (`dense` FP32 [-1, 4] and `sparse`
INT64 [-1, 3]) and returns `scores` FP32 [-1, 1]. crates/cli/tests/wire/transcript.rs replays the same
bytes against Hither and compares status, shape and meaning; docs/server.md lists the differences.
"""

import argparse
import base64
import gzip
import http.client
import json
import pathlib
import struct
import tempfile
import time
import zlib

import grpc
from google.protobuf.json_format import MessageToDict
from tritonclient.grpc import service_pb2 as pb

from triton import Triton

OUTPUT = pathlib.Path(__file__).parents[2] / "crates/cli/tests/wire/fixtures/triton-2.51.json"
SERVICE = "/inference.GRPCInferenceService/"
HEADER_LENGTH = "Inference-Header-Content-Length"
BATCH_MAX = 64

CONFIG = f"""
backend: "python"
max_batch_size: {BATCH_MAX}
input [
  {{ name: "dense" data_type: TYPE_FP32 dims: [ 4 ] }},
  {{ name: "sparse" data_type: TYPE_INT64 dims: [ 3 ] }}
]
output [ {{ name: "scores" data_type: TYPE_FP32 dims: [ 1 ] }} ]
dynamic_batching {{ }}
"""

MODEL = """
import numpy
import triton_python_backend_utils as utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            dense = utils.get_input_tensor_by_name(request, "dense").as_numpy()
            scores = numpy.ascontiguousarray(dense[:, :1])
            answers.append(utils.InferenceResponse([utils.Tensor("scores", scores)]))
        return answers
"""

DENSE = [0.0, 0.1, 0.2, 0.3, 1.0, 1.1, 1.2, 1.3]
SPARSE = [1, 2, 3, 4, 5, 6]


def tensor(name, datatype, shape, data=None, **parameters):
    made = {"name": name, "datatype": datatype, "shape": shape}
    if data is not None:
        made["data"] = data
    if parameters:
        made["parameters"] = parameters
    return made


def dense(data=DENSE, shape=(2, 4), datatype="FP32", **parameters):
    return tensor("dense", datatype, list(shape), data, **parameters)


def sparse(data=SPARSE, shape=(2, 3), datatype="INT64", **parameters):
    return tensor("sparse", datatype, list(shape), data, **parameters)


def infer(*inputs, **more):
    return json.dumps({"inputs": list(inputs), **more}).encode()


def binary(head, *parts, length=None):
    """A body of JSON and raw tensors, and the header that tells where one ends."""
    text = json.dumps(head).encode()
    body = text + b"".join(parts)
    return body, {HEADER_LENGTH: str(len(text) if length is None else length)}


RAW_DENSE = struct.pack("<8f", *DENSE)
RAW_SPARSE = struct.pack("<6q", *SPARSE)
RAW_HEAD = {
    "inputs": [dense(None, binary_data_size=32), sparse(None, binary_data_size=48)],
    "outputs": [{"name": "scores", "parameters": {"binary_data": True}}],
}


def http_cases():
    """(name, method, path, body, headers)"""
    get = lambda name, path: (name, "GET", path, b"", {})
    post = lambda name, body, headers={}, path="/v2/models/identity/infer": (
        name, "POST", path, body, headers,
    )
    good = infer(dense(), sparse())
    yield get("server metadata", "/v2")
    yield get("live", "/v2/health/live")
    yield get("ready", "/v2/health/ready")
    yield get("model metadata", "/v2/models/identity")
    yield get("model metadata of a version", "/v2/models/identity/versions/1")
    yield get("model ready", "/v2/models/identity/ready")
    yield get("model ready of a version", "/v2/models/identity/versions/1/ready")
    yield get("model config", "/v2/models/identity/config")
    yield get("model statistics", "/v2/models/identity/stats")
    yield post("repository index", b"", path="/v2/repository/index")
    yield post("repository index, ready only", b'{"ready": true}', path="/v2/repository/index")
    yield post("infer", good)
    yield post("infer with a version", good, path="/v2/models/identity/versions/1/infer")
    yield post("infer with an id", infer(dense(), sparse(), id="abc"))
    yield post("infer, one sample", infer(dense(DENSE[:4], (1, 4)), sparse([1, 2, 3], (1, 3))))
    yield post("infer, nested data", infer(dense([DENSE[:4], DENSE[4:]]), sparse([SPARSE[:3], SPARSE[3:]])))
    yield post("infer, whole numbers as features", infer(dense([0, 1, 2, 3, 4, 5, 6, 7]), sparse()))
    yield post("infer, named output", infer(dense(), sparse(), outputs=[{"name": "scores"}]))
    yield post("infer, binary", *binary(RAW_HEAD, RAW_DENSE, RAW_SPARSE))
    mixed = {"inputs": [dense(), sparse(None, binary_data_size=48)]}
    yield post("infer, one binary input", *binary(mixed, RAW_SPARSE))
    all_binary = {**RAW_HEAD, "parameters": {"binary_data_output": True}}
    del all_binary["outputs"]
    yield post("infer, all outputs binary", *binary(all_binary, RAW_DENSE, RAW_SPARSE))
    yield post("infer, gzip", gzip.compress(good, mtime=0), {"Content-Encoding": "gzip"})
    yield post("infer, deflate", zlib.compress(good), {"Content-Encoding": "deflate"})
    yield post("infer, gzip answer", good, {"Accept-Encoding": "gzip"})
    yield post("infer, unknown request parameter", infer(dense(), sparse(), parameters={"mine": 7}))
    yield post("infer, unknown key", json.dumps({"inputs": [dense(), sparse()], "mine": 7}).encode())

    yield get("unknown path", "/v2/nosuch")
    yield get("unknown model's metadata", "/v2/models/nosuch")
    yield get("unknown model ready", "/v2/models/nosuch/ready")
    yield get("unknown model's config", "/v2/models/nosuch/config")
    yield get("unknown model's statistics", "/v2/models/nosuch/stats")
    yield get("unknown version's metadata", "/v2/models/identity/versions/7")
    yield get("version that is no number", "/v2/models/identity/versions/x")
    yield post("infer with an unknown model", good, path="/v2/models/nosuch/infer")
    yield post("infer with an unknown version", good, path="/v2/models/identity/versions/7/infer")
    yield get("infer by GET", "/v2/models/identity/infer")
    yield post("metadata by POST", b"", path="/v2/models/identity")
    yield post("load of an unknown model", b"", path="/v2/repository/models/nosuch/load")
    yield post("unload of an unknown model", b"", path="/v2/repository/models/nosuch/unload")
    yield post("empty body", b"")
    yield post("no JSON", b"what?")
    yield post("JSON that is cut", good[:-9])
    yield post("JSON that is no object", b"[1, 2]")
    yield post("no inputs", b"{}")
    yield post("inputs are no list", b'{"inputs": {}}')
    yield post("empty inputs", b'{"inputs": []}')
    yield post("input without a name", infer({"datatype": "FP32", "shape": [2, 4], "data": DENSE}, sparse()))
    yield post("input without a type", infer({"name": "dense", "shape": [2, 4], "data": DENSE}, sparse()))
    yield post("input without a shape", infer({"name": "dense", "datatype": "FP32", "data": DENSE}, sparse()))
    yield post("input without data", infer(dense(None), sparse()))
    yield post("missing input", infer(dense()))
    yield post("unexpected input", infer(dense(), sparse(), tensor("mine", "FP32", [2, 1], [1, 2])))
    yield post("input twice", infer(dense(), dense(), sparse()))
    yield post("wrong type", infer(dense(), sparse(datatype="FP32")))
    yield post("unknown type", infer(dense(), sparse(datatype="INT65")))
    yield post("text as type", infer(dense(datatype="BYTES", data=["a"] * 8), sparse()))
    yield post("wrong rank", infer(dense(DENSE, (8,)), sparse()))
    yield post("wrong width", infer(dense(DENSE[:6], (2, 3)), sparse()))
    yield post("unequal numbers of samples", infer(dense(DENSE[:4], (1, 4)), sparse()))
    yield post("no samples", infer(dense([], (0, 4)), sparse([], (0, 3))))
    yield post("negative dimension", infer(dense(DENSE, (-2, 4)), sparse()))
    yield post("huge dimension", infer(dense(DENSE, (2**40, 4)), sparse([1], (2**40, 3))))
    yield post("dimensions that overflow", infer(dense(DENSE, (2**62, 4)), sparse()))
    yield post("shape of text", infer(dense(DENSE, ("2", 4)), sparse()))
    yield post("shape of fractions", infer(dense(DENSE, (2.5, 4)), sparse()))
    yield post("too few values", infer(dense(DENSE[:7]), sparse()))
    yield post("too many values", infer(dense(DENSE + [9.0]), sparse()))
    yield post("text as value", infer(dense(["x"] * 8), sparse()))
    yield post("fraction as id", infer(dense(), sparse([1.5, 2, 3, 4, 5, 6])))
    yield post("null as value", infer(dense([None] * 8), sparse()))
    many = BATCH_MAX + 1
    yield post("too many samples", infer(dense([0.5] * 4 * many, (many, 4)), sparse([1] * 3 * many, (many, 3))))
    yield post("unexpected output", infer(dense(), sparse(), outputs=[{"name": "mine"}]))
    yield post("output without a name", infer(dense(), sparse(), outputs=[{}]))
    yield post("sequence id", infer(dense(), sparse(), parameters={"sequence_id": 5, "sequence_start": True}))
    yield post("id that is a number", infer(dense(), sparse(), id=7))
    yield post("parameters that are a list", infer(dense(), sparse(), parameters=[1]))
    shared = {"shared_memory_region": "nosuch", "shared_memory_byte_size": 32}
    yield post("unknown shared memory", infer(dense(None, **shared), sparse()))
    for name, size in (("too small", 31), ("too large", 33), ("far too large", 2**40), ("negative", -1)):
        head = {"inputs": [dense(None, binary_data_size=size), sparse(None, binary_data_size=48)]}
        yield post(f"binary size {name}", *binary(head, RAW_DENSE, RAW_SPARSE))
    head = {"inputs": [dense(None, binary_data_size="32"), sparse(None, binary_data_size=48)]}
    yield post("binary size as text", *binary(head, RAW_DENSE, RAW_SPARSE))
    yield post("binary data that is cut", *binary(RAW_HEAD, RAW_DENSE, RAW_SPARSE[:-8]))
    yield post("binary data with more behind it", *binary(RAW_HEAD, RAW_DENSE, RAW_SPARSE, b"12345678"))
    yield post("header length beyond the body", *binary(RAW_HEAD, RAW_DENSE, RAW_SPARSE, length=99999))
    yield post("header length too small", *binary(RAW_HEAD, RAW_DENSE, RAW_SPARSE, length=7))
    yield post("header length zero", *binary(RAW_HEAD, RAW_DENSE, RAW_SPARSE, length=0))
    yield post("header length negative", *binary(RAW_HEAD, RAW_DENSE, RAW_SPARSE, length=-1))
    yield post("header length as text", *binary(RAW_HEAD, RAW_DENSE, RAW_SPARSE, length="x"))
    both = {"inputs": [dense(binary_data_size=32), sparse()]}
    yield post("data and binary data", *binary(both, RAW_DENSE))
    yield post("gzip that is broken", gzip.compress(good, mtime=0)[:-9], {"Content-Encoding": "gzip"})
    yield post("gzip that is none", good, {"Content-Encoding": "gzip"})
    yield post("unknown encoding", good, {"Content-Encoding": "br"})
    deep = b"[" * 5000 + b"]" * 5000
    yield post("deeply nested JSON", b'{"inputs": [{"name": "dense", "datatype": "FP32", "shape": [2, 4], "data": ' + deep + b"}]}")


def grpc_tensor(name, datatype, shape, **contents):
    made = pb.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=shape)
    for key, values in contents.items():
        getattr(made.contents, key).extend(values)
    return made


def grpc_infer(inputs=None, raw=(RAW_DENSE, RAW_SPARSE), model="identity", **more):
    inputs = inputs or [grpc_tensor("dense", "FP32", [2, 4]), grpc_tensor("sparse", "INT64", [2, 3])]
    return pb.ModelInferRequest(model_name=model, inputs=inputs, raw_input_contents=raw, **more)


def grpc_cases():
    """(name, call, request as a message or bytes, the answer's type)"""
    d, s = grpc_tensor("dense", "FP32", [2, 4]), grpc_tensor("sparse", "INT64", [2, 3])
    yield "live", "ServerLive", pb.ServerLiveRequest(), pb.ServerLiveResponse
    yield "ready", "ServerReady", pb.ServerReadyRequest(), pb.ServerReadyResponse
    yield "model ready", "ModelReady", pb.ModelReadyRequest(name="identity"), pb.ModelReadyResponse
    yield "unknown model ready", "ModelReady", pb.ModelReadyRequest(name="nosuch"), pb.ModelReadyResponse
    yield "server metadata", "ServerMetadata", pb.ServerMetadataRequest(), pb.ServerMetadataResponse
    metadata = lambda **of: ("ModelMetadata", pb.ModelMetadataRequest(**of), pb.ModelMetadataResponse)
    yield "model metadata", *metadata(name="identity")
    yield "model metadata of a version", *metadata(name="identity", version="1")
    yield "unknown model's metadata", *metadata(name="nosuch")
    yield "unknown version's metadata", *metadata(name="identity", version="7")
    yield "version that is no number", *metadata(name="identity", version="x")
    yield "model config", "ModelConfig", pb.ModelConfigRequest(name="identity"), pb.ModelConfigResponse
    yield "unknown model's statistics", "ModelStatistics", pb.ModelStatisticsRequest(name="nosuch"), pb.ModelStatisticsResponse
    yield "repository index", "RepositoryIndex", pb.RepositoryIndexRequest(), pb.RepositoryIndexResponse
    yield "load of an unknown model", "RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="nosuch"), pb.RepositoryModelLoadResponse
    call = lambda name, request: (name, "ModelInfer", request, pb.ModelInferResponse)
    yield call("infer", grpc_infer())
    yield call("infer with a version", grpc_infer(model_version="1"))
    yield call("infer with an id", grpc_infer(id="abc"))
    typed = [
        grpc_tensor("dense", "FP32", [2, 4], fp32_contents=DENSE),
        grpc_tensor("sparse", "INT64", [2, 3], int64_contents=SPARSE),
    ]
    yield call("infer, typed contents", grpc_infer(typed, ()))
    output = pb.ModelInferRequest.InferRequestedOutputTensor
    yield call("infer, named output", grpc_infer(outputs=[output(name="scores")]))
    yield call("infer with an unknown model", grpc_infer(model="nosuch"))
    yield call("infer with no model", grpc_infer(model=""))
    yield call("infer with an unknown version", grpc_infer(model_version="7"))
    yield call("unexpected output", grpc_infer(outputs=[output(name="mine")]))
    yield call("no inputs", pb.ModelInferRequest(model_name="identity"))
    yield call("missing input", grpc_infer([d], [RAW_DENSE]))
    yield call("unexpected input", grpc_infer([d, s, grpc_tensor("mine", "FP32", [1])], [RAW_DENSE, RAW_SPARSE, b"1234"]))
    yield call("fewer raw contents than inputs", grpc_infer([d, s], [RAW_DENSE]))
    yield call("more raw contents than inputs", grpc_infer([d, s], [RAW_DENSE, RAW_SPARSE, RAW_SPARSE]))
    yield call("raw and typed contents", grpc_infer(typed))
    yield call("no contents", grpc_infer([d, s], ()))
    yield call("raw contents too short", grpc_infer([d, s], [RAW_DENSE[:-4], RAW_SPARSE]))
    yield call("raw contents too long", grpc_infer([d, s], [RAW_DENSE + b"1234", RAW_SPARSE]))
    yield call("wrong type", grpc_infer([d, grpc_tensor("sparse", "FP32", [2, 3])]))
    yield call("unknown type", grpc_infer([d, grpc_tensor("sparse", "INT65", [2, 3])]))
    yield call("typed contents of another type", grpc_infer([grpc_tensor("dense", "FP32", [2, 4], int64_contents=SPARSE), typed[1]], ()))
    yield call("too few typed contents", grpc_infer([typed[0], grpc_tensor("sparse", "INT64", [2, 3], int64_contents=SPARSE[:5])], ()))
    yield call("wrong rank", grpc_infer([grpc_tensor("dense", "FP32", [8]), s]))
    yield call("wrong width", grpc_infer([grpc_tensor("dense", "FP32", [2, 3]), s]))
    yield call("no samples", grpc_infer([grpc_tensor("dense", "FP32", [0, 4]), grpc_tensor("sparse", "INT64", [0, 3])], [b"", b""]))
    yield call("negative dimension", grpc_infer([grpc_tensor("dense", "FP32", [-2, 4]), s]))
    yield call("huge dimension", grpc_infer([grpc_tensor("dense", "FP32", [2**62, 4]), s]))
    yield call("no protobuf", b"\xff\xff\xff\xff\xff")
    yield "unknown call", "NoSuch", b"", None


def shown(body):
    try:
        return {"text": body.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode()}


class Living:
    """A Triton that is started again when a request ends it."""

    def __init__(self, scratch):
        self.scratch, self.server = scratch, None
        self.start()

    def start(self):
        options = ["--model-control-mode=explicit", "--load-model=identity"]
        self.server = Triton(self.scratch, f"{self.scratch}/log", options=options)

    def what_happened(self):
        """After a connection broke off."""
        time.sleep(0.5)
        if self.server.process.poll() is None:
            return "the connection breaks off"
        self.start()
        return "the server ends"


def record_http(living):
    kept = ("content-type", "content-encoding", "inference-header-content-length")
    for name, method, path, body, headers in http_cases():
        request = {"method": method, "path": path, "headers": headers, "body": shown(body)}
        connection = http.client.HTTPConnection("127.0.0.1", living.server.http, timeout=20)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException):
            yield {"name": name, "request": request, "answer": {"nothing": living.what_happened()}}
            continue
        if answer.headers.get("content-encoding") == "gzip":
            content = gzip.decompress(content)
        yield {
            "name": name,
            "request": request,
            "answer": {
                "status": answer.status,
                "headers": {k.lower(): v for k, v in answer.getheaders() if k.lower() in kept},
                "body": shown(content),
            },
        }
        connection.close()


def record_grpc(living):
    raw = lambda data: data
    with grpc.insecure_channel(f"127.0.0.1:{living.server.grpc}") as channel:
        for name, call, request, kind in grpc_cases():
            body = request if isinstance(request, bytes) else request.SerializeToString(deterministic=True)
            row = {"name": name, "call": call, "request": base64.b64encode(body).decode()}
            try:
                answer = channel.unary_unary(SERVICE + call, raw, raw)(body, timeout=20)
                message = MessageToDict(kind.FromString(answer), preserving_proto_field_name=True)
                row["answer"] = {"code": "OK", "message": message}
            except grpc.RpcError as error:
                row["answer"] = {"code": error.code().name, "details": error.details()}
            yield row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=pathlib.Path, default=OUTPUT)
    output = parser.parse_args().output
    with tempfile.TemporaryDirectory() as scratch:
        model = pathlib.Path(scratch) / "identity"
        (model / "1").mkdir(parents=True)
        (model / "config.pbtxt").write_text(CONFIG)
        (model / "1/model.py").write_text(MODEL)
        living = Living(scratch)
        try:
            transcript = {
                "server": "triton 2.51.0",
                "http": list(record_http(living)),
                "grpc": list(record_grpc(living)),
            }
        finally:
            living.server.stop()
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(transcript, indent=1) + "\n")
    print(f"{len(transcript['http'])} HTTP and {len(transcript['grpc'])} gRPC requests: {output}")


if __name__ == "__main__":
    main()
