#!/bin/sh
# The comparison of docs/results-schedule.md: tunes every rival with the same budget on seeds 1001 and 1002, then
# sweeps the workloads on other seeds. Run from the repository's root:
#   bench/schedule/compare.sh OUT [TRACES]
# OUT receives one folder per workload; finished cells are kept, so a run that was stopped goes on. TRACES is a folder
# with philly.csv and muri/trace1.csv; without it those two workloads are left out. HITHER names the program.
set -eu
out=$1
traces=${2:-}
hither=${HITHER:-hither}
here=bench/schedule
mkdir -p "$out"

# Options, chosen on the heavy workload at low and at high congestion.
for policy in tiresias las themis srtf gandiva; do
  [ -e "$out/$policy.toml" ] || $hither tune $here/heavy.toml --cluster $here/cluster.toml --policy $policy \
    --vary congestion=1,8 --vary load=0.9 --vary seed=1001,1002 --budget 12 --threads 1 -o "$out/$policy.toml"
done

# A workload, its cluster, then what is varied.
compare() {
  name=$1 workload=$2 cluster=$3
  shift 3
  $hither sweep "$workload" --cluster "$cluster" --policy "$policies" --against "${policies#*,}" \
    --settings "$out/tiresias.toml" --settings "$out/las.toml" --settings "$out/themis.toml" \
    --settings "$out/srtf.toml" --settings "$out/gandiva.toml" --threads 1 "$@" -o "$out/$name" > "$out/$name.txt"
}

policies=dally,dally-no-wait,tiresias,tiresias-authors,las,gandiva,themis,srtf
compare heavy $here/heavy.toml $here/cluster.toml \
  --vary congestion=1,4,8,16 --vary load=0.5,0.9 --vary seed=11..15
compare philly-demand $here/philly.toml $here/cluster.toml \
  --vary congestion=1,8 --vary load=0.9,1.1 --vary seed=11..13
compare helios $here/helios.toml $here/cluster.toml \
  --vary congestion=1,8 --vary load=0.7,0.9 --vary seed=11..13
compare lingjun $here/lingjun.toml $here/cluster-2048.toml \
  --vary congestion=1,8 --vary load=0.7,0.9 --vary seed=11..13
compare kalos $here/kalos.toml $here/cluster-2048.toml \
  --vary congestion=1,8 --vary load=0.7,0.9 --vary seed=11..13
[ -n "$traces" ] || exit 0
compare trace1 "$traces/muri/trace1.csv" $here/cluster-64.toml --vary congestion=1,4,8
# The long trace: without the policies that take minutes there.
policies=dally,dally-no-wait,tiresias,tiresias-authors,srtf
compare philly "$traces/philly.csv" $here/cluster-512.toml --vary congestion=1,8
