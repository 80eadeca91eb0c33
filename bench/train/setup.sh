#!/usr/bin/env bash
# Makes the environments of the training comparison: PyTorch Geometric, and DGL.
# Usage: bench/train/setup.sh [pyg|dgl|all] [DIR]
#   all unless one is named; makes train-pyg and train-dgl in DIR, or in target
#
# Only packages of PyPI.
# - PyG samples neighbours by pyg-lib or by torch-sparse. pyg-lib is not on PyPI; torch-sparse and
#   torch-scatter are there as sources only, so they are compiled against the torch at hand (about
#   half an hour on two cores; wheels are kept in DIR/train-wheels).
# - PyPI's torch wheel is linked against CUDA's libraries and does not import without them. No GPU
#   is used.
# - DGL's last release on PyPI, 2.1.0, carries libraries for torch 2.0.0 to 2.2.1. It asks for any
#   torchdata, and the newest has no datapipes, which it imports: 0.7.1 has them. It imports pandas,
#   pydantic and yaml without asking for them. That torch wants numpy 1.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
which=${1:-all}
base=${2:-"$(cd "$here/../.." && pwd)/target"}
python=${PYTHON:-python3}
pip() { "$1/bin/pip" "${@:2}" --quiet --disable-pip-version-check; }

"$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' || {
    echo "setup.sh: needs Python 3.10 to 3.12 (DGL's and torch 2.2's wheels); name one with PYTHON=..." >&2
    exit 2
}
mkdir -p "$base"

make_pyg() {
    local pyg=$base/train-pyg
    "$python" -m venv "$pyg"
    pip "$pyg" install --no-deps \
        torch==2.14.0 torch_geometric==2.8.1 \
        numpy==2.4.6 scipy==1.17.1 safetensors==0.8.0 \
        filelock==4.2.10 fsspec==2026.9.0 Jinja2==3.1.6 MarkupSafe==3.0.4 mpmath==1.3.0 \
        networkx==3.6.1 setuptools==84.2.1 sympy==1.14.0 typing_extensions==4.16.0 wheel \
        nvidia-cublas==13.1.1.3 nvidia-cuda-cupti==13.0.85 nvidia-cuda-nvrtc==13.0.88 \
        nvidia-cuda-runtime==13.0.96 nvidia-cudnn-cu13==9.24.0.43 nvidia-cufft==12.0.0.61 \
        nvidia-cufile==1.15.1.6 nvidia-curand==10.4.0.35 nvidia-cusparse==12.6.3.3 \
        nvidia-cusparselt-cu13==0.8.1 nvidia-nccl-cu13==2.30.7 nvidia-nvjitlink==13.5.37 \
        nvidia-nvshmem-cu13==3.4.5
    pip "$pyg" install torch_geometric==2.8.1 numpy==2.4.6
    local wheels=$base/train-wheels package
    for package in torch_scatter-2.1.2 torch_sparse-0.6.18; do
        if ! compgen -G "$wheels/$package-*.whl" > /dev/null; then
            echo "setup.sh: compiling $package" >&2
            # -g0: debug symbols take most of the compiler's time, and change nothing else.
            FORCE_CUDA=0 CFLAGS=-g0 pip "$pyg" wheel --no-build-isolation --no-deps -w "$wheels" \
                "${package/-/==}"
        fi
        pip "$pyg" install --no-deps "$wheels/$package"-*.whl
    done
    "$pyg/bin/python" -W ignore -c 'import torch_sparse, torch_geometric.typing as t; assert t.WITH_TORCH_SPARSE'
}

make_dgl() {
    local dgl=$base/train-dgl
    "$python" -m venv "$dgl"
    pip "$dgl" install \
        torch==2.2.1 dgl==2.1.0 torchdata==0.7.1 numpy==1.26.4 'pandas<3' pydantic pyyaml
    "$dgl/bin/python" -W ignore -c 'import dgl.graphbolt, dgl.sparse'
}

case $which in
    all) make_pyg; make_dgl ;;
    pyg | dgl) "make_$which" ;;
    *)
        echo "setup.sh: $which: expected pyg, dgl or all" >&2
        exit 2
        ;;
esac
echo "setup.sh: ready: $python $here/compare.py"
