"""Ids of every hotness class, the same for every program and from the same seed.

A batch holds `tables * batch` bags, table after table; batches follow each other.
"""

import pathlib
import zlib

import numpy
from safetensors.numpy import save_file

# Exponents of Zipf's law; about 5, 24 and 60 % unique ids in 307,200 draws over 1M rows.
ZIPF = {"high": 1.37, "medium": 1.05, "low": 0.75}
CLASSES = ("one-item", "high", "medium", "low", "random")
TRACES = {"trace-medium": "reuse_medium_500K.txt", "trace-low": "reuse_low_500K.txt"}


def stream(seed, *names):
    """A generator of its own for every purpose, so that no draw depends on another."""
    return numpy.random.default_rng([seed] + [zlib.crc32(str(n).encode()) for n in names])


class Draws:
    """Draws the ids of each table in one class of hotness."""

    def __init__(self, hotness, rows, seed, traces=None, sample="measured"):
        self.hotness, self.rows, self.seed, self.sample = hotness, rows, seed, sample
        self.trace, self.at = None, 0
        if hotness in ZIPF:
            weights = numpy.arange(1, rows + 1, dtype=numpy.float64) ** -ZIPF[hotness]
            self.cumulative = numpy.cumsum(weights) / weights.sum()
        elif hotness in TRACES:
            path = pathlib.Path(traces) / TRACES[hotness]
            self.trace = numpy.loadtxt(path, dtype=numpy.int64) % rows
        elif hotness not in ("one-item", "random"):
            raise ValueError(f"no hotness class {hotness!r}; one of {CLASSES + tuple(TRACES)}")

    def next(self, table, count):
        """The next `count` ids of a table."""
        if self.trace is not None:  # read circularly over tables and batches
            where = (self.at + numpy.arange(count)) % len(self.trace)
            self.at = (self.at + count) % len(self.trace)
            return self.trace[where]
        # Samples of other names have the same hot rows, but are drawn anew.
        draw = stream(self.seed, self.hotness, table, self.sample)
        if self.hotness == "random":
            return draw.integers(0, self.rows, count)
        ranks = numpy.zeros(count, dtype=numpy.int64)
        if self.hotness in ZIPF:
            ranks = numpy.searchsorted(self.cumulative, draw.random(count))
            ranks = numpy.minimum(ranks, self.rows - 1)
        return stream(self.seed, "permutation", table).permutation(self.rows)[ranks]


def make(
    hotness, tables, rows, batches, batch, pooling, seed, traces=None, padding=None, sample="measured"
):
    """Indices and offsets of all batches; a share of the ids is the padding index if given."""
    draws = Draws(hotness, rows, seed, traces, sample)
    count = batch * pooling
    indices = numpy.empty((batches, tables, count), dtype=numpy.int64)
    if draws.trace is not None:
        for at_batch in range(batches):
            for table in range(tables):
                indices[at_batch, table] = draws.next(table, count)
    else:  # all batches of a table at once: its permutation is dear for many rows
        for table in range(tables):
            indices[:, table] = draws.next(table, batches * count).reshape(batches, count)
    if padding is not None:
        index, share = padding
        indices[stream(seed, "padding").random(indices.shape) < share] = index
    offsets = numpy.arange(0, batches * tables * batch + 1, dtype=numpy.int64) * pooling
    return indices.reshape(-1), offsets


def write(path, tensors):
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path)


def features(name, batches, batch, width, seed):
    """Dense features of all batches."""
    return stream(seed, name).standard_normal((batches * batch, width), dtype=numpy.float32)


def split(indices, offsets, tables, batch):
    """The batches one by one: for each, its indices and offsets that begin at zero."""
    bags = tables * batch
    for start in range(0, len(offsets) - 1, bags):
        at = offsets[start : start + bags + 1]
        yield indices[at[0] : at[-1]], at - at[0]


def unique_share(indices, offsets, tables, batch):
    """Unique ids per table and batch over all ids: what the hotness comes to."""
    unique = total = 0
    for ids, at in split(indices, offsets, tables, batch):
        for table in range(tables):
            part = ids[at[table * batch] : at[(table + 1) * batch]]
            unique += len(numpy.unique(part))
            total += len(part)
    return unique / max(total, 1)
