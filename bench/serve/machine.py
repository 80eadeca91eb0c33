"""What a measurement was made on."""

import os
import pathlib
import platform


def field(path, name):
    for line in open(path):
        if line.startswith(name):
            return line.split(":", 1)[1].strip()
    return None


def caches():
    """Size of each cache that core 0 uses, such as {"L1d": "32K", "L3": "32768K"}."""
    found = {}
    for index in sorted(pathlib.Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        read = lambda name: (index / name).read_text().strip()
        kind = {"Data": "d", "Instruction": "i"}.get(read("type"), "")
        found[f"L{read('level')}{kind}"] = read("size")
    return found


def chosen(path):
    """The bracketed word of a kernel setting, such as `madvise`."""
    try:
        return pathlib.Path(path).read_text().split("[")[1].split("]")[0]
    except (OSError, IndexError):
        return None


def facts():
    thp = "/sys/kernel/mm/transparent_hugepage"
    return {
        "cpu": field("/proc/cpuinfo", "model name"),
        "cpu_family": field("/proc/cpuinfo", "cpu family"),
        "cpu_model": field("/proc/cpuinfo", "model\t"),
        "cores": len(os.sched_getaffinity(0)),
        "caches": caches(),
        "memory": field("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "thp_enabled": chosen(f"{thp}/enabled"),
        "thp_defrag": chosen(f"{thp}/defrag"),
    }


def identity(facts):
    """Tells processors apart: hypervisors give different ones the same name."""
    caches = facts["caches"]
    return facts["cpu"], caches.get("L2"), caches.get("L3"), facts["torch_cpu_capability"]


def label(facts):
    cpu, l2, _, capability = identity(facts)
    return f"{cpu}, {capability}, L2 {l2}"


def huge_share():
    """Share of this process's anonymous memory that huge pages really back."""
    kb = lambda name: int(field("/proc/self/smaps_rollup", name).split()[0])
    return round(kb("AnonHugePages") / max(kb("Anonymous"), 1), 3)


def peak_mb():
    return int(field("/proc/self/status", "VmHWM").split()[0]) // 1024


def load_average():
    return os.getloadavg()[0]
