#!/usr/bin/env python3
"""Fits the generator's distributions to two public data sets and prints workloads.toml.

    python3 fit.py philly.csv helios_cluster_summary.csv > workloads.toml

Philly: demand is the table of counts; durations are quantiles by class of demand, between which
the generator interpolates the logarithm; arrivals by hour of day and by day of week are counts.
Helios: only a summary is public in this form, so demand is a geometric series over powers of two
with the published mean, and durations are log-normal with a median that grows as a power of the
demand; the three free figures meet the published median and mean run time and mean GPU time.
Standard library only.
"""
import csv
import datetime
import math
import sys
from collections import Counter

QUANTILES = [i / 100 for i in range(100)] + [.992, .994, .996, .998, .999, 1]
CLASSES = [1, 2, 4, 8, 16, 1_000_000]  # largest demand of each class
HELIOS_GPUS = [1, 2, 4, 8, 16, 32, 64, 128]
DURATION_MAX_S = 1e7  # the generator's cap


def bisect(function, low, high):
    """The root of a rising function."""
    for _ in range(200):
        middle = (low + high) / 2
        if function(middle) < 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def normal_cdf(x):
    return 0.5 * math.erfc(-x / math.sqrt(2))


def capped_mean(median, sigma):
    """Mean of a log-normal whose values above the cap are the cap."""
    z = math.log(DURATION_MAX_S / median) / sigma
    whole = median * math.exp(sigma * sigma / 2)
    return whole * normal_cdf(z - sigma) + DURATION_MAX_S * normal_cdf(-z)


def philly(path):
    rows = [row for row in csv.DictReader(open(path)) if row["num_gpus"]]
    counts = Counter(int(row["num_gpus"]) for row in rows)
    print("[philly]")
    print(f"# {len(rows)} jobs: how many ask for so many GPUs.")
    print(f"gpus = {sorted(counts)}")
    print(f"weights = {[float(counts[g]) for g in sorted(counts)]}")
    times = [datetime.datetime.fromisoformat(row["timestamp"]) for row in rows]
    hours, days = Counter(t.hour for t in times), Counter(t.weekday() for t in times)
    print("# Jobs by hour of the day, and by day of the week from Monday.")
    print(f"hours = {[float(hours[h]) for h in range(24)]}")
    print(f"days = {[float(days[d]) for d in range(7)]}")
    print(f"quantiles = {[float(q) for q in QUANTILES]}")
    low = 1
    for high in CLASSES:
        durations = sorted(float(row["duration"]) for row in rows
                           if low <= int(row["num_gpus"]) <= high)
        last = len(durations) - 1
        seconds = [durations[min(last, int(q * len(durations)))] for q in QUANTILES]
        print(f"\n[[philly.duration]]  # {len(durations)} jobs\ngpus_max = {high}")
        print(f"seconds = {seconds}")
        low = high + 1


def helios(path):
    total = next(row for row in csv.DictReader(open(path)) if row["id"] == "total")
    mean_gpus = float(total["avg_gpu_num"])
    median_s, mean_s = float(total["med_run_time_gpu"]), float(total["avg_run_time_gpu"])
    gpu_time = sum(float(total[k]) for k in
                   ("complete_gpu_time", "cancel_gpu_time", "fail_gpu_time"))
    mean_gpu_s = gpu_time / float(total["gpu_job_num"])

    def weights(ratio):
        powers = [ratio ** k for k in range(len(HELIOS_GPUS))]
        return [p / sum(powers) for p in powers]

    def mean_demand(ratio):
        return sum(w * g for w, g in zip(weights(ratio), HELIOS_GPUS))

    demand = weights(bisect(lambda r: mean_demand(r) - mean_gpus, 0.01, 0.99))

    def base_median(growth, sigma):
        """The median of a one-GPU job that gives the median of all jobs."""
        def share(base):
            return 0.5 - sum(
                w * normal_cdf(math.log(median_s / (base * g ** growth)) / sigma)
                for w, g in zip(demand, HELIOS_GPUS))
        return bisect(share, 1e-3, 1e6)

    def moments(growth, sigma):
        base = base_median(growth, sigma)
        means = [capped_mean(base * g ** growth, sigma) for g in HELIOS_GPUS]
        return (sum(w * m for w, m in zip(demand, means)),
                sum(w * g * m for w, g, m in zip(demand, HELIOS_GPUS, means)))

    def sigma_for(growth):
        return bisect(lambda sigma: moments(growth, sigma)[0] - mean_s, 0.1, 6)

    growth = bisect(lambda c: moments(c, sigma_for(c))[1] - mean_gpu_s, 0, 3)
    sigma = sigma_for(growth)
    print("\n[helios]")
    print(f"# {total['gpu_job_num']} GPU jobs: {mean_gpus} GPUs a job, run time median {median_s} s,")
    print(f"# mean {mean_s} s, {mean_gpu_s:.0f} GPU-s a job.")
    print(f"gpus = {HELIOS_GPUS}")
    print(f"weights = {[float(f'{w:.5g}') for w in demand]}")
    print("# A job's median run time is median_s x gpus ^ growth.")
    print(f"median_s = {base_median(growth, sigma):.5g}")
    print(f"sigma = {sigma:.5g}")
    print(f"growth = {growth:.5g}")


print("# Made by fit.py: do not edit. Sources: Microsoft's Philly traces (CC-BY-4.0) and the cluster")
print("# summary of SenseTime's Helios traces (CC-BY-4.0).")
philly(sys.argv[1])
helios(sys.argv[2])
