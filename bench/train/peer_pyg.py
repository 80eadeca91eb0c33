"""One case by PyTorch Geometric; prints one line of JSON.

    python bench/train/peer_pyg.py --dataset FILE --case CASE --threads N --epochs E
"""

import os
import sys

import peer

if __name__ == "__main__":
    OPTIONS = peer.arguments(__doc__)
    os.environ["OMP_NUM_THREADS"] = str(OPTIONS.threads)  # read when PyTorch is imported

import torch
import torch.nn.functional as F
import torch_geometric
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GCN, GraphSAGE, SAGEConv

import dataset

FULL = ["scatter", "sparse-tensor", "csr-i64", "csr-i32", "edge-index"]


def backends(case, threads):
    """PyG's ways. `loader` is today's NeighborLoader as its examples use it, `loader-blocks` the
    same with batches cut so that no layer computes what the next does not read, `adjs` the older
    NeighborSampler, which cuts them itself. A worker samples while the model learns, and costs a
    core."""
    if peer.CASES[case][1] is None:
        return FULL
    found = ["loader", "loader-blocks", "adjs"]
    if threads > 1:
        found += [f"{name}-worker{share}" for name in found for share in ("", "-shared")]
    return found


def model_of(case, tensors, **more):
    kind = {"sage": GraphSAGE, "gcn": GCN}[peer.CASES[case][0]]
    shape = (tensors.x.size(1), peer.HIDDEN, peer.LAYERS, tensors.classes)
    return kind(*shape, dropout=0.0, **more)


def adjacency(backend, tensors, case):
    """The graph as a backend wants it; for GCN normalised once, before the clock starts."""
    nodes = tensors.nodes
    index, weight = tensors.edge_index(), None
    if peer.CASES[case][0] == "gcn":
        from torch_geometric.nn.conv.gcn_conv import gcn_norm

        index, weight = gcn_norm(index, num_nodes=nodes)
        order = torch.argsort(index[1] * nodes + index[0])
        index, weight = index[:, order].contiguous(), weight[order]
    if backend == "scatter":
        return index, weight
    if backend == "edge-index":
        adjacent = torch_geometric.EdgeIndex(
            index, sparse_size=(nodes, nodes), sort_order="col", is_undirected=True
        )
        return adjacent.fill_cache_(), weight
    if backend == "sparse-tensor":
        from torch_sparse import SparseTensor

        adjacent = SparseTensor(
            row=index[1], col=index[0], value=weight, sparse_sizes=(nodes, nodes), is_sorted=True
        )
        return adjacent.fill_cache_(), None
    width = torch.int32 if backend == "csr-i32" else torch.int64
    counts = torch.bincount(index[1], minlength=nodes).cumsum(0)
    rows = torch.cat([torch.zeros(1, dtype=torch.int64), counts]).to(width)
    values = torch.ones(index.size(1)) if weight is None else weight
    return torch.sparse_csr_tensor(rows, index[0].to(width), values, size=(nodes, nodes)), None


def full_epoch(backend, tensors, case):
    if backend == "edge-index":
        model = Matmul(case, tensors).train()
    elif peer.CASES[case][0] == "gcn":
        model = model_of(case, tensors, normalize=False).train()
    else:
        model = model_of(case, tensors).train()
    optimiser = torch.optim.Adam(model.parameters(), lr=peer.LEARNING_RATE)
    adjacent, weight = adjacency(backend, tensors, case)
    wanted = tensors.labels[tensors.train]

    def epoch():
        optimiser.zero_grad()
        out = model(tensors.x, adjacent, weight)
        loss = F.cross_entropy(out[tensors.train], wanted)
        loss.backward()
        optimiser.step()
        return loss.item()

    return epoch


def minibatch_epoch(backend, tensors, case, batches, phases):
    workers = {"num_workers": 1, "persistent_workers": True} if "worker" in backend else {}
    fanout, batch_nodes = [peer.FANOUT] * peer.LAYERS, peer.CASES[case][1]
    if backend.startswith("adjs"):
        loader = block_loader(tensors, fanout, batch_nodes, workers)
        parts = lambda batch: (
            tensors.x[batch[1]], [(adj, size[1]) for adj, _, size in batch[2]],
            tensors.labels[batch[1][: batch[0]]],
        )
    else:
        data = Data(x=tensors.x, y=tensors.labels, edge_index=tensors.edge_index())
        loader = NeighborLoader(
            data, fanout, input_nodes=tensors.train, batch_size=batch_nodes, shuffle=True,
            is_sorted=True, **workers,
        )
        graphs = cut if backend.startswith("loader-blocks") else lambda batch: batch.edge_index
        parts = lambda batch: (batch.x, graphs(batch), batch.y[: batch.batch_size])
    whole = backend.startswith("loader") and not backend.startswith("loader-blocks")
    model = (model_of(case, tensors) if whole else Blocks(tensors)).train()
    optimiser = torch.optim.Adam(model.parameters(), lr=peer.LEARNING_RATE)

    def epoch():
        loss = None
        for x, graphs, wanted in phases.batches(loader, parts, batches):
            optimiser.zero_grad()
            loss = F.cross_entropy(model(x, graphs)[: len(wanted)], wanted)
            loss.backward()
            optimiser.step()
        return loss.item()

    return epoch


def cut(batch):
    """A NeighborLoader's batch as one bipartite block a layer. Nodes and edges stand in the order
    in which they were sampled, hop after hop; pyg-lib's sampler would tell how many each took."""
    from torch_sparse import SparseTensor

    source, target = batch.edge_index
    blocks, targets = [], batch.batch_size
    for _ in range(peer.LAYERS):
        count = int(torch.searchsorted(target, targets))
        reached = max(int(source[:count].max()) + 1, targets) if count else targets
        adjacent = SparseTensor(
            row=target[:count], col=source[:count], sparse_sizes=(targets, reached),
            is_sorted=True,
        )
        blocks.append((adjacent, targets))
        targets = reached
    return blocks[::-1]


def matmul_gcn(conv, x, adjacent, weight):
    return adjacent.matmul(conv.lin(x), input_value=weight, transpose=True) + conv.bias


def matmul_sage(conv, x, adjacent, _):
    return conv.lin_l(adjacent.matmul(x, reduce="mean", transpose=True)) + conv.lin_r(x)


class Matmul(torch.nn.Module):
    """PyG's model, its layers multiplying by an EdgeIndex, which keeps its transpose. GCNConv and
    SAGEConv scatter when they are given one."""

    def __init__(self, case, tensors):
        super().__init__()
        self.convs = model_of(case, tensors).convs
        self.layer = {"gcn": matmul_gcn, "sage": matmul_sage}[peer.CASES[case][0]]

    def forward(self, x, adjacent, weight):
        for number, conv in enumerate(self.convs):
            x = self.layer(conv, x, adjacent, weight)
            if number + 1 < len(self.convs):
                x = x.relu()
        return x


class Blocks(torch.nn.Module):
    """GraphSAGE over bipartite blocks: each layer only for the nodes that the next one reads."""

    def __init__(self, tensors):
        super().__init__()
        widths = [tensors.x.size(1)] + [peer.HIDDEN] * (peer.LAYERS - 1) + [tensors.classes]
        pairs = zip(widths[:-1], widths[1:])
        self.convs = torch.nn.ModuleList(SAGEConv(before, after) for before, after in pairs)

    def forward(self, x, blocks):
        for number, (conv, (adjacent, targets)) in enumerate(zip(self.convs, blocks)):
            x = conv((x, x[:targets]), adjacent)
            if number + 1 < len(self.convs):
                x = x.relu()
        return x


def block_loader(tensors, fanout, batch_nodes, workers):
    from torch_geometric.loader import NeighborSampler
    from torch_sparse import SparseTensor

    adjacent = SparseTensor(
        rowptr=tensors.offsets, col=tensors.neighbours, is_sorted=True,
        sparse_sizes=(tensors.nodes, tensors.nodes),
    )
    return NeighborSampler(
        adjacent, sizes=fanout, node_idx=tensors.train, return_e_id=False,
        batch_size=batch_nodes, shuffle=True, **workers,
    )


def needed_gb(options):
    """What a backend takes at least, so that a trial does not use up the machine's memory.
    Scattering keeps a row of the hidden layer for every edge, and its gradient."""
    arrays, _ = dataset.read(options.dataset)
    nodes, edges = len(arrays["labels"]), len(arrays["neighbours"])
    scattered = lambda backend: 2.2 * (edges + nodes) if backend == "scatter" else 0
    return lambda backend: 4 * peer.HIDDEN * (scattered(backend) + 6 * nodes) / 1e9


def versions():
    found = {"torch_geometric": torch_geometric.__version__}
    found["pyg_lib"] = torch_geometric.typing.WITH_PYG_LIB
    for name in ("torch_sparse", "torch_scatter"):
        try:
            found[name] = __import__(name).__version__
        except (ImportError, OSError) as error:
            found[name] = str(error)
    return found


if __name__ == "__main__":
    peer.run("pyg", OPTIONS, sys.modules[__name__])
