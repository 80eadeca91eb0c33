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
need hostname || packages+=(hostname)
# The CUDA kernels are compiled by NVIDIA's compilers from PyPI, which the tests keep below target/cuda.
need g++ || packages+=(g++)
python3 -m pip --version >/dev/null 2>&1 || packages+=(python3 python3-pip)
if [ ${#packages[@]} -gt 0 ]; then
  sudo=()
  [ "$(id -u)" = 0 ] || sudo=(sudo)
  "${sudo[@]}" apt-get update -q
  "${sudo[@]}" apt-get install -y -q --no-install-recommends "${packages[@]}"
fi
[ -d e2e/report/node_modules/playwright-core ] || (cd e2e/report && npm ci --no-audit --no-fund)
need cargo-nextest || cargo install --locked cargo-nextest

cargo fmt --all --check
cargo clippy --workspace --all-targets --locked -- -D warnings
cargo nextest run --workspace --locked --no-fail-fast "$@"
