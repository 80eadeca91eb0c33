"""The DLRM that the peers serve: one of our model directories, in PyTorch or ONNX Runtime.

Every peer gets its fastest set-up. All tables are one tensor and all bags one call, which is faster
than a call per table at every batch; the way that MLPs run is chosen by a trial when a server starts.
A request is `dense` FP32 [B, n] and `sparse` INT64 [B, ids of all tables], table after table.
"""

import json
import mmap
import os
import pathlib
import struct
import time

import numpy
import torch

from layers import STACKS
from runtimes import OnnxGraph

torch.set_num_threads(1)


class Weights:
    """The tensors of model.safetensors; tables of one shape as one tensor."""

    def __init__(self, directory):
        path = pathlib.Path(directory) / "model.safetensors"
        self.file = open(path, "rb")
        self.bytes = mmap.mmap(self.file.fileno(), 0, access=mmap.ACCESS_READ)
        (length,) = struct.unpack("<Q", self.bytes[:8])
        self.head = json.loads(self.bytes[8 : 8 + length])
        self.start = 8 + length
        self.tables = sum(name.startswith("emb_l.") for name in self.head)
        self.rows, self.dim = self.head["emb_l.0.weight"]["shape"]

    def tensor(self, name):
        entry = self.head[name]
        assert entry["dtype"] == "F32", f"{name} is {entry['dtype']}; peers take fp32"
        first, last = (self.start + at for at in entry["data_offsets"])
        array = numpy.frombuffer(self.bytes, numpy.float32, (last - first) // 4, first)
        return array.reshape(entry["shape"])

    def embeddings(self):
        """All tables below each other, in memory of the process."""
        whole = torch.empty(self.tables * self.rows, self.dim)
        for t in range(self.tables):
            whole[t * self.rows : (t + 1) * self.rows] = torch.from_numpy(
                self.tensor(f"emb_l.{t}.weight").copy()
            )
        return whole

    def mlp(self, prefix):
        layers = []
        while f"{prefix}.{2 * len(layers)}.weight" in self.head:
            at = f"{prefix}.{2 * len(layers)}"
            layers.append([torch.from_numpy(self.tensor(f"{at}.{p}").copy()) for p in ("weight", "bias")])
        return layers


class Torch:
    """The model in PyTorch; one of `dtypes` is that of MLPs and interaction, tables stay fp32."""

    def __init__(self, weights, ids_per_bag, dtypes=(torch.float32,), samples=16):
        self.ids_per_bag = ids_per_bag
        self.tables, self.vectors = weights.tables, weights.tables + 1
        self.load(weights)
        row, column = torch.tril_indices(self.vectors, self.vectors, offset=-1)
        self.lower = row * self.vectors + column
        layers = weights.mlp("bot_l"), weights.mlp("top_l")
        width = layers[0][0][0].shape[1]
        self.took_us = {}
        ways = {f"{name} {dtype}".replace("torch.", ""): (name, dtype) for dtype in dtypes for name in STACKS}
        # Fused kernels of oneDNN do not run in every type on every processor.
        for way, (name, dtype) in ways.items():
            try:
                self.stack(name, dtype, layers, samples)
                self.took_us[way] = self.trial(samples, width)
            except RuntimeError as error:
                self.took_us[way] = f"does not run: {str(error).splitlines()[0]}"
        timed = {way: us for way, us in self.took_us.items() if isinstance(us, float)}
        self.kind = min(timed, key=timed.get)
        self.stack(*ways[self.kind], layers, samples)

    def load(self, weights):
        self.embeddings = weights.embeddings()
        self.first = (torch.arange(self.tables) * weights.rows).view(1, self.tables, 1)

    def stack(self, name, dtype, layers, samples):
        self.dtype = dtype
        make = lambda layers, last: STACKS[name](layers, last, self.dtype, samples)
        self.bottom, self.top = make(layers[0], "relu"), make(layers[1], "sigmoid")

    def trial(self, samples, width):
        dense = torch.randn(samples, width)
        ids = torch.randint(0, 1000, (samples, self.tables * self.ids_per_bag))
        best = float("inf")
        for _ in range(12):
            start = time.perf_counter()
            self(dense, ids)
            best = min(best, (time.perf_counter() - start) * 1e6)
        return best

    @torch.inference_mode()
    def __call__(self, dense, sparse):
        x = self.bottom(dense.to(self.dtype))
        samples, dim = x.shape
        pooled = self.pooled(sparse.view(samples, self.tables, self.ids_per_bag))
        pooled = pooled.view(samples, self.tables, dim).to(self.dtype)
        stacked = torch.cat([x.unsqueeze(1), pooled], dim=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2)).view(samples, -1)
        features = torch.cat([x, products.index_select(1, self.lower)], dim=1)
        return self.top(features).float()


    def pooled(self, ids):
        samples, ids = len(ids), ids + self.first
        if self.ids_per_bag == 1:
            return torch.nn.functional.embedding(ids.view(samples, self.tables), self.embeddings)
        ids = ids.view(samples * self.tables, self.ids_per_bag)
        return torch.nn.functional.embedding_bag(ids, self.embeddings, mode="sum")


class Fbgemm(Torch):
    """The same with all tables in FBGEMM's inference operator, in int8."""

    def load(self, weights):
        import peers

        tables = [torch.from_numpy(weights.tensor(f"emb_l.{t}.weight").copy()) for t in range(self.tables)]
        self.bags = peers.Fbgemm().setup(tables, "int8")

    def pooled(self, ids):
        # Table after table, as FBGEMM takes them.
        ids = ids.to(self.bags.index_type).transpose(0, 1).reshape(-1)
        offsets = torch.arange(0, len(ids) + 1, self.ids_per_bag, dtype=self.bags.index_type)
        return self.bags.op(ids, offsets)


class Onnx:
    """The same graph in ONNX Runtime. It has no operator for bags: a bag is a Gather and a sum."""

    def __init__(self, weights, ids_per_bag):
        graph = OnnxGraph()
        self.kind, self.took_us = "onnxruntime " + graph.runtime.__version__, {}
        tables, bottom = weights.tables, weights.mlp("bot_l")
        self.embeddings = weights.embeddings().numpy()
        dense = graph.input("dense", numpy.float32, [None, bottom[0][0].shape[1]])
        sparse = graph.input("sparse", numpy.int64, [None, tables * ids_per_bag])
        whole = graph.input("tables", numpy.float32, list(self.embeddings.shape))
        x = graph.mlp(dense, "bottom", bottom, "Relu")
        shape = graph.constant("bags", numpy.array([-1, tables, ids_per_bag]))
        ids = graph.node("Reshape", sparse, shape, out="ids")
        first = graph.constant("first", (numpy.arange(tables) * weights.rows).reshape(1, tables, 1))
        rows = graph.node("Gather", whole, graph.node("Add", ids, first, out="at"), out="rows")
        pooled = graph.node("ReduceSum", rows, graph.constant("two", numpy.array([2])), out="pooled", keepdims=0)
        one = graph.node("Unsqueeze", x, graph.constant("one", numpy.array([1])), out="x1")
        stacked = graph.node("Concat", one, pooled, out="stacked", axis=1)
        self.score = graph.scores(x, stacked, tables + 1, weights.mlp("top_l"))
        self.session = graph.session(self.score, 1)
        # Bound once: the tables are never copied.
        self.value = graph.runtime.OrtValue.ortvalue_from_numpy
        self.bound = self.value(self.embeddings)

    def __call__(self, dense, sparse):
        inputs = {"dense": self.value(dense.numpy()), "sparse": self.value(sparse.numpy()), "tables": self.bound}
        return torch.from_numpy(self.session.run_with_ort_values([self.score], inputs)[0].numpy())


def load(directory, ids_per_bag, engine, samples):
    """`engine`: torch-fp32, torch-bf16, fbgemm-int8 or onnx."""
    weights = Weights(directory)
    if engine == "onnx":
        return Onnx(weights, ids_per_bag)
    fp32, bf16 = torch.float32, torch.bfloat16
    if engine == "fbgemm-int8":
        return Fbgemm(weights, ids_per_bag, (fp32, bf16), samples)
    return Torch(weights, ids_per_bag, {"torch-fp32": (fp32,), "torch-bf16": (bf16,)}[engine], samples)


def load_from_environment():
    """The server's processes are told by their environment what to load."""
    env = os.environ
    model = load(env["DLRM_MODEL"], int(env["DLRM_IDS_PER_BAG"]), env["DLRM_ENGINE"], int(env["DLRM_SAMPLES"]))
    if "DLRM_FACTS" in env:
        facts = {"stack": model.kind, "trial_us": model.took_us, "torch": torch.__version__}
        pathlib.Path(env["DLRM_FACTS"]).write_text(json.dumps(facts))
    return model
