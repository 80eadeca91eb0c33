#!/usr/bin/env python3
"""Slow, plain reference for `--compat muri`, and the maker of its fixture.

    muri-sample.py                    write muri-sample.csv and muri-sample.expected.json
    muri-sample.py TRACE [NODES GPN]  print the results of the three policies for TRACE

It shares no code with the Rust module: every event looks at every job, nothing is kept
sorted in between, and no work is saved. The rules are those of Muri's simulator
(Apache-2.0), described in crates/sched/src/compat/muri.rs; the code is ours.
"""

import csv
import json
import math
import os
import random
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = ["vgg16", "vgg19", "resnet18", "shufflenet_v2_x1_0", "bert", "gpt2", "a2c", "dqn"]
OVERHEAD = {  # seconds to start a job again, by its GPUs; columns as MODELS
    1: [7, 7, 4, 4, 10, 10, 38, 5],
    2: [7, 7, 5, 4, 10, 10, 39, 5],
    4: [8, 8, 5, 5, 10, 10, 39, 6],
    8: [9, 9, 7, 5, 10, 10, 46, 6],
    16: [9, 10, 7, 7, 10, 10, 46, 8],
    32: [10, 10, 7, 8, 10, 10, 46, 8],
}
UNKNOWN_MODEL = 10
LIMITS = [3250, 7200]  # GPU-seconds after which a job leaves queue 0, queue 1


class Job:
    def __init__(self, row, number):
        self.number = number
        self.gpus = int(row["num_gpu"])
        self.submit = float(row["submit_time"]) / 1000
        self.iteration = float(row["iteration_time"]) * 1.015 / 1000
        self.left = float(row["iterations"])
        size = min((s for s in OVERHEAD if s >= self.gpus), default=32)
        known = row["model_name"] in MODELS
        self.overhead = OVERHEAD[size][MODELS.index(row["model_name"])] if known else UNKNOWN_MODEL
        self.running = False
        self.executed = 0.0
        self.start = None
        self.finish = None
        self.preemptions = 0
        self.queue = 0

    def left_s(self):
        return self.left * self.iteration

    def advance(self, now, before):
        self.left -= max(now - before - self.overhead, 0) / self.iteration
        self.executed = self.executed + now - before


def first_fit(free, gpus, per_node):
    """Takes GPUs from `free` (per node) and says whether it could."""
    whole, rest = divmod(gpus, per_node) if gpus > per_node else (0, gpus)
    idle = [n for n, f in enumerate(free) if f == per_node][:whole]
    if len(idle) < whole:
        return False
    last = [n for n, f in enumerate(free) if n not in idle and f >= rest][:1] if rest else []
    if rest and not last:
        return False
    for n in idle:
        free[n] = 0
    for n in last:
        free[n] -= rest
    return True


def arrival_groups(jobs):
    groups = []
    for job in sorted(jobs, key=lambda j: j.submit):
        for group in groups:
            if math.isclose(group[0], job.submit, rel_tol=1e-9):
                group[1].append(job)
                break
        else:
            groups.append((job.submit, [job]))
    return groups


def end_groups(jobs, now, merge):
    groups = []
    for job in jobs:
        if job.running:
            end = now + job.left_s()
            for group in groups:
                if math.isclose(group[0], end, rel_tol=1e-9) if merge else group[0] == end:
                    group[1].append(job)
                    break
            else:
                groups.append((end, [job]))
    return groups


def plan_shortest(jobs, key, nodes, per_node):
    jobs.sort(key=key)
    free = [per_node] * nodes
    return [j for j in jobs if first_fit(free, j.gpus, per_node)]


def plan_queues(queues, nodes, per_node):
    free, chosen = nodes * per_node, []
    for queue in queues:
        for job in queue:
            if job.gpus <= free:
                free -= job.gpus
                chosen.append(job)
    return chosen


def jump_time(job, now):
    return math.ceil(LIMITS[job.queue] / job.gpus) - job.executed + now


def simulate(rows, policy, nodes=8, per_node=8):
    jobs = [Job(row, i) for i, row in enumerate(rows)]
    arrivals, live, done = arrival_groups(jobs), [], []
    queues = [[], [], []]
    las = policy == "tiresias"
    key = (lambda j: j.left_s() * j.gpus) if policy == "srsf" else (lambda j: j.left_s())
    now, events, ends, promised, jump = 0.0, 0, [], [], math.inf
    while arrivals or live:
        events += 1
        before = now
        arrive = arrivals[0][0] if arrivals else math.inf
        end, ending = min(ends, key=lambda e: e[0]) if ends else (math.inf, [])
        now = min(arrive, end, jump)
        if arrive == end:  # kept even if a jump comes first and puts the end off
            promised = ending
        if now == end or now == arrive:
            for job in promised if now == arrive else ending:
                if job.finish is not None:
                    continue
                job.finish, job.running = now, False
                job.executed += now - before
                live.remove(job)
                done.append(job)
                for queue in queues:
                    if job in queue:
                        queue.remove(job)
        if now == arrive:
            new = arrivals.pop(0)[1]
            promised = []
            live += new
            queues[0] += new
        for job in live:
            if not job.running:
                continue
            job.advance(now, before)
            if las and job.queue < 2:
                if job.executed * job.gpus >= LIMITS[job.queue]:
                    queues[job.queue].remove(job)
                    job.queue += 1
                    queues[job.queue].append(job)
        chosen = plan_queues(queues, nodes, per_node) if las else plan_shortest(live, key, nodes, per_node)
        chosen = set(chosen)
        for job in live:
            if job.running and job not in chosen:
                job.preemptions += 1
            if job in chosen and job.start is None:
                job.start = now
            job.running = job in chosen
        for queue in queues:
            queue.sort(key=lambda j: not j.running)
        ends = end_groups(live, now, merge=not las)
        jumps = [jump_time(j, now) for j in live if j.running and j.queue < 2]
        jump = min(jumps, default=math.inf) if las else math.inf
    jct = [j.finish - j.submit for j in done]
    return {
        "mean_jct_s": sum(jct) / len(jct),
        "makespan_s": max(j.finish for j in done),
        "p99_jct_s": sorted(jct)[int(len(jct) * 0.99)],
        "events": events,
        "preemptions": sum(j.preemptions for j in jobs),
        "busy_gpu_s": sum(j.gpus * j.executed for j in jobs),
        "jobs": [[j.start, j.finish, j.executed, j.preemptions] for j in jobs],
    }


COLUMNS = (
    "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,"
    "iteration_time,resource_time_0,resource_time_1,resource_time_2,priority"
).split(",")


def make_sample(seed=20, count=60):
    """A loaded hour and a half: bursts, ties, every size, sizes off the powers of two."""
    rng = random.Random(seed)
    pick = lambda items: items[int(rng.random() * len(items))]
    rows, clock = [], 0
    for i in range(count):
        gap = 0 if rng.random() < 0.25 else int(1 + 250 * rng.random()) * 1000
        clock += gap if i else 0
        model = MODELS[int(rng.random() * len(MODELS))]
        step = 100 + 20 * int(rng.random() * 40)
        iterations = int(60_000 * 10 ** (2.2 * rng.random()) / step)
        if i % 20 == 19:  # a twin of the job before: equal keys must keep their order
            twin = dict(rows[-1], job_id=i, interval=gap, submit_time=clock)
            rows.append(twin)
            continue
        gpus = pick([1, 1, 1, 2, 4, 4, 8, 8, 16, 32]) if i % 15 != 7 else pick([3, 12, 24])
        shares = [int(step * rng.random() * 0.8) for _ in range(3)]
        rows.append(
            dict(
                zip(
                    COLUMNS,
                    [i, gpus, clock, iterations, model, pick([4, 16, 64, 128]), iterations * step, gap, step]
                    + shares
                    + [int(rng.random() * 2)],
                )
            )
        )
    return rows


def main():
    if len(sys.argv) > 1:
        shape = [int(a) for a in sys.argv[2:4]]
        rows = list(csv.DictReader(open(sys.argv[1])))
        for policy in ["srtf", "srsf", "tiresias"]:
            r = simulate(rows, policy, *shape)
            head = "{mean_jct_s:.6f} {makespan_s:.6f} {p99_jct_s:.6f} {events} {preemptions}"
            print(policy, head.format(**r), flush=True)
        return
    rows = make_sample()
    with open(os.path.join(HERE, "muri-sample.csv"), "w", newline="") as out:
        writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    results = {policy: simulate(rows, policy) for policy in ["srtf", "srsf", "tiresias"]}
    with open(os.path.join(HERE, "muri-sample.expected.json"), "w") as out:
        out.write("{\n")
        for p, policy in enumerate(results):
            r = results[policy]
            jobs = r.pop("jobs")
            out.write(f' "{policy}": {{\n')
            for name, value in r.items():
                out.write(f'  "{name}": {json.dumps(value)},\n')
            out.write('  "jobs": [\n   ' + ",\n   ".join(json.dumps(j) for j in jobs) + "\n  ]\n")
            out.write(" }" + ("," if p < 2 else "") + "\n")
        out.write("}\n")


if __name__ == "__main__":
    main()
