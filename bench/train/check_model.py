"""Whether PyTorch Geometric gets the logits that Hither wrote, from the model that Hither wrote.

    python bench/train/check_model.py --dataset FILE --model model.safetensors \\
        --embeddings embeddings.safetensors [--most 1e-3]

Layers are read off the keys: `lin_l` is SAGE, `att_src` GAT, `lin` GCN, a bare `weight` Linear, and
a number without keys APPNP. What keys cannot say comes from the model's metadata: how many layers
there are, `norm`, `alpha`, `steps`. Prints the largest difference; exit 1 if it is above --most.
"""

import argparse
import json
import re
import sys

import torch
from safetensors import safe_open
from torch_geometric.nn import APPNP, GAT, GCN, BatchNorm, GATConv, GCNConv, GraphSAGE, SAGEConv
from torch_geometric.nn import SimpleConv

from tensors import Tensors


class MeanGCN(torch.nn.Module):
    """Linear of the mean over a node and its neighbours, with the key names of GCNConv."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.lin = torch.nn.Linear(inputs, outputs, bias=False)
        self.bias = torch.nn.Parameter(torch.zeros(outputs))
        self.mean = SimpleConv(aggr="mean", combine_root="self_loop")

    def forward(self, x, edge_index):
        return self.lin(self.mean(x, edge_index)) + self.bias


class Stack(torch.nn.Module):
    """Layers of several kinds: batch norm and ReLU after each but the last and APPNP."""

    def __init__(self, convs, norms):
        super().__init__()
        self.convs, self.norms = torch.nn.ModuleList(convs), torch.nn.ModuleDict(norms)

    def forward(self, x, edge_index):
        for number, conv in enumerate(self.convs):
            x = conv(x) if isinstance(conv, torch.nn.Linear) else conv(x, edge_index)
            if number + 1 < len(self.convs) and not isinstance(conv, APPNP):
                if str(number) in self.norms:
                    x = self.norms[str(number)](x)
                x = x.relu()
        return x


def read(path):
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}


def kinds_of(state, spec):
    """The kind of each layer, in order."""
    kinds = []
    for number in range(len(spec["layers"])):
        has = lambda name: f"convs.{number}.{name}" in state
        if has("lin_l.weight"):
            kinds.append("sage")
        elif has("att_src"):
            kinds.append("gat")
        elif has("lin.weight"):
            kinds.append("gcn-mean" if spec["norm"] == "mean" else "gcn")
        else:
            kinds.append("linear" if has("weight") else "appnp")
    return kinds


def layer_of(number, kind, state, spec, last):
    of = lambda name: state[f"convs.{number}.{name}"]
    shape = lambda name: reversed(of(name).shape)
    if kind == "sage":
        return SAGEConv(*shape("lin_l.weight"))
    if kind == "gcn":
        return GCNConv(*shape("lin.weight"))
    if kind == "gcn-mean":
        return MeanGCN(*shape("lin.weight"))
    if kind == "linear":
        return torch.nn.Linear(*shape("weight"))
    if kind == "appnp":
        return APPNP(K=spec["steps"], alpha=spec["alpha"])
    _, heads, width = of("att_src").shape
    return GATConv(of("lin.weight").shape[1], width, heads=heads, concat=not last)


def whole_model(kinds, state):
    """PyG's own model of that kind, where it has one: then its key names are met too."""
    kind = kinds[0]
    last, number = len(kinds) - 1, len(kinds)
    if set(kinds) != {kind} or kind not in ("sage", "gcn", "gat") or number < 2:
        return None
    key = {"sage": "lin_l.weight"}.get(kind, "lin.weight")
    hidden, inputs = state[f"convs.0.{key}"].shape
    norm = {"norm": BatchNorm(hidden)} if "norms.0.module.weight" in state else {}
    more = {}
    outputs = len(state[f"convs.{last}.{key}"])
    if kind == "gat":
        more["heads"] = state["convs.0.att_src"].shape[1]
        outputs = state[f"convs.{last}.att_src"].shape[2]
    model = {"sage": GraphSAGE, "gcn": GCN, "gat": GAT}[kind]
    return model(inputs, hidden, number, outputs, dropout=0.0, **norm, **more)


def model_of(state, metadata):
    spec = json.loads(metadata["hither.model"])
    kinds = kinds_of(state, spec)
    model = whole_model(kinds, state)
    if model is None:
        last = len(kinds) - 1
        convs = [
            layer_of(number, kind, state, spec, number == last)
            for number, kind in enumerate(kinds)
        ]
        ends = r"norms\.(\d+)\.module\.weight"
        norms = {
            found[1]: BatchNorm(len(value))
            for name, value in state.items()
            if (found := re.fullmatch(ends, name))
        }
        model = Stack(convs, norms)
    model.load_state_dict(state, strict=True)
    return model.eval(), kinds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--embeddings", required=True)
    parser.add_argument("--most", type=float, default=1e-3, help="largest difference allowed")
    options = parser.parse_args()
    tensors = Tensors(options.dataset)
    model, kinds = model_of(*read(options.model))
    with torch.no_grad():
        logits = model(tensors.x, tensors.edge_index())
    written = read(options.embeddings)[0]["logits"]
    if logits.shape != written.shape:
        print(f"logits are {list(written.shape)}, PyG's {list(logits.shape)}")
        return 1
    difference = (logits - written).abs().max().item()
    same = (logits.argmax(1) == written.argmax(1)).float().mean().item()
    print(
        f"{type(model).__name__} of {','.join(kinds)}: largest difference {difference:.2e} "
        f"of logits up to {logits.abs().max():.2f}; {100 * same:.3f} % of nodes get the same class"
    )
    return 0 if difference <= options.most else 1


if __name__ == "__main__":
    sys.exit(main())
