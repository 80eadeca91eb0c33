#!/usr/bin/env bash
# Makes the environment of the server comparison: Triton, perf_analyzer, tritonclient, FastAPI.
# Usage: bench/server/setup.sh [DIR] [TORCH_DIR]
#   DIR        target/server-venv unless given
#   TORCH_DIR  the environment of bench/serve/setup.sh, which has PyTorch and ONNX Runtime;
#              HITHER_BENCH_VENV or target/bench-venv unless given, and made where it is missing
#
# Everything comes from PyPI, and libb64 from Debian. No GPU is used.
# nvidia-pytriton 0.7.0 carries tritonserver 2.51 with its Python backend; its own wrapper is not used.
# tritonclient 2.48.0 is the last wheel that carries perf_analyzer, which links libcudart.so.12.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
venv=${1:-"$root/target/server-venv"}
torch=${2:-${HITHER_BENCH_VENV:-"$root/target/bench-venv"}}
python=${PYTHON:-python3}

"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || {
    echo "setup.sh: needs Python 3.11, which Triton's Python backend is built for; name it with PYTHON=..." >&2
    exit 2
}
[ -x "$torch/bin/python" ] || PYTHON=$python "$root/bench/serve/setup.sh" "$torch"

"$python" -m venv "$venv"
pip() { "$venv/bin/pip" install --quiet --disable-pip-version-check "$@"; }
# PyTorch and ONNX Runtime are those of the other environment.
site=$("$venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')
"$torch/bin/python" -c 'import site; print(site.getsitepackages()[0])' >"$site/torch.pth"
# Triton's Python backend returns empty tensors beside NumPy 2.
pip --no-deps numpy==1.26.4 tritonclient==2.73.0 grpcio==1.85.1 protobuf==6.33.5 python-rapidjson==1.22 urllib3==2.5.0 \
    gevent==25.9.1 geventhttpclient==2.3.5 greenlet==3.2.4 zope.event==6.1 zope.interface==8.1.1 \
    Brotli==1.2.0 certifi==2025.11.12
pip aiohttp==3.13.2 fastapi==0.121.2 "uvicorn[standard]==0.38.0" orjson==3.11.4
pip --no-deps --target "$venv/triton" nvidia-pytriton==0.7.0
pip --no-deps --target "$venv/perf" tritonclient==2.48.0 nvidia-cuda-runtime-cu12==12.9.79

# The Python backend looks for its stub beside its library.
backends=$venv/backends
mkdir -p "$backends"
cp -r "$venv/triton/pytriton/tritonserver/backends/python" "$backends/"
cp "$venv/triton/pytriton/tritonserver/python_backend_stubs/3.11/triton_python_backend_stub" "$backends/python/"
chmod +x "$backends/python/triton_python_backend_stub" "$venv"/triton/pytriton/tritonserver/bin/tritonserver

ldconfig -p | grep -q libb64.so || {
    sudo=()
    [ "$(id -u)" = 0 ] || sudo=(sudo)
    "${sudo[@]}" apt-get install -y -q --no-install-recommends libb64-0d >&2
}
echo "setup.sh: ready: $venv"
