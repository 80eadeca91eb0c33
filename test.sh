#!/usr/bin/env bash
# Installs what the tests need and runs all of them. Nothing is skipped for want of a program.
set -euo pipefail
cd "$(dirname "$0")"

need() { command -v "$1" >/dev/null 2>&1; }

need cargo || {
  echo "error: cargo is missing; hint: install Rust 1.95 or later with rustup" >&2
  exit 2
}

# The report is opened in a real browser.
packages=()
need chromium || packages+=(chromium)
need node || packages+=(nodejs)
need npm || packages+=(npm)
# The scheduler is tested on a real Slurm.
need slurmctld || [ -x /usr/sbin/slurmctld ] || packages+=(slurmctld)
need slurmd || [ -x /usr/sbin/slurmd ] || packages+=(slurmd)
need scontrol || packages+=(slurm-client)
need munged || [ -x /usr/sbin/munged ] || packages+=(munge)
need slurmdbd || [ -x /usr/sbin/slurmdbd ] || packages+=(slurmdbd)
need mariadbd || [ -x /usr/sbin/mariadbd ] || packages+=(mariadb-server)
need hostname || packages+=(hostname)
# Training over MPI: the library and its launcher, libclang to read its headers, and PMIx for Slurm's launcher.
need mpirun || packages+=(openmpi-bin)
need mpicc || packages+=(libopenmpi-dev)
# (libclang-cpp, which other packages bring, is not libclang.)
compgen -G '/usr/lib/llvm-*/lib/libclang.so*' >/dev/null || packages+=(libclang-dev)
ldconfig -p | grep -q 'libpmix\.so' || packages+=(libpmix2)
# Machines of its own, with limited links between them, are network namespaces; making them needs root.
need tc || [ -x /usr/sbin/tc ] || packages+=(iproute2)
# The CUDA kernels are compiled by NVIDIA's compilers from PyPI, which the tests keep below target/cuda.
need g++ || packages+=(g++)
python3 -m pip --version >/dev/null 2>&1 || packages+=(python3 python3-pip)
# The inference server is tested with Triton's own clients; perf_analyzer needs libb64.
need python3 || packages+=(python3)
python3 -c 'import ensurepip, venv' 2>/dev/null || packages+=(python3-venv)
need curl || packages+=(curl)
need openssl || packages+=(openssl)
ldconfig -p | grep -q 'libb64\.so\.0d' || packages+=(libb64-0d)
if [ ${#packages[@]} -gt 0 ]; then
  sudo=()
  [ "$(id -u)" = 0 ] || sudo=(sudo)
  "${sudo[@]}" apt-get update -q
  "${sudo[@]}" apt-get install -y -q --no-install-recommends "${packages[@]}"
fi
[ -d e2e/report/node_modules/playwright-core ] || (cd e2e/report && npm ci --no-audit --no-fund)
clients=${CARGO_TARGET_DIR:-target}/clients
if ! cat e2e/server/*.txt | cmp -s - "$clients/installed"; then
  rm -rf "$clients"
  python3 -m venv "$clients/venv"
  pip=("$clients/venv/bin/pip" install -q --disable-pip-version-check)
  "${pip[@]}" -r e2e/server/requirements.txt
  "${pip[@]}" --no-deps --target "$clients/perf_analyzer" -r e2e/server/perf_analyzer.txt
  cat e2e/server/*.txt > "$clients/installed"
fi
need cargo-nextest || cargo install --locked cargo-nextest

cargo fmt --all --check
cargo clippy --workspace --all-targets --locked -- -D warnings
# The README's first command builds without features.
cargo clippy --package hither --no-default-features --locked -- -D warnings
# Clippy has seen the default build, which needs no MPI; the tests also start ranks.
cargo nextest run --workspace --features hither/mpi --locked --no-fail-fast "$@"
