#!/usr/bin/env bats
# `ddp-info env` in real steps: variables and files that differ between ranks and nodes are found, and nothing else is said.

load ../support/cluster_jobs

# Without srun's own words about resources that it waits for: the last step's may just be coming free.
srun() { on_ctl srun --quiet "$@"; }

teardown() {
  [ -n "${cluster:-}" ] || return 0
  for node in n0 n1; do "$cluster" on $node rm -f /tmp/nccl.conf || true; done
  cluster_jobs_teardown
}

# The findings of $output, as "RULE (ranks ...)" lines without what follows.
findings() { sed -n '2,/^NCCL: /p' <<<"$output" | grep -v '^NCCL: '; }

@test "a healthy cluster has no finding, with PMIx, PMI-2 and ddprun" {
  for launch in "srun --mpi=pmix -N4 --ntasks-per-node=2" "srun --mpi=pmi2 -N4 --ntasks-per-node=2"; do
    run $launch "$bin/ddp-info" env
    echo "$output"
    [ "$status" -eq 0 ]
    [[ ${lines[0]} == "8 ranks on 4 hosts: n0 (ranks 0, 1), n1 (ranks 2, 3), n2 (ranks 4, 5), n3 (ranks 6, 7)" ]]
    [[ ${lines[1]} == "nothing wrong found" ]]
    expect_all 1 "SLURM_PROCID"
  done
  run allocation -N2 --ntasks-per-node=1 "$bin/ddprun" --nproc-per-node 2 "$bin/ddp-info" env
  echo "$output"
  [ "$status" -eq 0 ]
  [[ $output == *"4 ranks on 2 hosts: "*"nothing wrong found"*"ddprun's placement"* ]]
}

@test "a misspelt variable on two ranks is found, and nothing else" {
  run srun --mpi=pmix -N4 --ntasks-per-node=2 bash -c \
    'case $SLURM_PROCID in 2 | 5) export NCCL_SOKET_IFNAME=eth0;; esac; exec "$0" env' "$bin/ddp-info"
  echo "$output"
  [ "$status" -eq 0 ]
  [ "$(findings)" = "1 warning:
  warning env-misspelt: unrecognized variable NCCL_SOKET_IFNAME; did you mean NCCL_SOCKET_IFNAME? (ranks 2, 5); rename it to NCCL_SOCKET_IFNAME" ]
}

@test "an nccl.conf of one node that is another is found, and nothing else; with equal files it is gone" {
  write_conf() { "$cluster" on "$1" sh -c "printf 'NCCL_ALGO=%s\nNCCL_DEBUG=WARN\n' $2 >/tmp/nccl.conf"; }
  write_conf n0 Ring
  write_conf n1 Tree
  run srun --mpi=pmix -N2 --ntasks-per-node=2 --export=ALL,NCCL_CONF_FILE=/tmp/nccl.conf "$bin/ddp-info" env
  echo "$output"
  [ "$status" -eq 0 ]
  [ "$(findings)" = "1 error:
  error env-differs: NCCL_ALGO must be equal on all ranks, but is 'Ring' on ranks 0, 1, 'Tree' on ranks 2, 3; make the files nccl.conf of all nodes equal, or export it to all ranks" ]
  write_conf n1 Ring
  run srun --mpi=pmix -N2 --ntasks-per-node=2 --export=ALL,NCCL_CONF_FILE=/tmp/nccl.conf "$bin/ddp-info" env
  [[ ${lines[1]} == "nothing wrong found" ]]
  expect_all 1 "Ring"
}

@test "DDP_DUMP_ENV: the file of a step has all its ranks, and is compared with another step's" {
  for debug in INFO WARN; do
    run srun --mpi=pmix -N4 --ntasks-per-node=2 --export=ALL,NCCL_DEBUG=$debug,DDP_DUMP_ENV="$shared/$debug.json" "$rank_program" world
    [ "$status" -eq 0 ] || { echo "$output"; return 1; }
  done
  run -0 "$bin/ddp-info" env --diff "$shared/INFO.json" "$shared/WARN.json"
  echo "$output"
  expect_all 1 "- NCCL_DEBUG=INFO [environment]"
  expect_all 1 "+ NCCL_DEBUG=WARN [environment]"
  [ "${#lines[@]}" -le 4 ] # besides, DDP_DUMP_ENV itself
}

@test "running jobs of several nodes are compared, from a host that has none of their ranks" {
  local rank="echo READY; exec sleep 600"
  start bash -c 'srun --quiet -w "n[0-1]" -n4 --job-name=before env NCCL_DEBUG=INFO bash -c "$0" & exec srun --quiet -w "n[2-3]" -n2 --job-name=after env NCCL_DEBUG=WARN NCCL_IB_TIMEOUT=22 bash -c "$0"' "$rank"
  ready() { [ "$(grep -c READY "$shared/out")" -eq 6 ]; }
  eventually 60 ready || { cat "$shared/out"; return 1; }
  local before after
  before=$(on_ctl squeue -h -n before -o %A)
  after=$(on_ctl squeue -h -n after -o %A)
  run on_ctl "$bin/ddp-info" env --diff "job:$before" "job:$after.0"
  echo "$output"
  [ "$status" -eq 0 ]
  [[ $output == *"- NCCL_DEBUG=INFO [environment]"*"+ NCCL_DEBUG=WARN [environment]"*"+ NCCL_IB_TIMEOUT=22 "* ]]
  # from one of its nodes, too
  run "$cluster" on n0 "$bin/ddp-info" env --diff "job:$before" "job:$before.0"
  [ "$output" = "no differences" ] || { echo "$output"; return 1; }
  if others_can_run "$bin/ddp-info"; then
    run on_ctl setpriv --reuid 65534 --clear-groups "$bin/ddp-info" env --diff "job:$before" "job:$after"
    [ "$status" -eq 1 ]
    [[ $output == "ddp-info: looking for the ranks of job $before: none of your processes on this host is one, and it belongs to root"* ]] ||
      { echo "$output"; return 1; }
  fi
  on_ctl scancel --signal=KILL "$before" "$after"
  wait "$job" || true
  job=
}
