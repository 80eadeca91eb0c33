"""Real Triton 2.51 from the environment of setup.sh: started, awaited, stopped."""

import os
import pathlib
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request

VENV = pathlib.Path(sys.prefix)
SERVER = VENV / "triton/pytriton/tritonserver"


def environment(threads=1):
    """Loader path of the wheel's libraries and of the interpreter; packages for the Python backend."""
    libraries = [VENV / "triton/nvidia_pytriton.libs", pathlib.Path(sys.base_prefix) / "lib"]
    return dict(
        os.environ,
        LD_LIBRARY_PATH=":".join(map(str, libraries)),
        PYTHONPATH=os.pathsep.join(p for p in sys.path if p.endswith("site-packages")),
        PATH=f"{VENV / 'bin'}:{os.environ['PATH']}",
        OMP_NUM_THREADS=str(threads),
        MKL_NUM_THREADS=str(threads),
    )


def is_ready(url):
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def await_ready(url, process, log, patience_s=120):
    end = time.monotonic() + patience_s
    while not is_ready(url):
        if process.poll() is not None or time.monotonic() > end:
            process.kill()
            raise RuntimeError(f"server at {url} did not become ready; its log: {log}")
        time.sleep(0.05)


class Triton:
    """A server on its own ports; `core` pins it and all its processes to one core."""

    def __init__(self, repository, log, http=18000, core=None, options=(), env=None):
        self.http, self.grpc, self.metrics = http, http + 1, http + 2
        command = [] if core is None else ["taskset", "-c", str(core)]
        command += [
            str(SERVER / "bin/tritonserver"),
            f"--model-repository={repository}",
            f"--backend-directory={VENV / 'backends'}",
            f"--cache-directory={SERVER / 'caches'}",
            "--exit-on-error=false",
            "--log-verbose=0",
        ]
        for name in ("http", "grpc", "metrics"):
            command += [f"--{name}-address=127.0.0.1", f"--{name}-port={getattr(self, name)}"]
        self.process = subprocess.Popen(
            command + list(options), env=env or environment(), stdout=open(log, "w"), stderr=subprocess.STDOUT
        )
        await_ready(f"http://127.0.0.1:{http}/v2/health/ready", self.process, log)

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
