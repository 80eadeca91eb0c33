#!/usr/bin/env python3
"""Least GPU time first. A job waits up to an hour for its best level; every ten minutes jobs that have had far more
than those who wait give their GPUs back. Run it with:

    hither simulate examples/sample.csv --policy 'exec:python3 examples/policies/patient.py,fifo'

docs/formats/policy-program.md has the protocol: one JSON object per line asks, one answers.
"""

import json
import sys


def hello():
    return {"round_s": 600}


def claim(now, job):
    return {"claim": job["gpus"] * job["held_s"]}


def answer(now, job, offer):
    if offer["level"] <= job["best"] or job["waited_s"] >= 3600:
        return {"take": True}
    return {"take": False, "again_s": 3600 - job["waited_s"]}


def round(now, running, waiting):
    had = lambda job: job["gpus"] * job["held_s"]
    least = min(map(had, waiting), default=float("inf"))
    return {"stop": [job["id"] for job in running if had(job) > 2 * least + 36000]}


for line in sys.stdin:
    question = json.loads(line)
    print(json.dumps(globals()[question.pop("ask")](**question)), flush=True)
