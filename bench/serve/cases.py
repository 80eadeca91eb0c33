"""What is compared: the models' shapes, the cases, and the figure each is to reach."""

import dataclasses

import ids

# tables, rows, dim, pooling; MLPs are whatever `hither model generate` makes of the preset.
SHAPES = {
    "micro24": (12, 500_000, 128, 150),
    "rm2_1": (60, 1_000_000, 128, 120),
    "rm1": (32, 500_000, 64, 80),
    "mlperf": (26, 400_000, 128, 1),
}
PADDING_INDEX, PADDING_SHARE = 0, 0.1
TOUCH = "touch limit"
DTYPES = ("fp32", "bf16")
# Whole models: the fastest of eager, traced and packed layers; compiled; other runtimes.
MODEL_PEERS = {
    "PyTorch model fp32": 1.3,
    "PyTorch compiled fp32": 1.3,
    "ONNX Runtime fp32": 1.3,
    "OpenVINO fp32": 1.3,
    "PyTorch model bf16": 1.5,
    "PyTorch compiled bf16": 1.5,
}


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    preset: str
    stage: str  # bags, mlp or model: the subcommand of `hither bench`
    batch: int
    batches: int
    hotness: str
    threads: int
    dtype: str = "fp32"
    mode: str = "sum"
    padding: bool = False
    # Peer -> figure to reach; None where the peer is shown without one.
    goals: dict = dataclasses.field(default_factory=dict, hash=False)

    @property
    def model(self):
        """Cases with equal keys share a model on disk and the peers' tables."""
        return (self.preset, self.mode, self.padding)


def bag_name(dtype, batch, hotness, threads, kind=""):
    return "-".join([dtype, *([kind] if kind else []), str(batch), hotness, f"{threads}t"])


def fp32_large(traces):
    """micro24 at batch 2048: touch limit, PyTorch and FBGEMM, every hotness, both thread counts."""
    torch_goals = {"random": 1.10, "medium": 1.25, "high": 1.5, "one-item": 1.0}
    for threads in (1, 2):
        for hotness in ids.CLASSES + (tuple(ids.TRACES) if traces else ()):
            goals = {
                TOUCH: 0.95,
                "PyTorch fp32": torch_goals.get(hotness) if threads == 1 else None,
                "FBGEMM fp32": 2.0 if threads == 2 else None,
            }
            name = bag_name("fp32", 2048, hotness, threads)
            yield Case(name, "micro24", "bags", 2048, 1, hotness, threads, goals=goals)


def fp32_small():
    """rm2_1 at batch 64."""
    for threads in (1, 2):
        for hotness, goal in (("random", 1.3), ("high", 1.6)):
            goals = {
                TOUCH: 0.95,
                "PyTorch fp32": goal if threads == 1 else None,
                "FBGEMM fp32": 2.0 if threads == 2 else None,
            }
            name = bag_name("fp32", 64, hotness, threads)
            yield Case(name, "rm2_1", "bags", 64, 8, hotness, threads, goals=goals)


QUANTISED_GOALS = {
    "int8": {"random": 1.75, "medium": 1.5, "high": 1.95, "one-item": 2.0},
    "int4": {"random": 1.75, "medium": 2.2, "high": 2.7, "one-item": 3.0},
}


def quantised():
    """One thread: PyTorch's int4 does not use a second one."""
    for dtype, goals in QUANTISED_GOALS.items():
        for hotness, goal in goals.items():
            peers = {f"PyTorch {dtype}": goal, f"FBGEMM {dtype}": None}
            name = bag_name(dtype, 2048, hotness, 1)
            yield Case(name, "micro24", "bags", 2048, 1, hotness, 1, dtype, goals=peers)


def slow_paths():
    """Max pooling and a padding index, which PyTorch has no fast path for."""
    for hotness in ("random", "medium", "high"):
        name = bag_name("fp32", 2048, hotness, 1, "max")
        goals = {"PyTorch fp32": 5.0}
        yield Case(name, "micro24", "bags", 2048, 1, hotness, 1, mode="max", goals=goals)
    for hotness in ("random", "medium", "high"):
        name = bag_name("fp32", 2048, hotness, 1, "padding")
        goals = {"PyTorch fp32": 2.0}
        yield Case(name, "micro24", "bags", 2048, 1, hotness, 1, padding=True, goals=goals)


def one_hot():
    for batch, batches, goal in ((1, 2000, 10.0), (16, 500, 3.0), (2048, 16, 1.3)):
        for hotness in ("random", "medium"):
            goals = {"PyTorch fp32": goal, "FBGEMM fp32": None}
            name = bag_name("fp32", batch, hotness, 1, "onehot")
            yield Case(name, "mlperf", "bags", batch, batches, hotness, 1, goals=goals)


def models():
    for preset, batches in (("rm2_1", 8), ("rm1", 8), ("mlperf", 64)):
        for threads in (1, 2):
            for hotness in ("random", "medium", "high"):
                name = f"model-{preset}-64-{hotness}-{threads}t"
                goals = MODEL_PEERS
                yield Case(name, preset, "model", 64, batches, hotness, threads, goals=goals)


def throughput():
    """One model at growing batches: samples per second must not fall."""
    for batch, batches in ((1, 1024), (16, 128), (256, 16)):
        goals = {"PyTorch model fp32": None, "PyTorch model bf16": None}
        name = f"model-mlperf-{batch}-random-1t"
        yield Case(name, "mlperf", "model", batch, batches, "random", 1, goals=goals)


def mlps():
    """The MLPs alone, without figures: where a model's time beside the tables goes."""
    stacks = [f"PyTorch {stack} {dtype}" for stack in ("bottom", "top") for dtype in DTYPES]
    for preset in ("rm1", "mlperf"):
        for batch, batches in ((64, 32), (2048, 2)):
            goals = dict.fromkeys(stacks)
            name = f"mlp-{preset}-{batch}-1t"
            yield Case(name, preset, "mlp", batch, batches, "random", 1, goals=goals)


def every(traces):
    """All cases, those that share a model next to each other."""
    cases = [
        *fp32_large(traces),
        *quantised(),
        *slow_paths(),
        *fp32_small(),
        *models(),
        *throughput(),
        *mlps(),
        *one_hot(),
    ]
    order = list(dict.fromkeys(case.model for case in cases))
    return sorted(cases, key=lambda case: order.index(case.model))


@dataclasses.dataclass(frozen=True)
class Size:
    """A model's size as it is run, and what was cut to make it fit."""

    tables: int
    rows: int
    dim: int
    pooling: int
    reduced: tuple

    @property
    def table_bytes(self):
        return self.tables * self.rows * self.dim * 4


def size(preset, memory_bytes, pooling_max=None):
    tables, rows, dim, pooling = SHAPES[preset]
    reduced = []
    fit = int(memory_bytes // (tables * dim * 4))
    if fit < rows:
        reduced.append(f"rows {rows} -> {fit}")
        rows = fit
    if pooling_max is not None and pooling_max < pooling:
        reduced.append(f"pooling {pooling} -> {pooling_max}")
        pooling = pooling_max
    if rows < 1 or pooling < 1:
        raise ValueError(f"{preset} does not fit: raise --memory-gb or --pooling-max")
    return Size(tables, rows, dim, pooling, tuple(reduced))
