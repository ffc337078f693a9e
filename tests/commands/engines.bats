#!/usr/bin/env bats
# Ranks and ddpruns started by other engines than Slurm: MPICH's Hydra, Open MPI's mpirun, PRRTE and Flux themselves, others by the
# variables of their tasks. Hydra takes names of this host for several, so that it has several nodes.

load ../support/rank_jobs

setup() {
  rank_jobs_setup
  command -v mpiexec.hydra >/dev/null || skip "needs mpiexec.hydra (scripts/dependencies test)"
  cd "$BATS_TEST_TMPDIR"
  # Hydra's proxies on "other" hosts.
  printf '#!/bin/bash\nwhile [[ $1 == -* ]]; do shift; done\nshift\nexec sh -c "$*"\n' >on_this_host
  chmod +x on_this_host
}

hydra() { timeout 120 mpiexec.hydra "$@"; }
mpirun() { timeout 120 mpirun --allow-run-as-root --oversubscribe --bind-to none "$@"; }

expect_facts() {
  [ "$status" -eq 0 ] || { echo "$output"; return 1; }
  echo "$output" | "$check_world" "$@"
}

@test "Hydra: ranks, sizes and node map over PMI-1, by descriptor and by port" {
  local port
  for port in "" -pmi-port; do
    run hydra $port -n 4 bash -c "$(task_facts '${PMI_RANK:-$PMI_ID}' '$MPI_LOCALRANKID' - "$rank_program" world)"
    expect_facts 4 pmi1 4
  done
  DDP_LOG_LEVEL=info run hydra -n 2 "$rank_program" world
  [[ $output == *"by Hydra"* ]] || { echo "$output"; return 1; }
}

@test "Hydra: collectives, reducer and store" {
  for scenario in collectives reducer kvs; do
    run hydra -n 3 "$rank_program" $scenario
    [ "$status" -eq 0 ] || { echo "$output"; return 1; }
    expect_all 3 DONE
  done
}

@test "Hydra: a rank that does not come ends the others' wait at the deadline" {
  run env DDP_INIT_TIMEOUT=2 timeout 60 mpiexec.hydra -n 3 bash -c \
    'if [ $PMI_RANK = 1 ]; then sleep 6; else exec "$0" world; fi' "$rank_program"
  [ "$status" -ne 0 ]
  [[ $output == *"PMI-1 does not say which"* ]] || { echo "$output"; return 1; }
}

@test "Hydra, mpirun: one ddprun on each node is one job" {
  run hydra -launcher ssh -launcher-exec "$PWD/on_this_host" -hosts n0.test,n1.test -ppn 1 -n 2 \
    "$bin/ddprun" --local-addr 127.0.0.1 --nproc-per-node 2 \
    sh -c 'echo "RANK $RANK/$WORLD_SIZE node $GROUP_RANK ${PMI_FD-none} ${MPI_LOCALNRANKS-none}"'
  [ "$status" -eq 0 ] || { echo "$output"; return 1; }
  for rank in 0 1 2 3; do expect_all 1 "RANK $rank/4 node $((rank / 2)) none none"; done
  run mpirun -n 2 env OMPI_COMM_WORLD_LOCAL_SIZE=1 "$bin/ddprun" --local-addr 127.0.0.1 --nproc-per-node 1 \
    sh -c 'echo "RANK $RANK/$WORLD_SIZE ${OMPI_COMM_WORLD_RANK-none}"'
  [ "$status" -eq 0 ] || { echo "$output"; return 1; }
  for rank in 0 1; do expect_all 1 "RANK $rank/2 none"; done
}

# Of Debian 13. Names of this host for several here, too: PRRTE starts a daemon for each.
@test "Open MPI 5's prterun: ranks, and one ddprun on each node is one job" {
  command -v prterun >/dev/null || skip "needs prterun (Debian 13: openmpi-bin)"
  prte() { timeout 120 env PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1 prterun "$@"; }
  run prte --map-by :oversubscribe -n 4 bash -c "$(task_facts '$PMIX_RANK' '$PMIX_RANK' - "$rank_program" world)"
  expect_facts 4 pmix 4
  [[ $output == *"by PRRTE"* ]]
  run prte --map-by :oversubscribe -n 3 "$rank_program" collectives
  [ "$status" -eq 0 ] || { echo "$output"; return 1; }
  expect_all 3 DONE
  run prte --map-by :oversubscribe -n 2 "$bin/ddprun" --nproc-per-node 1 true
  [ "$status" -ne 0 ]
  [[ $output == *"this job of PRRTE has 2 tasks, several on a node (2 here)"* ]] || { echo "$output"; return 1; }
  run prte --prtemca plm_ssh_agent "$PWD/on_this_host" --host n0.test:1,n1.test:1 -n 2 \
    "$bin/ddprun" --local-addr 127.0.0.1 --nproc-per-node 2 sh -c 'echo "RANK $RANK/$WORLD_SIZE node $GROUP_RANK"'
  [ "$status" -eq 0 ] || { echo "$output"; return 1; }
  for rank in 0 1 2 3; do expect_all 1 "RANK $rank/4 node $((rank / 2))"; done
}

# Built from its sources (flux-core): Debian has no package. Each broker of one host is a node.
@test "Flux: ranks, one ddprun on each node is one job, and agents by flux exec" {
  command -v flux >/dev/null || skip "needs flux"
  in_flux() { timeout 120 flux start -s 2 "$@"; }
  run in_flux flux run -N2 -n 4 bash -c "$(task_facts '$FLUX_TASK_RANK' '$FLUX_TASK_LOCAL_ID' '$((FLUX_TASK_RANK / 2))' "$rank_program" world)"
  expect_facts 4 pmi1 2,2
  [[ $output == *"by Flux"* ]]
  run in_flux flux run -N2 -n 3 "$rank_program" collectives
  [ "$status" -eq 0 ] || { echo "$output"; return 1; }
  expect_all 3 DONE
  run in_flux flux run -n 2 "$bin/ddprun" --nproc-per-node 1 true
  [ "$status" -ne 0 ]
  [[ $output == *"this job of Flux has 2 tasks, several on a node (2 here)"* ]] || { echo "$output"; return 1; }
  run in_flux flux run -N2 -n 2 "$bin/ddprun" --nproc-per-node 2 sh -c 'echo "RANK $RANK/$WORLD_SIZE node $GROUP_RANK"; [ $RANK != 3 ] || exit 3; exec sleep 500'
  [ "$status" -eq 3 ] || { echo "$output"; return 1; }
  for rank in 0 1 2 3; do expect_all 1 "RANK $rank/4 node $((rank / 2))"; done
  expect_all 1 "3 other ranks were ended by ddprun"
  run in_flux "$bin/ddprun" -H 0,1 --agent-command 'flux exec -r {host}' --nproc-per-node 1 sh -c 'echo "RANK $RANK/$WORLD_SIZE"'
  [ "$status" -eq 0 ] || { echo "$output"; return 1; }
  for rank in 0 1; do expect_all 1 "RANK $rank/2"; done
}

@test "a PMIx launcher whose variables lack the number of tasks is asked" {
  run mpirun -n 2 env -u OMPI_COMM_WORLD_RANK -u OMPI_COMM_WORLD_SIZE "$bin/ddprun" --nproc-per-node 1 true
  [ "$status" -ne 0 ]
  # Open MPI 5's mpirun is PRRTE.
  [[ $output =~ "this job of "("a PMIx launcher"|PRRTE)" has 2 tasks, several on a node (2 here)" ]] || { echo "$output"; return 1; }
  run mpirun -n 1 env -u OMPI_COMM_WORLD_RANK -u OMPI_COMM_WORLD_SIZE "$bin/ddprun" --nproc-per-node 2 sh -c 'echo RANK $RANK'
  [ "$status" -eq 0 ] || { echo "$output"; return 1; }
  expect_all 1 "RANK 1"
}

@test "several tasks on a node are an error that says what to do; --standalone is a job in each" {
  run hydra -n 2 "$bin/ddprun" --nproc-per-node 2 true
  [ "$status" -ne 0 ]
  [[ $output == *"this job of Hydra has 2 tasks, several on a node (2 here)"*"-ppn 1"* ]] || { echo "$output"; return 1; }
  run hydra -n 2 "$bin/ddprun" --standalone --nproc-per-node 1 sh -c 'echo "RANK $RANK/$WORLD_SIZE"'
  [ "$status" -eq 0 ] || { echo "$output"; return 1; }
  expect_all 2 "RANK 0/1"
}

@test "tasks of an engine without PMI are an error that names it" {
  run env FLUX_TASK_RANK=0 FLUX_JOB_SIZE=2 FLUX_JOB_NNODES=2 "$rank_program" world
  [ "$status" -eq 4 ]
  [[ $output == *"Flux has started 2 tasks but no PMI"*"flux run -o pmi=simple"* ]] || { echo "$output"; return 1; }
  run env JSM_NAMESPACE_RANK=0 JSM_NAMESPACE_SIZE=2 JSM_NAMESPACE_LOCAL_SIZE=1 "$bin/ddprun" true
  [ "$status" -eq 2 ]
  [[ $output == *"this job of jsrun has 2 tasks but no PMI"* ]] || { echo "$output"; return 1; }
}

@test "ddp-info env names the engine" {
  run hydra -n 2 "$bin/ddp-info" env
  [ "$status" -eq 0 ] || { echo "$output"; return 1; }
  [[ $output == *"started by Hydra, as task 0 of 2"*"2 ranks on 1 host"* ]] || { echo "$output"; return 1; }
}

@test "--agent-command: a template, or a program that gets host and command at its end" {
  printf '#!/bin/sh\necho "$*" >>calls\nshift\n[ "$1" != -- ] || shift\nexec "$@"\n' >rsh
  chmod +x rsh
  for template in "$PWD/rsh" "$PWD/rsh {host} --"; do
    run timeout 60 "$bin/ddprun" -H a,b --agent-command "$template" sh -c 'echo "RANK $RANK/$WORLD_SIZE"'
    [ "$status" -eq 0 ] || { echo "$output"; return 1; }
    expect_all 1 "RANK 1/2"
  done
  grep -qx "a $bin/ddprun --agent-from-stdin" calls
  grep -qx "b -- $bin/ddprun --agent-from-stdin" calls
  run timeout 60 "$bin/ddprun" -H a,b --agent-command 'sh -c {command} {host}' sh -c 'echo "RANK $RANK/$WORLD_SIZE"'
  [ "$status" -eq 0 ] || { echo "$output"; return 1; }
  run timeout 60 "$bin/ddprun" -H a --agent-command 'sh -c "echo no way to $0 >&2; exit 5"' true
  [ "$status" -eq 1 ]
  [[ $output == *"sh ended with exit code 5: no way to a; try 'echo works | sh -c "* ]] || { echo "$output"; return 1; }
}
