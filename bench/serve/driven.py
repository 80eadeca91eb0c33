"""Hither as a process that waits on a pipe and runs one pass for every `go`."""

import json
import os
import select
import subprocess
import time

READY_S_MAX = 1800  # generating, planning and packing many GB takes minutes
PASS_S_MAX = 120


class HitherFailed(RuntimeError):
    """The program ended, said nothing in time, or said what is not understood."""


def call(hither, *arguments):
    """Runs a command of Hither to its end."""
    command = [hither, *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise HitherFailed(f"{' '.join(command)}: exit {done.returncode}: {done.stderr.strip()}")
    return done.stdout


class Driven:
    """`hither bench ... --driven`: a ready line, then one line of times for every pass."""

    def __init__(self, hither, *arguments):
        self.command = [hither, *map(str, arguments), "--driven"]
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.pending = b""
        try:
            self.ready = self.line(READY_S_MAX)
            if self.ready.get("ready") is not True or not self.ready.get("variants"):
                raise HitherFailed(f"{self.name()}: no ready line with variants: {self.ready}")
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    def name(self):
        return " ".join(self.command)

    @property
    def variants(self):
        return self.ready["variants"]

    def line(self, seconds):
        """The next line, as JSON; never waits longer than `seconds`."""
        until = time.monotonic() + seconds
        stdout = self.process.stdout.fileno()
        while b"\n" not in self.pending:
            left = until - time.monotonic()
            if left <= 0 or not select.select([stdout], [], [], left)[0]:
                raise HitherFailed(f"{self.name()}: no answer in {seconds} s")
            read = os.read(stdout, 1 << 16)
            if not read:
                raise HitherFailed(f"{self.name()}: ended with exit {self.process.wait()}")
            self.pending += read
        line, self.pending = self.pending.split(b"\n", 1)
        try:
            return json.loads(line)
        except json.JSONDecodeError:
            raise HitherFailed(f"{self.name()}: not JSON: {line[:200]!r}") from None

    def go(self):
        """One pass of every variant: nanoseconds by variant."""
        self.process.stdin.write(b"go\n")
        self.process.stdin.flush()
        answer = self.line(PASS_S_MAX)
        if "ns" not in answer:
            raise HitherFailed(f"{self.name()}: no times in {answer}")
        return answer["ns"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
