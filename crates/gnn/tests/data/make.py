"""Makes the folders and files that tests/load.rs reads: one small graph in every layout.

    python3 -m venv venv && venv/bin/pip install numpy scipy torch torch_geometric
    venv/bin/python make.py

The files beside this script were made by numpy 2.4, scipy 1.17, torch 2.14 and torch_geometric 2.8; the test
knows the graph.
"""

import gzip
import json
import pickle
from collections import defaultdict
from pathlib import Path

import numpy
import scipy.sparse
import torch
from torch_geometric.data import Data, InMemoryDataset

HERE = Path(__file__).parent
NODES = 12
# Directed, with an edge that stands twice and a loop. Node 10 is alone.
EDGES = [(0, 1), (1, 0), (2, 2), (1, 2), (3, 0), (4, 5), (6, 5), (7, 4), (8, 3), (9, 8), (11, 9), (2, 11)]
# Node 10 has no class and no features.
LABELS = [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, -1, 1]
FEATURES = numpy.zeros((NODES, 4), dtype=numpy.float32)
for node in range(NODES):
    if node != 10:
        FEATURES[node, node % 4] = 1
        FEATURES[node, (node + 1) % 4] = 0.5 * node
TRAIN, VALID, TEST = [0, 1, 2], [3, 4, 5, 6, 7], [8, 9, 11]


def adjacency(values=1):
    rows, columns = zip(*EDGES)
    data = numpy.full(len(EDGES), values, dtype=numpy.float32)
    return scipy.sparse.csr_matrix((data, (rows, columns)), shape=(NODES, NODES))


def text(path, lines, packed=True):
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "".join(f"{line}\n" for line in lines).encode()
    if packed:
        # No time in the header: the same bytes each time.
        path = path.with_name(path.name + ".gz")
        content = gzip.compress(content, mtime=0)
    path.write_bytes(content)


def rows(table):
    return [",".join(str(value) for value in row) for row in table]


def split(folder, packed=True):
    for name, nodes in [("train", TRAIN), ("valid", VALID), ("test", TEST)]:
        text(folder / f"{name}.csv", nodes, packed)


def ogb():
    raw = HERE / "ogb/raw"
    text(raw / "edge.csv", rows(EDGES))
    text(raw / "num-node-list.csv", [NODES])
    text(raw / "num-edge-list.csv", [len(EDGES)])
    text(raw / "node-feat.csv", rows(FEATURES))
    text(raw / "node-label.csv", ["nan" if label < 0 else label for label in LABELS])
    split(HERE / "ogb/split/time")


def ogb_binary():
    raw = HERE / "ogb-binary/raw"
    raw.mkdir(parents=True, exist_ok=True)
    numpy.savez_compressed(
        raw / "data.npz",
        edge_index=numpy.array(EDGES).T,
        node_feat=FEATURES.astype(numpy.float16),
        num_nodes_list=numpy.array([NODES]),
        num_edges_list=numpy.array([len(EDGES)]),
    )
    labels = numpy.array([numpy.nan if label < 0 else label for label in LABELS], dtype=numpy.float32)
    numpy.savez_compressed(raw / "node-label.npz", node_label=labels.reshape(-1, 1))
    split(HERE / "ogb-binary/split/time", packed=False)


def ogb_proteins():
    """Features of edges, none of nodes; two questions a node."""
    raw = HERE / "ogb-proteins/raw"
    text(raw / "edge.csv", rows(EDGES))
    text(raw / "edge-feat.csv", [f"{number},{number / 2}" for number in range(len(EDGES))])
    text(raw / "num-node-list.csv", [NODES])
    text(raw / "num-edge-list.csv", [len(EDGES)])
    text(raw / "node-label.csv", [f"{node % 2},{int(node < 6)}" for node in range(NODES)])
    split(HERE / "ogb-proteins/split/species")


def planetoid(name, protocol):
    folder = HERE / name
    folder.mkdir(parents=True, exist_ok=True)
    one_hot = numpy.array([[int(label == c) for c in range(3)] for label in LABELS], dtype=numpy.int32)
    sparse = scipy.sparse.csr_matrix(FEATURES)
    # Out of order, and 10 is missing.
    test = [11, 8, 9]
    graph = defaultdict(list)
    for u, v in EDGES:
        graph[u].append(v)
        graph[v].append(u)
    parts = {
        "x": sparse[TRAIN], "tx": sparse[test], "allx": sparse[:8],
        "y": one_hot[TRAIN], "ty": one_hot[test], "ally": one_hot[:8],
        "graph": graph,
    }  # fmt: skip
    for part, value in parts.items():
        with open(folder / f"ind.tiny.{part}", "wb") as file:
            pickle.dump(value, file, protocol=protocol)
    text(folder / "ind.tiny.test.index", test, packed=False)


def shchur():
    sparse, matrix = scipy.sparse.csr_matrix(FEATURES), adjacency()
    labels = numpy.array(LABELS)
    numpy.savez(
        HERE / "shchur.npz",
        adj_data=matrix.data, adj_indices=matrix.indices, adj_indptr=matrix.indptr, adj_shape=matrix.shape,
        attr_data=sparse.data, attr_indices=sparse.indices, attr_indptr=sparse.indptr, attr_shape=sparse.shape,
        labels=labels, class_names=numpy.array(["a", "b", "c"], dtype=object),
    )  # fmt: skip
    with_dots = {f"adj_matrix.{part}": getattr(matrix, part) for part in ["data", "indices", "indptr", "shape"]}
    # Column after column, to be turned.
    numpy.savez_compressed(
        HERE / "shchur-dense.npz", attr_matrix=numpy.asfortranarray(FEATURES), labels=labels, **with_dots
    )


def masks():
    def mask(nodes):
        mask = numpy.zeros((2, NODES), dtype=bool)
        mask[1, nodes] = True
        mask[0, [node for node in range(3)]] = True
        return mask

    numpy.savez_compressed(
        HERE / "masks.npz",
        edges=numpy.array(EDGES), node_features=FEATURES, node_labels=numpy.array(LABELS),
        train_masks=mask(TRAIN), val_masks=mask(VALID), test_masks=mask(TEST),
    )  # fmt: skip


def saint(name, tasks):
    folder = HERE / name
    folder.mkdir(parents=True, exist_ok=True)
    scipy.sparse.save_npz(folder / "adj_full.npz", adjacency(True).astype(bool))
    numpy.save(folder / "feats.npy", FEATURES.astype(numpy.float64))
    if tasks:
        classes = {str(node): [node % 2, int(node < 6)] for node in range(NODES)}
    else:
        classes = {str(node): label for node, label in enumerate(LABELS) if label >= 0}
    (folder / "class_map.json").write_text(json.dumps(classes))
    (folder / "role.json").write_text(json.dumps({"tr": TRAIN[::-1], "va": VALID, "te": TEST}))


def ogb_saver():
    """As OGB's DatasetSaver writes it: text, an empty field for no label, and a pickled split of arrays."""
    raw = HERE / "ogb-saver/raw"
    text(raw / "edge.csv", rows(EDGES))
    text(raw / "num-node-list.csv", [NODES])
    text(raw / "num-edge-list.csv", [len(EDGES)])
    text(raw / "node-feat.csv", rows(FEATURES))
    text(raw / "node-label.csv", ['""' if label < 0 else float(label) for label in LABELS])
    for name, order in [("first", 1), ("second", -1)]:
        folder = HERE / "ogb-saver/split" / name
        folder.mkdir(parents=True, exist_ok=True)
        sets = {"train": TRAIN, "valid": VALID, "test": TEST}
        if name == "first":
            sets = {"train": TEST, "valid": TRAIN, "test": VALID}
        torch.save({key: numpy.array(nodes[::order]) for key, nodes in sets.items()}, folder / "split_dict.pt")


def pyg():
    def mask(nodes):
        mask = torch.zeros(NODES, 2, dtype=torch.bool)
        mask[nodes, 1] = True
        mask[[0, 1, 2], 0] = True
        return mask

    fields = dict(
        x=torch.from_numpy(FEATURES), edge_index=torch.tensor(EDGES).T, y=torch.tensor(LABELS),
        train_mask=mask(TRAIN), val_mask=mask(VALID), test_mask=mask(TEST),
        edge_attr=torch.ones(len(EDGES)), num_classes=3,
    )  # fmt: skip
    folder = HERE / "pyg"
    (folder / "processed").mkdir(parents=True, exist_ok=True)
    data = Data(**fields)
    torch.save(data, folder / "object.pt")
    torch.save((data, None), folder / "collated.pt")
    InMemoryDataset.save([data], folder / "processed/data.pt")
    InMemoryDataset.save([data, data], folder / "two-graphs.pt")
    torch.save({"x": fields["x"]}, folder / "no-edges.pt")
    # One split, by lists of nodes; no masks in the other.
    arrays = {name: fields[name].numpy() for name in ["x", "edge_index", "y"]}
    numpy.savez(folder / "lists.npz", train_idx=TRAIN, val_idx=VALID, test_idx=TEST, **arrays)
    numpy.savez_compressed(folder / "no-split.npz", edges=numpy.array(EDGES), features=FEATURES, labels=arrays["y"])
    targets = numpy.linspace(0, 1, NODES, dtype=numpy.float32)
    numpy.savez(folder / "regression.npz", edge_index=arrays["edge_index"], x=FEATURES, y=targets)


ogb()
ogb_binary()
ogb_saver()
pyg()
ogb_proteins()
for protocol in [2, 4, 5]:
    planetoid(f"planetoid-{protocol}", protocol)
shchur()
masks()
saint("saint", tasks=False)
saint("saint-tasks", tasks=True)
