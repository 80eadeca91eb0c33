"""Epochs of LightGCN in PyTorch Geometric, to compare `hither train` with.

    python bench/train/links_pyg.py GOWALLA [--adjacency edges|csr] [--steps 10] [--threads 1]

The model is PyG's own (torch_geometric.nn.LightGCN, 3 layers, 64 dimensions), trained as in PyG's
examples/lightgcn.py: BPR, one random negative per link, batches of 8192 links, Adam, one propagation
over the whole graph per step. `--adjacency edges` passes `edge_index`, as that example does; `csr`
passes a normalised sparse matrix, for which PyG calls torch's sparse product and no message is
written out. The same with hither:

    hither --threads 1 train GOWALLA --loss bpr --batch 8192 \\
        --local-steps 10 --rounds 2 --valid-share 0 --eval-every 2

Prints one JSON line: CPU and wall-clock seconds per step and per epoch, without reading the data and
without the first step.
"""

import argparse
import json
import pathlib
import resource
import time

import torch
import torch_geometric
from torch_geometric.nn import LightGCN

from gowalla import both_directions, normalised_matrix, read


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--adjacency", choices=["edges", "csr"], default="edges")
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    users, items = read(args.folder / "train.txt")
    test_users, test_items = read(args.folder / "test.txt")
    first = max(users.max(), test_users.max()) + 1
    count = max(items.max(), test_items.max()) + 1
    nodes = int(first + count)
    edge_index = both_directions(users, items, first)
    links = edge_index[:, : len(users)]
    adjacency = edge_index
    model = LightGCN(nodes, 64, 3)
    if args.adjacency == "csr":
        adjacency = normalised_matrix(edge_index, nodes)
        for conv in model.convs:
            conv.normalize = False
    optimiser = torch.optim.Adam(model.parameters(), lr=0.001)

    def step():
        batch = torch.randint(links.size(1), (args.batch,))
        source, target = links[:, batch]
        other = torch.randint(int(first), nodes, (args.batch,))
        pairs = torch.cat([torch.stack([source, target]), torch.stack([source, other])], 1)
        optimiser.zero_grad()
        linked, unlinked = model(adjacency, pairs).chunk(2)
        ids = torch.cat([source, target, other]).unique()
        loss = model.recommendation_loss(linked, unlinked, node_id=ids)
        loss.backward()
        optimiser.step()
        return loss.item()

    def cpu():
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime

    step()
    cpu_start, wall_start = cpu(), time.perf_counter()
    losses = [step() for _ in range(args.steps)]
    cpu_s, wall_s = (cpu() - cpu_start) / args.steps, (time.perf_counter() - wall_start) / args.steps
    per_epoch = links.size(1) / args.batch
    result = {
        "peer": "torch_geometric.nn.LightGCN",
        "adjacency": args.adjacency,
        "torch": torch.__version__,
        "torch_geometric": torch_geometric.__version__,
        "threads": args.threads,
        "batch": args.batch,
        "steps": args.steps,
        "loss": losses[-1],
        "cpu_s_per_step": round(cpu_s, 4),
        "wall_s_per_step": round(wall_s, 4),
        "cpu_s_per_epoch": round(cpu_s * per_epoch, 1),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
