"""One case by DGL; prints one line of JSON.

    python bench/train/peer_dgl.py --dataset FILE --case CASE --threads N --epochs E
"""

import os
import sys

import peer

if __name__ == "__main__":
    OPTIONS = peer.arguments(__doc__)
    os.environ["OMP_NUM_THREADS"] = str(OPTIONS.threads)  # read when PyTorch is imported

import dgl
import dgl.graphbolt as gb
import dgl.sparse
import torch
import torch.nn.functional as F
from dgl.nn import GraphConv, SAGEConv


def backends(case, threads):
    """DGL's ways. `dataloader` is its first sampler, `graphbolt` the newer one; a worker samples
    while the model learns, and costs a core."""
    if peer.CASES[case][1] is None:
        return ["nn", "sparse"] if peer.CASES[case][0] == "gcn" else ["nn"]
    found = ["dataloader", "graphbolt"]
    if threads > 1:
        names = [(name, share) for name in found for share in ("", "-shared")]
        found = found + [f"{name}-worker{share}" for name, share in names]
    return found


class Layers(torch.nn.Module):
    """The same layers over one graph, or over a block for each."""

    def __init__(self, kind, tensors):
        super().__init__()
        widths = [tensors.x.size(1)] + [peer.HIDDEN] * (peer.LAYERS - 1) + [tensors.classes]
        more = {"gcn": {"norm": "both"}, "sage": {"aggregator_type": "mean"}, "sparse": {}}[kind]
        layer = {"gcn": GraphConv, "sage": SAGEConv, "sparse": SparseGCN}[kind]
        pairs = zip(widths[:-1], widths[1:])
        self.layers = torch.nn.ModuleList(layer(before, after, **more) for before, after in pairs)

    def forward(self, graphs, x):
        for number, layer in enumerate(self.layers):
            x = layer(graphs[number], x)
            if number + 1 < len(self.layers):
                x = x.relu()
        return x


class SparseGCN(torch.nn.Linear):
    """GCN over a matrix of dgl.sparse that is normalised once; begins as GraphConv does."""

    def reset_parameters(self):
        first = torch.nn.init.xavier_uniform_(torch.empty(self.in_features, self.out_features))
        self.weight.data = first.t().contiguous()
        torch.nn.init.zeros_(self.bias)

    def forward(self, adjacent, x):
        return dgl.sparse.spmm(adjacent, F.linear(x, self.weight)) + self.bias


def graph_of(tensors):
    empty = torch.tensor([], dtype=torch.int64)
    return dgl.graph(("csc", (tensors.offsets, tensors.neighbours, empty)))


def full_epoch(backend, tensors, case):
    kind = peer.CASES[case][0]
    graph = graph_of(tensors)
    if kind == "gcn":
        graph = dgl.add_self_loop(graph)
    if backend == "sparse":
        scale = graph.in_degrees().float().rsqrt()
        source, target = graph.edges()
        matrix = dgl.sparse.spmatrix(
            torch.stack([target, source]), scale[target] * scale[source], (tensors.nodes,) * 2
        )
        kind, graph = "sparse", matrix
    else:
        graph.create_formats_()
    model = Layers(kind, tensors).train()
    optimiser = torch.optim.Adam(model.parameters(), lr=peer.LEARNING_RATE)
    graphs, wanted = [graph] * peer.LAYERS, tensors.labels[tensors.train]

    def epoch():
        optimiser.zero_grad()
        loss = F.cross_entropy(model(graphs, tensors.x)[tensors.train], wanted)
        loss.backward()
        optimiser.step()
        return loss.item()

    return epoch


def dataloader(tensors, fanout, batch_nodes, workers):
    graph = graph_of(tensors)
    graph.ndata["x"], graph.ndata["y"] = tensors.x, tensors.labels
    sampler = dgl.dataloading.NeighborSampler(
        fanout, prefetch_node_feats=["x"], prefetch_labels=["y"]
    )
    loader = dgl.dataloading.DataLoader(
        graph, tensors.train, sampler, batch_size=batch_nodes, shuffle=True, num_workers=workers,
        persistent_workers=workers > 0,
    )
    return loader, lambda batch: (
        batch[2], batch[2][0].srcdata["x"], batch[2][-1].dstdata["y"]
    )


def graphbolt(tensors, fanout, batch_nodes, workers):
    graph = gb.fused_csc_sampling_graph(tensors.offsets, tensors.neighbours)
    nodes = gb.ItemSet(
        (tensors.train, tensors.labels[tensors.train]), names=("seed_nodes", "labels")
    )
    store = gb.BasicFeatureStore({("node", None, "x"): gb.TorchBasedFeature(tensors.x)})
    pipe = gb.ItemSampler(nodes, batch_size=batch_nodes, shuffle=True)
    pipe = pipe.sample_neighbor(graph, fanout)
    pipe = pipe.fetch_feature(store, node_feature_keys=["x"])
    loader = gb.DataLoader(pipe, num_workers=workers)
    return loader, lambda batch: (batch.blocks, batch.node_features["x"], batch.labels)


def minibatch_epoch(backend, tensors, case, batches, phases):
    fanout, batch_nodes = [peer.FANOUT] * peer.LAYERS, peer.CASES[case][1]
    workers = 1 if "worker" in backend else 0
    made = dataloader if backend.startswith("dataloader") else graphbolt
    loader, parts = made(tensors, fanout, batch_nodes, workers)
    model = Layers(peer.CASES[case][0], tensors).train()
    optimiser = torch.optim.Adam(model.parameters(), lr=peer.LEARNING_RATE)

    def epoch():
        loss = None
        for blocks, x, wanted in phases.batches(loader, parts, batches):
            optimiser.zero_grad()
            loss = F.cross_entropy(model(blocks, x), wanted)
            loss.backward()
            optimiser.step()
        return loss.item()

    return epoch


def needed_gb(_):
    return lambda backend: 0


def versions():
    return {"dgl": dgl.__version__}


if __name__ == "__main__":
    peer.run("dgl", OPTIONS, sys.modules[__name__])
