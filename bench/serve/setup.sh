#!/usr/bin/env bash
# Makes the environment of the serving comparison: PyTorch, FBGEMM for CPU, ONNX Runtime, OpenVINO.
# Usage: bench/serve/setup.sh [DIR]     (DIR: target/bench-venv unless given)
#
# Only packages of PyPI. Its torch wheel is linked against CUDA's libraries and does not import
# without them, so those it links are installed too (3.2 GB); the rest of its requirements
# (triton, cusolver, nvtx, cuda-bindings) are left out. No GPU is used.
# fbgemm-gpu-cpu 1.9.0 is built for torch 2.14; neither package says so.
set -euo pipefail

venv=${1:-"$(cd "$(dirname "$0")/../.." && pwd)/target/bench-venv"}
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}

"$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' || {
    echo "setup.sh: needs Python 3.10 to 3.13; name one with PYTHON=..." >&2
    exit 2
}
"$python" -m venv "$venv"

"$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps \
    torch==2.14.0 \
    fbgemm-gpu-cpu==1.9.0 \
    numpy==2.4.6 \
    safetensors==0.8.0 \
    filelock==4.2.10 fsspec==2026.9.0 Jinja2==3.1.6 MarkupSafe==3.0.4 mpmath==1.3.0 \
    networkx==3.6.1 setuptools==84.2.1 sympy==1.14.0 typing_extensions==4.16.0 \
    nvidia-cublas==13.1.1.3 nvidia-cuda-cupti==13.0.85 nvidia-cuda-nvrtc==13.0.88 \
    nvidia-cuda-runtime==13.0.96 nvidia-cudnn-cu13==9.24.0.43 nvidia-cufft==12.0.0.61 \
    nvidia-cufile==1.15.1.6 nvidia-curand==10.4.0.35 nvidia-cusparse==12.6.3.3 \
    nvidia-cusparselt-cu13==0.8.1 nvidia-nccl-cu13==2.30.7 nvidia-nvjitlink==13.5.37 \
    nvidia-nvshmem-cu13==3.4.5

# Peers of whole models only; a comparison without them says so in their rows.
"$venv/bin/pip" install --quiet --disable-pip-version-check \
    onnx==1.23.2 onnxruntime==1.31.1 openvino==2026.4.1 || \
    echo "setup.sh: no ONNX Runtime or OpenVINO here; their rows will say so" >&2

"$venv/bin/python" "$here/fbgemm_repair.py"
echo "setup.sh: ready: $venv/bin/python $here/compare.py"
