"""The same model behind FastAPI and uvicorn, with binary tensors of the Open Inference Protocol.

It is what a team writes without a model server: no batching, and the model runs in the event loop,
which on one core is faster than a hand-over to a thread.
"""

import os

import numpy
import orjson
import torch
from fastapi import FastAPI, Request, Response

import dlrm

app = FastAPI()
model = dlrm.load_from_environment()
DENSE, SPARSE = int(os.environ["DLRM_DENSE"]), int(os.environ["DLRM_WIDTH"])
ROWS = os.environ["DLRM_TABLE_ROWS"]
HEADER_LENGTH = "inference-header-content-length"


@app.get("/v2/health/ready")
async def ready():
    return {}


@app.get("/v2/models/dlrm")
async def metadata():
    inputs = [
        {"name": "dense", "datatype": "FP32", "shape": [-1, DENSE]},
        {"name": "sparse", "datatype": "INT64", "shape": [-1, SPARSE]},
    ]
    return {"name": "dlrm", "versions": ["1"], "inputs": inputs}


@app.get("/v2/models/dlrm/config")
async def config():
    ids = os.environ["DLRM_IDS_PER_BAG"]
    return {"parameters": {"table_rows": {"string_value": ROWS}, "ids_per_bag": {"string_value": ids}}}


@app.post("/v2/models/dlrm/infer")
async def infer(request: Request):
    body = await request.body()
    length = int(request.headers[HEADER_LENGTH])
    head = orjson.loads(body[:length])
    arrays, at = {}, length
    for tensor in head["inputs"]:
        size = tensor["parameters"]["binary_data_size"]
        kind = {"FP32": numpy.float32, "INT64": numpy.int64}[tensor["datatype"]]
        array = numpy.frombuffer(bytearray(body[at : at + size]), kind)
        arrays[tensor["name"]] = torch.from_numpy(array.reshape(tensor["shape"]))
        at += size
    scores = model(arrays["dense"], arrays["sparse"]).numpy()
    output = {
        "name": "scores",
        "datatype": "FP32",
        "shape": scores.shape,
        "parameters": {"binary_data_size": scores.nbytes},
    }
    text = orjson.dumps({"model_name": "dlrm", "model_version": "1", "outputs": [output]})
    headers = {HEADER_LENGTH: str(len(text))}
    return Response(text + scores.tobytes(), media_type="application/octet-stream", headers=headers)
