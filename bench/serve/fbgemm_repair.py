"""Gives FBGEMM's wheel back its view of the processor, and checks that it took.

In the wheels of torch 2.14 both libtorch.so and libc10.so carry a copy of the
cpuinfo library. Torch's own libraries share the copy in libtorch.so. FBGEMM's
fbgemm.so is opened later in a scope of its own, finds libc10.so first, and so
reads `cpuinfo_isa` there. `cpuinfo_initialize` fills only libtorch.so's word,
so the one that FBGEMM reads stays empty, `fbgemmHasAvx2Support()` answers no,
and every embedding lookup falls to a scalar kernel 10 to 60 times slower.

The repair fills the empty copies from the full one. It must run before
FBGEMM's first lookup, which remembers its choice of kernel.
"""

import ctypes
import pathlib
import time

import torch

ISA_BYTES = 85  # size of struct cpuinfo_x86_isa as `nm -S` shows it for cpuinfo_isa
AVX2 = "_ZN6fbgemm20fbgemmHasAvx2SupportEv"
AVX512 = "_ZN6fbgemm22fbgemmHasAvx512SupportEv"
# A cached row of 128 floats takes 4 to 8 ns in a vector kernel and above 100 in the scalar one.
HOT_ROW_NS_MAX = 40.0


class RepairFailed(RuntimeError):
    """FBGEMM still cannot see the processor; its times would not be honest."""


def processor_flags():
    for line in open("/proc/cpuinfo"):
        if line.startswith("flags"):
            return set(line.split(":", 1)[1].split())
    return set()


def libraries():
    """The loaded libraries that may hold a copy of cpuinfo, by name."""
    import fbgemm_gpu

    torch_dir = pathlib.Path(torch.__file__).parent / "lib"
    fbgemm_dir = pathlib.Path(fbgemm_gpu.__file__).parent
    paths = [torch_dir / n for n in ("libtorch.so", "libc10.so", "libtorch_cpu.so")]
    paths.append(fbgemm_dir / "fbgemm.so")
    return {p.name: ctypes.CDLL(str(p)) for p in paths if p.exists()}


def answers(fbgemm):
    """What fbgemm.so itself says of the processor."""
    said = {}
    for name, symbol in (("avx2", AVX2), ("avx512", AVX512)):
        ask = getattr(fbgemm, symbol)
        ask.restype = ctypes.c_bool
        said[name] = bool(ask())
    return said


def isa_words(libs):
    """Every distinct copy of cpuinfo_isa, by its address."""
    words = {}
    for lib in libs.values():
        try:
            word = (ctypes.c_uint8 * ISA_BYTES).in_dll(lib, "cpuinfo_isa")
        except ValueError:
            continue  # this library has no copy
        words[ctypes.addressof(word)] = word
    return list(words.values())


def repair():
    """Fills FBGEMM's CPU word where it is empty; returns what was found and done."""
    libs = libraries()
    flags = processor_flags()
    expected = {
        "avx2": "avx2" in flags,
        "avx512": {"avx512f", "avx512dq", "avx512bw", "avx512vl"} <= flags,
    }
    # Not only when the answers are wrong: an initialised word never harms.
    for lib in libs.values():
        try:
            lib.cpuinfo_initialize()
        except AttributeError:
            continue
    before = answers(libs["fbgemm.so"])
    if before != expected:
        words = isa_words(libs)
        full = max(words, key=lambda word: sum(bytes(word)))
        for word in words:
            if not any(word):
                ctypes.memmove(word, full, ISA_BYTES)
    after = answers(libs["fbgemm.so"])
    if after != expected:
        raise RepairFailed(
            f"fbgemm.so sees {after} on a processor with {expected}; "
            "use the versions of setup.sh, or look for its copy of cpuinfo_isa with nm -D"
        )
    speed = hot_row_ns()
    if expected["avx2"] and speed > HOT_ROW_NS_MAX:
        raise RepairFailed(f"a cached row takes fbgemm {speed:.0f} ns: it is on its scalar kernel")
    return {
        "needed": before != expected,
        "before": before,
        "after": after,
        "hot_row_ns": round(speed, 2),
    }


def hot_row_ns(rows=1000, dim=128, bags=512, pooling=50, passes=20):
    """Time a row of a table that fits in cache: tells a vector kernel from a scalar one."""
    from fbgemm_gpu.split_embedding_configs import SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_inference import (
        IntNBitTableBatchedEmbeddingBagsCodegen as Tables,
    )

    spec = ("", rows, dim, SparseType.FP32, EmbeddingLocation.HOST)
    tables = Tables([spec], device="cpu", output_dtype=SparseType.FP32)
    tables.initialize_weights()
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, rows, (bags * pooling,), generator=generator, dtype=torch.int32)
    offsets = torch.arange(0, bags * pooling + 1, pooling, dtype=torch.int32)
    best = float("inf")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a second thread that waits for a busy core would hide the kernel
    with torch.inference_mode():
        for _ in range(passes):
            start = time.perf_counter_ns()
            tables(ids, offsets)
            best = min(best, time.perf_counter_ns() - start)
    torch.set_num_threads(threads)
    return best / (bags * pooling)


if __name__ == "__main__":
    import json

    print(json.dumps(repair()))
