#!/bin/sh
# The comparison of docs/results-schedule.md: tunes every rival with the same budget on seeds 1001 and 1002 of each
# workload, then sweeps the workloads on other seeds. Run from the repository's root:
#   bench/schedule/compare.sh OUT [TRACES]
# OUT receives one folder per workload; finished cells are kept, so a run that was stopped goes on. TRACES is a folder
# with philly.csv and muri/trace1.csv; without it those two workloads are left out. HITHER names the program.
# Options that were found before are in bench/schedule/tuned and are not searched again: remove them to search anew.
set -eu
out=$1
traces=${2:-}
hither=${HITHER:-hither}
here=bench/schedule
tuned=$here/tuned
mkdir -p "$out" "$tuned"

# A workload's name, its file and cluster, policies, then the cells to tune in.
tune() {
  name=$1 workload=$2 cluster=$3 policies=$4
  shift 4
  for policy in $policies; do
    [ -e "$tuned/$name-$policy.toml" ] || $hither tune "$workload" --cluster "$cluster" --policy "$policy" \
      "$@" --budget 12 --threads 1 -o "$tuned/$name-$policy.toml"
  done
}

# The name of the result, the workload whose options count, its file and cluster, rivals, then what is varied.
compare() {
  result=$1 name=$2 workload=$3 cluster=$4 rivals=$5
  shift 5
  for file in "$tuned/$name"-*.toml; do
    set -- "$@" --settings "$file"
  done
  $hither sweep "$workload" --cluster "$cluster" --policy "dally,$rivals" --against "$rivals" \
    --set srtf.placing=strict --threads 1 "$@" -o "$out/$result" > "$out/$result.txt"
}

rivals=dally-no-wait,tiresias,tiresias-strict,tiresias-authors,las,themis,srtf
for workload in "heavy cluster" "philly cluster" "helios cluster" "lingjun cluster-2048" "kalos cluster-2048"; do
  set -- $workload
  tune "$1" $here/"$1".toml $here/"$2".toml "tiresias las themis gandiva" \
    --vary congestion=1,8 --vary load=0.9 --vary seed=1001,1002
done
compare heavy heavy $here/heavy.toml $here/cluster.toml $rivals \
  --vary congestion=1,4,8,16 --vary load=0.5,0.7,0.9,1.1 --vary seed=11..15
for workload in "philly cluster" "helios cluster" "lingjun cluster-2048" "kalos cluster-2048"; do
  set -- $workload
  compare "$1" "$1" $here/"$1".toml $here/"$2".toml $rivals \
    --vary congestion=1,8 --vary load=0.5,0.7,0.9,1.1 --vary seed=11..15
done
compare heavy-gandiva heavy $here/heavy.toml $here/cluster.toml gandiva \
  --vary congestion=1,4,8,16 --vary load=0.5,0.7,0.9,1.1 --vary seed=11..15
# Gandiva's slices make a run take many times as long: fewer seeds.
for workload in "philly cluster" "helios cluster" "lingjun cluster-2048" "kalos cluster-2048"; do
  set -- $workload
  compare "$1-gandiva" "$1" $here/"$1".toml $here/"$2".toml gandiva \
    --vary congestion=1,8 --vary load=0.5,0.7,0.9,1.1 --vary seed=11..13
done
[ -n "$traces" ] || exit 0
# Traces have no seeds: their options are searched on the trace itself, which favours the rivals.
tune trace1 "$traces/muri/trace1.csv" $here/cluster-64.toml "tiresias las themis gandiva" --vary congestion=1,8
tune philly-trace "$traces/philly.csv" $here/cluster-512.toml "tiresias las themis" --vary congestion=1,8
compare trace1 trace1 "$traces/muri/trace1.csv" $here/cluster-64.toml $rivals,gandiva --vary congestion=1,4,8
compare philly-trace philly-trace "$traces/philly.csv" $here/cluster-512.toml $rivals --vary congestion=1,8
# A search for gandiva would take hours on this trace: it has the options of Philly's demand.
compare philly-trace-gandiva philly "$traces/philly.csv" $here/cluster-512.toml gandiva --vary congestion=1,8
