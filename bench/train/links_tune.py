"""Which loss, negatives, temperature and ranking suit LightGCN on gowalla, judged by validation links only.

    python bench/train/links_tune.py GOWALLA [--temperature 0.1] [--negatives-by nodes|links|both] [--epochs 2]

A plain PyTorch version of `hither train GOWALLA` with the softmax (3 layers, 64 dimensions, batches of 8192,
1024 negatives, Adam 0.01), for trials that need no build. 5 % of the training links are held out, and every epoch
ranks all items for 8,000 of their users in three ways: by products, by cosines, and by products of rows that
were divided by the roots of their lengths. Prints a JSON line per epoch with recall@20 and ndcg@20 of each. Test links
are not read. Needs torch, numpy and scipy.
"""

import argparse
import json
import pathlib
import resource

import numpy
import scipy.sparse
import torch
import torch.nn.functional as F

from gowalla import both_directions, normalised_matrix, read

DIM, LAYERS, K = 64, 3, 20


def incidence(users, items, shape):
    return scipy.sparse.csr_matrix((numpy.ones(len(users), bool), (users, items)), shape=shape)


def scores(out, held, known, users_count):
    """Recall and ndcg of the held-out items, for each way to rank."""
    gains = 1 / numpy.log2(numpy.arange(2, K + 2))
    users = numpy.flatnonzero(numpy.diff(held.indptr))
    users = users[:: max(1, len(users) // 8000)]
    items = out[users_count:]
    lengths = items.norm(dim=1, keepdim=True).clamp_min(1e-12)
    found = {}
    for name, rows in [("products", items), ("cosines", items / lengths), ("roots", items / lengths.sqrt())]:
        recall = ndcg = 0.0
        for start in range(0, len(users), 1024):
            some = users[start : start + 1024]
            ranks = out[some] @ rows.T
            linked = known[some]
            ranks[numpy.repeat(numpy.arange(len(some)), numpy.diff(linked.indptr)), linked.indices] = -1e9
            best, wanted = ranks.topk(K).indices.numpy(), held[some]
            for at in range(len(some)):
                own = wanted.indices[wanted.indptr[at] : wanted.indptr[at + 1]]
                hit = numpy.isin(best[at], own)
                recall += hit.sum() / len(own)
                ndcg += (hit * gains).sum() / gains[: len(own)].sum()
        found[name] = [round(recall / len(users), 4), round(ndcg / len(users), 4)]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--temperature", type=float, default=0.1)
    parser.add_argument("--negatives", type=int, default=1024)
    parser.add_argument("--negatives-by", choices=["nodes", "links", "both"], default="nodes")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    users, items = read(args.folder / "train.txt")
    shape = (int(users.max()) + 1, int(items.max()) + 1)
    order = numpy.random.default_rng(0).permutation(len(users))
    valid, train = numpy.split(order, [len(users) // 20])
    held = incidence(users[valid], items[valid], shape)
    users, items = users[train], items[train]
    known = incidence(users, items, shape)
    matrix = normalised_matrix(both_directions(users, items, shape[0]), sum(shape))

    def propagate(rows):
        mean, step = rows.clone(), rows
        for _ in range(LAYERS):
            step = matrix @ step
            mean += step
        return mean / (LAYERS + 1)

    def draw():
        evenly = torch.randint(shape[1], (args.negatives,))
        by_links = links[1, torch.randint(links.shape[1], (args.negatives,))]
        half = args.negatives // 2
        both = torch.cat([evenly[:half], by_links[half:]])
        return {"nodes": evenly, "links": by_links, "both": both}[args.negatives_by]

    links = torch.from_numpy(numpy.stack([users, items]))
    table = torch.nn.Parameter(torch.randn(sum(shape), DIM) * 0.1)
    optimiser = torch.optim.Adam([table], lr=args.lr)
    for epoch in range(1, args.epochs + 1):
        order, total = torch.randperm(links.shape[1]), 0.0
        batches = order[: len(order) // args.batch * args.batch].split(args.batch)
        for batch in batches:
            source, target = links[:, batch]
            negatives = draw()
            with torch.no_grad():
                out = propagate(table)
            out.requires_grad_(True)
            units = [F.normalize(out[rows], dim=1) for rows in (source, target + shape[0], negatives + shape[0])]
            own = (units[0] * units[1]).sum(1, keepdim=True) / args.temperature
            others = units[0] @ units[2].T / args.temperature
            # Negatives that the user is linked to do not count.
            linked = torch.from_numpy(known[source.numpy()][:, negatives.numpy()].toarray())
            others = others.masked_fill(linked, float("-inf"))
            loss = F.cross_entropy(torch.cat([own, others], 1), torch.zeros(len(source), dtype=torch.int64))
            loss.backward()
            with torch.no_grad():
                # The propagation is symmetric: it is its own backward pass.
                table.grad = propagate(out.grad)
            optimiser.step()
            total += loss.item()
        with torch.no_grad():
            row = scores(propagate(table), held, known, shape[0])
        cpu_s = round(resource.getrusage(resource.RUSAGE_SELF).ru_utime, 1)
        print(json.dumps({"epoch": epoch, "loss": round(total / len(batches), 4), **row, "cpu_s": cpu_s}), flush=True)


if __name__ == "__main__":
    main()
