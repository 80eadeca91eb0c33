"""gowalla in LightGCN's layout, and the matrix that LightGCN propagates by: shared by the links_* scripts."""

import numpy
import torch


def read(path):
    """Users and items of `user item item …` lines."""
    users, items = [], []
    for line in path.read_text().splitlines():
        user, *more = map(int, line.split())
        users += [user] * len(more)
        items += more
    return numpy.array(users), numpy.array(items)


def normalised_matrix(edge_index, nodes):
    """The symmetric matrix of weights 1/sqrt(degree * degree), so that each convolution is one sparse product."""
    row, column = edge_index
    root = torch.bincount(row, minlength=nodes).clamp_min(1).to(torch.float32).rsqrt()
    matrix = torch.sparse_coo_tensor(edge_index, root[row] * root[column], (nodes, nodes))
    return matrix.coalesce().to_sparse_csr()


def both_directions(users, items, first_item):
    """Every link from both ends; items are numbered behind the users."""
    links = torch.from_numpy(numpy.stack([users, items + first_item]))
    return torch.cat([links, links.flip(0)], 1)
