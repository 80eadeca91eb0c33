#!/bin/sh
# What each part of dally earns, as in docs/results-schedule.md. Run from the repository's root:
#   bench/schedule/parts.sh OUT
# OUT receives one folder and one text file per sweep; finished cells are kept. HITHER names the program.
set -eu
out=$1
hither=${HITHER:-hither}
here=bench/schedule
mkdir -p "$out"

# The name of the result, then arguments.
part() {
  name=$1
  shift
  $hither sweep $here/heavy.toml --cluster $here/cluster.toml --vary seed=201..206 --threads 1 "$@" \
    -o "$out/$name" > "$out/$name.txt"
}

# The first name of the result, then arguments that all share.
parts() {
  group=$1
  shift
  rivals=dally-no-wait,dally-consolidate,dally-manual
  part "$group-timers" --policy dally,$rivals --against $rivals "$@"
  # dally-manual with the same timer for every level, in seconds.
  for timer_s in 1800 7200 28800 172800; do
    part "$group-timer-$timer_s" --policy dally,dally-manual --against dally-manual \
      --set dally.machine_s=$timer_s --set dally.rack_s=$timer_s "$@"
  done
  part "$group-forecast" --policy dally --vary dally.anticipate=true,false --against dally.anticipate "$@"
}

# What the scheduler is told.
told() {
  group=$1
  shift
  part "$group-lengths" --policy dally --vary lengths=unknown,known --against lengths "$@"
  part "$group-profiles" --policy dally --vary profile_error=0,0.5 --against profile_error "$@"
  part "$group-congestion" --policy dally --vary hide_congestion=false,true --against hide_congestion "$@"
  part "$group-hidden" --policy dally --vary dally.anticipate=true,false --against dally.anticipate \
    --hide-congestion "$@"
}

final="--set dally.preempt=false --set dally.upgrade=false --vary congestion=1,2,4,8 --vary load=0.5,0.7,0.9"
parts final $final
told final $final
moved="--vary congestion=1,4,8,16 --vary load=0.5,0.9"
llm="--profiles $here/restarts-llm.toml --storage-read-gbit 200 --storage-write-gbit 200"
told moved $moved
for group in "moved" "moved-x10 --restart-scale 10" "moved-llm $llm"; do
  set -- $group $moved
  group=$1
  parts "$@"
  shift
  part "$group-upgrade" --policy dally --vary dally.upgrade=true,false --against dally.upgrade "$@"
  part "$group-preempt" --policy dally --vary dally.preempt=true,false --against dally.preempt "$@"
done
# Claims by what is left, where users tell lengths, true or wrong.
for lengths in known noisy:0.5 noisy:1 noisy:2 unknown; do
  part "moved-score-$lengths" --policy dally --lengths $lengths --vary dally.score=left,2d-las --against dally.score \
    --vary congestion=1,4,8 --vary load=0.5,0.9
done
