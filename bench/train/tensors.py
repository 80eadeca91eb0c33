"""A dataset as PyTorch's tensors, for every peer the same."""

import numpy
import torch

import dataset


class Tensors:
    def __init__(self, path):
        arrays, metadata = dataset.read(path)
        wide = lambda name: torch.from_numpy(arrays[name].astype(numpy.int64))
        self.x = torch.from_numpy(numpy.array(dataset.dense(arrays, metadata)))
        self.offsets, self.neighbours = wide("offsets"), wide("neighbours")
        self.nodes = len(self.offsets) - 1
        self.train = wide("train")
        # u32::MAX, a node without a class, is in no split.
        self.labels, self.classes = wide("labels"), int(metadata["classes"])

    def edge_index(self):
        """Sorted by target; the graph is undirected, so a row's neighbours are its sources."""
        targets = torch.repeat_interleave(torch.arange(self.nodes), self.offsets.diff())
        return torch.stack([self.neighbours, targets])
