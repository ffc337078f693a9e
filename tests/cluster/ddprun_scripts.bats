#!/usr/bin/env bats
# ddprun in the scripts and shells of others: loops over lists of runs, orders of nodes, shells whose job is over, and
# endpoints that mean each host itself.

load ../support/cluster_jobs

# batch ARGUMENT...: runs $shared/job.sh by sbatch; its output is in $output.
batch() {
  chmod +x "$shared/job.sh"
  on_ctl sbatch -W -o "$shared/out" "$@" "$shared/job.sh" >"$shared/sbatch" || { cat "$shared/sbatch" "$shared/out"; return 1; }
  output=$(cat "$shared/out")
}

@test "a loop over a list of runs runs each line, on two nodes as on one" {
  local nodes
  printf 'run %s\n' a b c >"$shared/list"
  printf '#!/bin/bash\nwhile read -r line; do "%s" --nproc-per-node 1 sh -c "echo $line"; done <"%s"\n' \
    "$bin/ddprun" "$shared/list" >"$shared/job.sh"
  for nodes in 1 2; do
    batch -N$nodes
    [ "$(sort <<<"$output" | uniq -c | sed 's/^ *//')" = "$(printf "$nodes run %s\n" a b c)" ] || { echo "$output"; return 1; }
  done
  # from a pipe, and with a rank 0 that reads a line
  printf '#!/bin/bash\ncat "%s" | { "%s" sh -c '\''[ $RANK != 0 ] || { read -r line; echo "got $line"; }'\''; read -r line; echo "left $line"; }\n' \
    "$shared/list" "$bin/ddprun" >"$shared/job.sh"
  batch -N2
  [ "$output" = $'got run a\nleft run b' ] || { echo "$output"; return 1; }
}

first='sh -c '\''echo "rank $RANK $(hostname)"'\'''

@test "the user's order of nodes is that of the ranks, however ddprun is started" {
  printf '%s\n' n2 n0 n3 >"$shared/order"
  run on_ctl env SLURM_HOSTFILE="$shared/order" srun -n3 -m arbitrary --mpi=pmix "$bin/ddprun" sh -c 'echo "rank $RANK $(hostname)"'
  succeeded
  [ "$(sort <<<"$output")" = $'rank 0 n2\nrank 1 n0\nrank 2 n3' ] || { echo "$output"; return 1; }
  printf '#!/bin/sh\n"%s" %s\necho first two\n"%s" --nnodes 2 %s\n' "$bin/ddprun" "$first" "$bin/ddprun" "$first" >"$shared/job.sh"
  export SLURM_HOSTFILE=$shared/order
  batch -n3 -m arbitrary
  [ "$(sed '/first two/,$d' <<<"$output" | sort)" = $'rank 0 n2\nrank 1 n0\nrank 2 n3' ] || { echo "$output"; return 1; }
  [ "$(sed '1,/first two/d' <<<"$output" | sort)" = $'rank 0 n2\nrank 1 n0' ] || { echo "$output"; return 1; }
  # a list of ranks, as for srun: two on each node; and rank 0's node has standard input
  printf '%s\n' n3 n3 n1 n1 >"$shared/order"
  printf '#!/bin/sh\necho typed | "%s" --nproc-per-node 2 sh -c '\''[ $RANK != 0 ] || cat; echo "rank $RANK $(hostname)"'\''\n' "$bin/ddprun" >"$shared/job.sh"
  batch -n4 -m arbitrary
  [ "$(sort <<<"$output")" = $'rank 0 n3\nrank 1 n3\nrank 2 n1\nrank 3 n1\ntyped' ] || { echo "$output"; return 1; }
}

@test "in a shell whose job is over, the error says what to unset" {
  run on_ctl env SLURM_JOB_ID=99999 SLURM_JOB_NUM_NODES=2 SLURM_JOB_NODELIST=n[0-1] "$bin/ddprun" true
  echo "$output"
  [ "$status" -ne 0 ]
  [[ $output == *"if Slurm job 99999 has ended"*"unset"*"--standalone"* ]]
}

@test "an endpoint that is each host's own is named, and join_timeout holds" {
  local node
  for node in 0 1; do
    timeout -k 5 60 "$cluster" on n$node env DDP_RDZV_SECRET=0123456789abcdef "$bin/ddprun" --nnodes 2 --rdzv-backend c10d \
      --rdzv-endpoint localhost:29631 --rdzv-conf join_timeout=7 true >"$shared/out.$node" 2>&1 3>&- &
  done
  wait
  cat "$shared"/out.*
  for node in 0 1; do
    [ "$(grep -c "localhost is each host's own" "$shared/out.$node")" -eq 2 ] # after 5 s, and in the error
    grep -q "waiting for other nodes" "$shared/out.$node"
  done
}
