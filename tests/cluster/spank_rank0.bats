#!/usr/bin/env bats
# What programs of others expect of `srun --ddp`: that MASTER_ADDR is rank 0's host, wherever srun is; and what it says of
# command lines that are another launcher's, of ranks that hang, and with which status it ends.

load ../support/spank_jobs

setup() {
  spank_jobs_setup
  # Rank 0 opens a server of its own, as programs with a second TCPStore do; the others reach it at MASTER_ADDR.
  cat >"$shared/second_server.py" <<'SCRIPT'
import os, socket, sys, time
rank, size, address, place = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["MASTER_ADDR"], sys.argv[1]
with socket.create_connection((address, int(os.environ["MASTER_PORT"])), 20):
    pass
if rank == 0:
    with socket.create_server(("", 0), backlog=64) as server:
        with open(place + ".new", "w") as file:
            file.write(str(server.getsockname()[1]))
        os.rename(place + ".new", place)
        server.settimeout(20)
        others = [server.accept()[0] for _ in range(size - 1)]
else:
    for _ in range(400):
        if os.path.exists(place):
            break
        time.sleep(0.05)
    with socket.create_connection((address, int(open(place).read())), 20) as connection:
        connection.recv(1)
print("MET", rank, address, os.environ["SLURMD_NODENAME"])
SCRIPT
}

# meets TASKS NODE: all tasks met at the address of this node.
meets() {
  succeeded
  local address
  address=$("$cluster" on "$2" hostname -I | tr ' ' '\n' | grep '^10\.78\.')
  expect_all "$1" "MET "
  [ "$(sed -n 's/^MET [0-9]* \([^ ]*\) .*/\1/p' <<<"$output" | sort -u)" = "$address" ] || { echo "$output"; return 1; }
}

@test "MASTER_ADDR is the host of rank 0, and leads to the store, wherever srun is" {
  local program="python3 $shared/second_server.py $shared/port"
  run srun --ddp -N2 -n4 $program.1
  meets 4 n0
  run srun --ddp -w n2,n3 -N2 -n2 $program.2
  meets 2 n2
  printf 'n2\nn0\nn3\n' >"$shared/hosts"
  run on_ctl env "SLURM_HOSTFILE=$shared/hosts" srun --ddp -n3 -m arbitrary $program.3
  meets 3 n2
  batch "srun --ddp -w n2,n3 -N2 -n2 $program.4; srun --ddp -N4 -n4 $program.5" -N4 -n4
  succeeded
  expect_all 6 "MET "
  [ "$(grep -c '^MET . 10\.78\.0\.3 ' <<<"$output")" -eq 2 ] && [ "$(grep -c '^MET . 10\.78\.0\.1 ' <<<"$output")" -eq 4 ] || { echo "$output"; return 1; }
  clean
}

@test "a node whose rank 0 is silent leaves the store beside srun to all" {
  "$cluster" on n0 mount -t tmpfs tmpfs "$DDP_CLUSTER_DIR/etc/plugstack.conf.d"
  run srun --ddp -N2 -n2 sh -c 'echo "FACTS $RANK ADDRESS=$MASTER_ADDR"'
  "$cluster" on n0 umount "$DDP_CLUSTER_DIR/etc/plugstack.conf.d"
  [ "$(fact ADDRESS | grep .)" = 10.78.0.254 ] || { echo "$output"; return 1; }
}

@test "who hangs is told without being asked, by all nodes, and can be switched off" {
  run srun --ddp --ddp-hang-report-after=2 -w n0,n1 -N2 -n4 sleep 8
  succeeded
  expect_all 1 "srun --ddp: no progress for 2 s: "
  [[ $output == *"ranks 0-3 (n0, n1)"* || $output == *"rank"*"asleep"* ]] || { echo "$output"; return 1; }
  run srun --ddp --ddp-hang-report-after=0 -w n0,n1 -N2 -n2 sleep 4
  succeeded
  expect_all 0 "no progress"
  clean
}

@test "srun ends with the status of the rank that failed first" {
  local case
  for case in "exit 7;7" 'kill -KILL $$;137' "exit 255;255"; do
    run srun --ddp -w n0,n1 -N2 -n4 sh -c "[ \$RANK != 2 ] || { sleep 0.3; ${case%;*}; }; exec sleep 97654"
    [ "$status" -eq "${case##*;}" ] || { echo "$case: $status"; echo "$output"; return 1; }
  done
  run srun --ddp --kill-on-bad-exit=0 -N1 -n2 sh -c '[ $RANK != 1 ] || exit 7'
  [ "$status" -eq 7 ]
  run srun --ddp -N1 -n2 true
  [ "$status" -eq 0 ]
  clean
}

@test "other launchers and scripts that are no programs are told what to write" {
  cd "$shared"
  echo 'print(1)' >"$shared/train.py"
  run srun --ddp -N1 -n1 "$shared/train.py"
  [ "$status" -eq 1 ] && [ "$(wc -l <<<"$output")" -eq 1 ] && [[ $output == *"write srun --ddp ... python $shared/train.py" ]] || { echo "$output"; return 1; }
  run srun --ddp -N2 --ntasks-per-node=1 torchrun --nnodes=2 --nproc-per-node=2 train.py
  [ "$status" -eq 1 ] && [[ $output == *"write srun --ddp --ntasks-per-node=2 python train.py, or ddprun"* ]] || { echo "$output"; return 1; }
  mkdir -p "$shared/bin"
  printf '#!/bin/sh\necho RAN\n' >"$shared/bin/torchrun"
  chmod +x "$shared/bin/torchrun"
  run srun --ddp -N1 -n1 "$shared/bin/torchrun" --nproc-per-node=2 train.py
  succeeded
  expect_all 1 "srun: ddp: warning: torchrun starts ranks of its own"
  expect_all 1 RAN
  run on_ctl env DDP_BIND=nuam srun --ddp -N1 -n1 true
  [ "$status" -ne 0 ] && [[ $output != *"(null)"* && $output == *"did you mean 'numa'"* ]] || { echo "$output"; return 1; }
  run srun --help
  [[ $output == *"--ddp-dump "*"[=FILE]"* && $output == *"--ddp-metrics "*"[=[ADDRESS:]PORT]"* ]] || { grep ddp <<<"$output"; return 1; }
}
