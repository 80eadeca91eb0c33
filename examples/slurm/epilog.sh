#!/bin/sh
# EpilogSlurmctld=/etc/slurm/hither-epilog.sh
#
# Tells Hither that a job has ended, so that it does not have to wait for its next poll. Slurm waits
# for this script before it reuses the nodes: it must end soon, and it must not fail.
curl -fsS -m 1 http://127.0.0.1:9433/poke > /dev/null 2>&1
exit 0
