"""The peers, each in its best honest set-up: `setup` once, then `run` a batch at a time.

A batch is prepared outside the timed part, as (ids, offsets) tensors of the peer's own choice.
"""

import time

import torch

import fbgemm_repair
from layers import STACKS

FBGEMM_FACTS = fbgemm_repair.repair()  # before FBGEMM's first lookup

from fbgemm_gpu.split_embedding_configs import SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import (
    BoundsCheckMode,
    EmbeddingLocation,
    PoolingMode,
)
from fbgemm_gpu.split_table_batched_embeddings_ops_inference import (
    IntNBitTableBatchedEmbeddingBagsCodegen,
)
from fbgemm_gpu.tbe.utils.quantize import quantize_embs

MODES = {"sum": 0, "mean": 1, "max": 2}
INDEX_TYPES = (torch.int64, torch.int32)
FBGEMM_KINDS = {
    "fp32": SparseType.FP32,
    "fp16": SparseType.FP16,
    "int8": SparseType.INT8,
    "int4": SparseType.INT4,
}


class TorchBags:
    """One `torch.embedding_bag` a table; outputs stay apart."""

    def setup(self, tables, mode="sum", padding=None, index_type=torch.int64):
        self.tables, self.mode = tables, MODES[mode]
        self.padding = padding
        self.index_type = index_type
        return self

    def prepare(self, ids, offsets, weights=None):
        """Ids, offsets and per-sample weights of one batch, a tuple a table."""
        bags = (len(offsets) - 1) // len(self.tables)
        batch = []
        for table in range(len(self.tables)):
            at = offsets[table * bags : (table + 1) * bags + 1]
            part = slice(int(at[0]), int(at[-1]))
            batch.append(
                (
                    torch.from_numpy(ids[part]).to(self.index_type),
                    torch.from_numpy(at - at[0]).to(self.index_type),
                    None if weights is None else torch.from_numpy(weights[part]),
                )
            )
        return batch

    def run(self, batch):
        return [
            # scale_grad_by_freq, mode, sparse, per-sample weights, include_last_offset, padding
            torch.embedding_bag(
                table, ids, offsets, False, self.mode, False, weights, True, self.padding
            )[0]
            for table, (ids, offsets, weights) in zip(self.tables, batch)
        ]


class TorchQuantised(TorchBags):
    """PyTorch's int8 or int4 operator on rows that it packed itself; sums only."""

    OPS = {
        "int8": (
            torch.ops.quantized.embedding_bag_byte_prepack,
            torch.ops.quantized.embedding_bag_byte_rowwise_offsets,
        ),
        "int4": (
            torch.ops.quantized.embedding_bag_4bit_prepack,
            torch.ops.quantized.embedding_bag_4bit_rowwise_offsets,
        ),
    }

    def setup(self, tables, dtype="int8", index_type=torch.int64):
        prepack, op = self.OPS[dtype]
        # The overload itself: no search at every call.
        return self.share(op.default, [prepack(table) for table in tables], index_type)

    def share(self, op, packed, index_type):
        self.op, self.tables, self.index_type = op, packed, index_type
        return self

    def run(self, batch):
        return [
            self.op(table, ids, offsets, False, 0, False, weights, None, True)
            for table, (ids, offsets, weights) in zip(self.tables, batch)
        ]


class Fbgemm:
    """FBGEMM's table-batched inference operator: one call over all tables, fp32 output."""

    def setup(self, tables, dtype="fp32", mode="sum", index_type=torch.int32):
        kind = FBGEMM_KINDS[dtype]
        specs = [("", len(t), t.shape[1], kind, EmbeddingLocation.HOST) for t in tables]
        self.op = IntNBitTableBatchedEmbeddingBagsCodegen(
            specs,
            device="cpu",
            output_dtype=SparseType.FP32,
            pooling_mode={"sum": PoolingMode.SUM, "mean": PoolingMode.MEAN}[mode],
            bounds_check_mode=BoundsCheckMode.NONE,
        )
        self.op.initialize_weights()
        # Table by table, so that no second copy of all of them is ever in memory.
        for table, (rows, scale_bias) in zip(tables, self.op.split_embedding_weights()):
            quantised = quantize_embs(table, kind)
            rows.copy_(quantised[0])
            if scale_bias is not None:
                scale_bias.copy_(quantised[1])
        return self.share(self.op, index_type)

    def share(self, op, index_type):
        self.op, self.index_type = op, index_type
        return self

    def prepare(self, ids, offsets, weights=None):
        return (
            torch.from_numpy(ids).to(self.index_type),
            torch.from_numpy(offsets).to(self.index_type),
            None if weights is None else torch.from_numpy(weights),
        )

    def run(self, batch):
        return [self.op(*batch)]


def compiled(module):
    """`torch.compile` with the weights frozen into the code; needs a C++ compiler."""
    import torch._inductor.config

    torch._inductor.config.freezing = True
    torch._inductor.config.cpp.enable_kernel_profile = False
    return torch.compile(module, dynamic=False)


class Mlp:
    """One MLP; a batch is its input."""

    def setup(self, layers, last, kind, dtype, batch):
        self.dtype, self.stack = dtype, STACKS[kind](layers, last, dtype, batch)
        return self

    def prepare(self, dense):
        return torch.from_numpy(dense).to(self.dtype)

    def run(self, batch):
        return [self.stack(batch)]


class Dlrm:
    """A whole model around a `TorchBags`: MLPs and the dot interaction in one type."""

    def setup(self, bags, bottom, top, kind, dtype, batch):
        self.bags, self.dtype = bags, dtype
        if kind == "compiled":
            kind, self.run = "eager", compiled(self.run)
        self.bottom = STACKS[kind](bottom, "relu", dtype, batch)
        self.top = STACKS[kind](top, "sigmoid", dtype, batch)
        self.vectors = len(bags.tables) + 1
        row, column = torch.tril_indices(self.vectors, self.vectors, offset=-1)
        self.lower = row * self.vectors + column
        return self

    def prepare(self, ids, offsets, dense):
        return self.bags.prepare(ids, offsets), torch.from_numpy(dense).to(self.dtype)

    def run(self, batch):
        ids, dense = batch
        x = self.bottom(dense)
        rows, dim = x.shape
        pooled = self.bags.run(ids)
        if pooled[0].dtype != self.dtype:  # fp32 tables below a bf16 model
            stacked = torch.cat([x, torch.cat(pooled, dim=1).to(self.dtype)], dim=1)
        else:
            stacked = torch.cat([x, *pooled], dim=1)
        stacked = stacked.view(rows, self.vectors, dim)
        products = torch.bmm(stacked, stacked.transpose(1, 2)).view(rows, -1)
        features = torch.cat([x, products.index_select(1, self.lower)], dim=1)
        return [self.top(features)]


class Entry:
    """A peer with its prepared batches, ready to be timed."""

    def __init__(self, name, peer, raw):
        self.name, self.peer = name, peer
        self.batches = [peer.prepare(*one) for one in raw]

    def go(self):
        """One pass over all batches, in nanoseconds."""
        with torch.inference_mode():
            run = self.peer.run
            start = time.perf_counter_ns()
            for batch in self.batches:
                run(batch)
            return time.perf_counter_ns() - start

    def outputs(self):
        """Each batch's output as one fp32 tensor."""
        with torch.inference_mode():
            for batch in self.batches:
                yield torch.cat(self.peer.run(batch), dim=1).float()


def fastest(candidates, raw, passes=3):
    """The quickest of several set-ups of one peer, by name, and what each took."""
    best, took = None, {}
    for name, make in candidates.items():
        entry = Entry(name, make(), raw)
        entry.go()
        took[name] = min(entry.go() for _ in range(passes))
        if best is None or took[name] < took[best.name]:
            best = entry
        del entry
    return best, took
