#!/usr/bin/env bats
# Ranks that stay away, die or are cut off while Slurm runs them on four nodes: the others name them, in time.

load ../support/cluster_jobs

srun() { on_ctl srun --kill-on-bad-exit=0 "$@"; }

# start_loop PMI DEADLINE [SRUN_OPTION...]: four ranks, one a node, in endless all_reduces; returns when all are in it.
# They write past srun, which drops last lines when a task of the step was killed by a signal (Slurm 22.05).
start_loop() {
  local pmi=$1 deadline=$2
  shift 2
  start srun --kill-on-bad-exit=0 --mpi="$pmi" -N4 -n4 "$@" \
    bash -c 'exec "$@" >>"$0"' "$shared/out" "$rank_program" loop "$deadline" 100000
  says 4 READY
}

@test "ranks that never reach the first fence are named exactly, over PMIx and PMI-2" {
  for pmi in pmix pmi2; do # side by side
    srun --mpi=$pmi -N4 -n8 --export=ALL,DDP_INIT_TIMEOUT=14 bash -c \
      'case $SLURM_PROCID in 3 | 6) exec sleep 20 ;; esac; exec '"${rank_program@Q} world" >"$shared/$pmi" 3>&- &
  done
  wait
  for pmi in pmix pmi2; do
    output=$(cat "$shared/$pmi")
    expect_all 6 "code=timeout ranks=[3,6]"
  done
}

@test "a rank that never reaches a later fence is named exactly, over PMI-2" {
  run srun --mpi=pmi2 -N4 -n8 "$bin/kvs_exercise" --store pmi2 --absent 2 --absent 7 --timeout-ms 5000
  expect_all 6 "(ranks 2, 7)"
}

@test "a rank that is killed in an all_reduce is named by all survivors" {
  # leaving PMIx after wire-up, since Slurm kills the whole step of a PMIx client that dies
  for pmi in pmi2 pmix; do
    start_loop $pmi 60 --export=ALL,TEST_LEAVE=1
    "$cluster" on n2 pkill -KILL rank_program
    finish
    expect_all 3 "code=peer_lost ranks=[2]"
  done
}

@test "Slurm ends the whole step at once when a rank with an open PMIx session is killed" {
  start_loop pmix 100
  "$cluster" on n2 pkill -KILL rank_program
  start=$SECONDS
  finish
  [ $((SECONDS - start)) -lt 60 ] # long before the deadline of the operation
}

@test "a rank that is stopped in an all_reduce is named by all survivors within the deadline" {
  start_loop pmi2 10
  "$cluster" on n1 pkill -STOP rank_program
  for _ in $(seq 300); do
    [ "$(grep -c ERROR "$shared/out" || true)" -lt 3 ] || break
    sleep 0.1
  done
  "$cluster" on n1 pkill -KILL rank_program
  finish
  expect_all 3 "code=peer_lost ranks=[1]"
  while read -r _ seconds; do [ "${seconds%.*}" -le 10 ]; done < <(grep WAITED <<<"$output")
}

@test "a node whose link is cut is named by the others long before the operation's deadline, and names them" {
  start_loop pmi2 100 --export=ALL,DDP_PEER_TIMEOUT=6
  "$cluster" on n3 ip link set eth0 down
  for _ in $(seq 300); do
    [ "$(grep -c "ranks=\[3\]" "$shared/out" || true)" -lt 3 ] || break
    sleep 0.1
  done
  sleep 3 # by then the rank behind the cut has found out, too
  "$cluster" on n3 ip link set eth0 up
  all_named() { grep -q "code=peer_lost ranks=\[0,1,2\]" "$shared/out"; }
  eventually 60 all_named || { cat "$shared/out"; return 1; }
  # The news of a task's end may have got lost with the link; srun would wait for it.
  "$cluster" run scancel --user=root
  "$cluster" run pkill -KILL -x srun || true # it may have ended
  finish
  expect_all 3 "code=peer_lost ranks=[3]"
  expect_all 1 "code=peer_lost ranks=[0,1,2]"
  while read -r _ seconds; do [ "${seconds%.*}" -le 20 ]; done < <(grep WAITED <<<"$output")
}

@test "a variable of another launcher that disagrees is an error which prints both values" {
  run srun --mpi=pmix -N2 -n2 --export=ALL,RANK=1,WORLD_SIZE=7 "$rank_program" world
  [ "$status" -ne 0 ]
  expect_all 2 "code=conflict"
  [[ "$output" == *"PMIx says 0, RANK says 1"* ]]
  [[ "$output" == *"PMIx says 2, WORLD_SIZE says 7"* ]]
  run srun --mpi=pmix -N2 -n2 --export=ALL,RANK=1,WORLD_SIZE=7,DDP_LAUNCH=pmix "$rank_program" world
  [ "$status" -eq 0 ]
}
