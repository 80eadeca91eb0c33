"""DGL's own distributed trainer on several machines, beside Hither's ggs.

    python bench/train/dgl_distributed.py cut GRAPH FOLDER --parts 8
    python bench/train/dgl_distributed.py machine FOLDER --number N --addresses A,B,… --rounds 20
    python bench/train/dgl_distributed.py score GRAPH FOLDER

`hither-bench distributed --dgl PYTHON` does all three: it starts `machine` on each of its emulated machines. A
machine runs DGL's server for its part (METIS, as Hither's) and one trainer. A round is ten steps, as in Hither: SAGE of
2 layers and 64 hidden, 64 training nodes of the part and 5 neighbours per layer in a step, Adam 0.01, gradients averaged by
PyTorch's DistributedDataParallel over gloo. The first trainer prints the seconds of each round and keeps the model, which
`score` evaluates with all neighbours afterwards. Needs the environment of DGL (setup.sh).
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

HIDDEN, BATCH, FANOUT, STEPS, RATE = 64, 64, 5, 10, 0.01
NAME = "bench"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    roles = parser.add_subparsers(dest="role", required=True)
    cut = roles.add_parser("cut")
    cut.add_argument("graph", type=pathlib.Path)
    machine = roles.add_parser("machine")
    trainer = roles.add_parser("trainer")
    score = roles.add_parser("score")
    score.add_argument("graph", type=pathlib.Path)
    for role in (cut, machine, trainer, score):
        role.add_argument("folder", type=pathlib.Path)
    cut.add_argument("--parts", type=int, default=8)
    machine.add_argument("--addresses", required=True)
    for role in (machine, trainer):
        role.add_argument("--number", type=int, required=True)
        role.add_argument("--rounds", type=int, default=20)
    return parser.parse_args()


def whole(path):
    """The graph with features, labels and split, as DGL has it."""
    import dgl
    import torch
    import dataset

    arrays, metadata = dataset.read(path)
    tensor = lambda array: torch.from_numpy(array.astype("int64"))
    empty = torch.tensor([], dtype=torch.int64)
    graph = dgl.graph(("csc", (tensor(arrays["offsets"]), tensor(arrays["neighbours"]), empty)))
    graph.ndata["feat"] = torch.from_numpy(dataset.dense(arrays, metadata).copy())
    graph.ndata["label"] = tensor(arrays["labels"]).flatten()
    for name in ("train", "valid", "test"):
        mask = torch.zeros(graph.num_nodes(), dtype=torch.bool)
        mask[tensor(arrays[name])] = True
        graph.ndata[name] = mask
    return graph


def cut(args):
    import dgl

    graph = whole(args.graph)
    classes = int(graph.ndata["label"].max()) + 1
    args.folder.mkdir(parents=True, exist_ok=True)
    (args.folder / "classes").write_text(str(classes))
    dgl.distributed.partition_graph(
        graph, NAME, args.parts, str(args.folder), part_method="metis", balance_ntypes=graph.ndata["train"]
    )


def machine(args):
    """A server and a trainer, which share memory."""
    addresses = args.addresses.split(",")
    config = args.folder / f"ip-{args.number}.txt"
    config.write_text("\n".join(f"{address} 30050" for address in addresses) + "\n")
    common = {
        "DGL_DIST_MODE": "distributed",
        "DGL_CONF_PATH": str(args.folder / f"{NAME}.json"),
        "DGL_IP_CONFIG": str(config),
        "DGL_NUM_SERVER": "1",
        "DGL_NUM_SAMPLER": "0",
        "DGL_NUM_CLIENT": str(len(addresses)),
        "DGL_GRAPH_FORMAT": "csc",
        "DGL_KEEP_ALIVE": "0",
        "OMP_NUM_THREADS": "1",
    }
    words = [sys.executable, __file__, "trainer", args.folder, "--number", str(args.number)]
    words += ["--rounds", str(args.rounds)]
    server = {"DGL_ROLE": "server", "DGL_SERVER_ID": str(args.number)}
    trainer = {
        "DGL_ROLE": "client",
        "MASTER_ADDR": addresses[0],
        "MASTER_PORT": "30060",
        "RANK": str(args.number),
        "WORLD_SIZE": str(len(addresses)),
        "GLOO_SOCKET_IFNAME": "eth0",
    }
    processes = [subprocess.Popen(words, env=os.environ | common | own) for own in (server, trainer)]
    failed = processes[1].wait() != 0
    if failed:
        processes[0].kill()
    processes[0].wait()
    sys.exit(failed)


def layers(inputs, classes):
    import torch
    from dgl.nn import SAGEConv

    class Sage(torch.nn.Module):
        def __init__(self):
            super().__init__()
            widths = [inputs, HIDDEN, classes]
            self.layers = torch.nn.ModuleList(
                SAGEConv(before, after, "mean") for before, after in zip(widths, widths[1:])
            )

        def forward(self, blocks, x):
            for number, (layer, block) in enumerate(zip(self.layers, blocks)):
                x = layer(block, x)
                x = x.relu() if number + 1 < len(self.layers) else x
            return x

    return Sage()


def trainer(args):
    import dgl
    import torch

    # In the process of a server this never returns.
    dgl.distributed.initialize(os.environ["DGL_IP_CONFIG"])
    torch.distributed.init_process_group("gloo")
    graph = dgl.distributed.DistGraph(NAME, part_config=os.environ["DGL_CONF_PATH"])
    nodes = dgl.distributed.node_split(graph.ndata["train"], graph.get_partition_book(), force_even=True)
    sampler = dgl.dataloading.NeighborSampler([FANOUT, FANOUT])
    loader = dgl.dataloading.DistNodeDataLoader(graph, nodes, sampler, batch_size=BATCH, shuffle=True)
    classes = int((args.folder / "classes").read_text())
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(layers(graph.ndata["feat"].shape[1], classes))
    optimiser = torch.optim.Adam(model.parameters(), RATE)
    batches = (batch for _ in range(args.rounds * STEPS) for batch in loader)
    for number in range(args.rounds):
        torch.distributed.barrier()
        start = time.perf_counter()
        for _ in range(STEPS):
            sources, seeds, blocks = next(batches)
            loss = torch.nn.functional.cross_entropy(
                model(blocks, graph.ndata["feat"][sources]), graph.ndata["label"][seeds]
            )
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        torch.distributed.barrier()
        if args.number == 0:
            print(json.dumps({"round": number + 1, "s": time.perf_counter() - start}), flush=True)
            torch.save(model.module.state_dict(), args.folder / f"model-{number + 1}.pt")


def score(args):
    """Validation accuracy after each round, with all neighbours."""
    import torch

    graph = whole(args.graph)
    features, labels, valid = (graph.ndata[name] for name in ("feat", "label", "valid"))
    model = layers(features.shape[1], int((args.folder / "classes").read_text()))
    for path in sorted(args.folder.glob("model-*.pt"), key=lambda path: int(path.stem.split("-")[1])):
        model.load_state_dict(torch.load(path))
        with torch.no_grad():
            right = (model([graph, graph], features).argmax(1) == labels)[valid]
        print(json.dumps({"round": int(path.stem.split("-")[1]), "valid": float(right.float().mean())}))
        path.unlink()


if __name__ == "__main__":
    ARGS = arguments()
    {"cut": cut, "machine": machine, "trainer": trainer, "score": score}[ARGS.role](ARGS)
