#!/usr/bin/env bats
# ddprun by host list on four nodes, over a real sshd on each: ranks and environment, hosts that cannot be reached, and
# what is left when something dies.

load ../support/cluster_jobs
load ../support/ssh_nodes

facts='echo "FACTS $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE $(hostname)"'

setup() {
  cluster_jobs_setup
  ssh_nodes_setup n0 n1 n2 n3
  printf '#!/bin/bash\necho "UP $RANK"\n%s\n' 'sleep 98765 & setsid sleep 98765 & disown; wait %1' >"$shared/worker"
  chmod +x "$shared/worker"
  cd "$shared"
}

teardown() {
  ssh_nodes_teardown
  cluster_jobs_teardown
}

by_hosts() { on_ctl "$bin/ddprun" --ssh-command "$ssh_command" --ssh-port "$kSshPort" "$@"; }
start_by_hosts() {
  start "$bin/ddprun" --ssh-command "$ssh_command" --ssh-port "$kSshPort" --failure-grace 0 --shutdown-timeout 3 "$@"
}

up() { [ "$(grep -c '^UP' "$shared/out")" -ge "$1" ]; }
clean_node() { ! "$cluster" on "$1" pgrep -f 'sleep 98765|ddprun' >/dev/null; }
clean() {
  local node
  for node in n0 n1 n2 n3; do eventually 20 clean_node $node || { "$cluster" on $node ps axf; return 1; }; done
  ! "$cluster" run pgrep -x 'ssh|ddprun'
}

# refused WORDS...: the job failed with one line of ddprun's, which has them all.
refused() {
  local word
  [ "$status" -ne 0 ] || { echo "no error: $output"; return 1; }
  for word in "$@"; do [[ $output == *"$word"* ]] || { echo "without '$word': $output"; return 1; }; done
  [ "$(wc -l <<<"$output")" -eq 1 ] || { echo "$output"; return 1; }
}

@test "ranks and world are right on four nodes, as a list and a file say" {
  run by_hosts -H n0:2,n2:1,n[1,3]:2 sh -c "$facts"
  succeeded
  diff <(grep FACTS <<<"$output" | sort -k2n) - <<'RANKS'
FACTS 0 0 7 2 0 4 n0
FACTS 1 1 7 2 0 4 n0
FACTS 2 0 7 1 1 4 n2
FACTS 3 0 7 2 2 4 n1
FACTS 4 1 7 2 2 4 n1
FACTS 5 0 7 2 3 4 n3
FACTS 6 1 7 2 3 4 n3
RANKS
  printf '# nodes\nn3 slots=1 max_slots=4\n\nn0 slots = 1\n' >"$shared/hosts"
  run by_hosts --hostfile hosts sh -c "$facts"
  succeeded
  [ "$(grep FACTS <<<"$output" | sort)" = $'FACTS 0 0 2 1 0 2 n3\nFACTS 1 0 2 1 1 2 n0' ]
}

@test "ranks form a World over the hosts' PMIx servers" {
  run by_hosts -H n[0-3] --nproc-per-node 2 "$rank_program" world
  succeeded
  expect_all 8 DONE
}

@test "ranks get the environment, folder and umask of the call; the secret is in no list of processes" {
  SETTING='a "b" $c' SLURM_JOB_ID=7 run on_ctl sh -c 'umask 027; exec "$@"' sh "$bin/ddprun" --ssh-command "$ssh_command" \
    --ssh-port "$kSshPort" -H n0,n1 sh -c 'echo "$SETTING|$PWD|$(umask)|$SLURM_JOB_ID|$SSH_CONNECTION"'
  succeeded
  [ "$(grep -cF "a \"b\" \$c|$shared|0027||10.78.0." <<<"$output")" -eq 2 ] || { echo "$output"; return 1; }
  start_by_hosts -H n0,n1 "$shared/worker"
  eventually 60 up 2
  ! "$cluster" on n1 sh -c 'tr "\0" "\n" </proc/$(pgrep -o -x ddprun)/environ' | grep DDPRUN_AGENT=
  ! "$cluster" run ps axww -o args | grep DDPRUN_AGENT=
  ! "$cluster" on n1 sh -c 'for p in $(pgrep -x worker); do cat /proc/$p/environ; done' | grep -a DDPRUN_AGENT
  "$cluster" run pkill -INT -x ddprun
  finish
  [ "$status" -eq 130 ] || { echo "$output"; return 1; }
  clean
}

@test "a killed rank is reported with its host, and restarts happen" {
  start_by_hosts -H n[0-3] --nproc-per-node 1 --max-restarts 1 "$shared/worker"
  eventually 60 up 4
  "$cluster" on n2 sh -c 'kill -KILL $(pgrep -x worker)'
  eventually 60 up 8
  "$cluster" on n3 sh -c 'kill -KILL $(pgrep -x worker)'
  finish
  [ "$status" -eq 137 ] || { echo "$output"; return 1; }
  [[ $output == *"restarting"*"host      : n3"*"signal    : SIGKILL"* ]] || { echo "$output"; return 1; }
  clean
}

@test "the end of ddprun, of an ssh and of an agent leaves nothing" {
  start_by_hosts -H n[0-3] "$shared/worker"
  eventually 60 up 4
  "$cluster" run pkill -KILL -x ddprun
  finish
  clean
  start_by_hosts -H n[0-3] "$shared/worker"
  eventually 60 up 4
  "$cluster" run pkill -KILL -f '^ssh .* n2 exec'
  finish
  [ "$status" -ne 0 ]
  [[ $output == *"host      : n2"*"ssh was ended by SIGKILL"* ]] || { echo "$output"; return 1; }
  clean
  start_by_hosts -H n[0-3] "$shared/worker"
  eventually 60 up 4
  "$cluster" on n1 sh -c 'kill -KILL $(pgrep -o -x ddprun)'
  finish
  [ "$status" -ne 0 ]
  [[ $output == *"host      : n1"* ]] || { echo "$output"; return 1; }
  clean
}

@test "Ctrl-C ends the job; so does one while hosts are awaited" {
  start_by_hosts -H n[0-3] "$shared/worker"
  eventually 60 up 4
  "$cluster" run pkill -INT -x ddprun
  finish
  [ "$status" -eq 130 ] || { echo "$output"; return 1; }
  clean
  stop_sshd n3
  start_sshd n3 "$ssh_home/authorized_keys" "ForceCommand cat >/dev/null"
  start_by_hosts -H n[0-3] "$shared/worker"
  eventually 30 "$cluster" on n2 pgrep -x ddprun
  eventually 30 "$cluster" on n3 pgrep -x cat
  "$cluster" run pkill -INT -x ddprun
  local began=$SECONDS
  finish
  [ "$status" -eq 130 ] || { echo "$output"; return 1; }
  [ $((SECONDS - began)) -lt 60 ]
  clean
}

@test "standard input goes to rank 0 on the first host, through ssh" {
  run by_hosts -H n1:2,n0:1 sh -c 'echo "$RANK $(wc -c) $(hostname)"' < <(head -c 3000000 /dev/zero)
  succeeded
  [ "$(grep -E '^(\[|[0-9])' <<<"$output" | sed 's/^\[[0-9]*\] *//' | sort)" = $'0 3000000 n1\n1 0 n1\n2 0 n0' ] || { echo "$output"; return 1; }
  run by_hosts -H n1,n0 sh -c '[ $RANK != 0 ] || { read -r line; echo "$line"; }' < <(yes)
  succeeded
  clean
}

@test "a host that cannot be used is one line with its name and a remedy, before ranks start" {
  stop_sshd n1
  run by_hosts -H n0,n1 "$shared/worker"
  refused "on n1" "refused" "is it up, with an sshd?"
  run by_hosts -H n0,nosuch,n1 "$shared/worker"
  refused "on nosuch" "Could not resolve hostname" "check the name" "on n1" "is it up, with an sshd?"
  : >"$ssh_home/no_keys"
  start_sshd n1 "$ssh_home/no_keys"
  run by_hosts -H n0,n1 "$shared/worker"
  refused "on n1" "Permission denied" "without a password"
  sed -i '/^\[n3\]/d' "$ssh_home/known_hosts"
  run by_hosts -H n0,n3 "$shared/worker"
  refused "on n3" "Host key verification failed" "known_hosts"
  mkdir "$shared/only-ctl"
  run on_ctl sh -c 'mount -t tmpfs tmpfs only-ctl && cp "$0" only-ctl/ && only-ctl/ddprun "$@"; status=$?
    umount only-ctl; exit $status' "$bin/ddprun" --ssh-command "$ssh_command" --ssh-port "$kSshPort" -H n2 true
  refused "on n2" "exit code 127" "install the same libddp" "only-ctl/ddprun"
  run by_hosts -H n0,n1 --nnodes 1:2 sh -c "$facts"
  succeeded
  [[ $output == *"on n1"*"Permission denied"*"FACTS 0 0 1 1 0 1 n0"* ]] || { echo "$output"; return 1; }
  clean
}

@test "ddp-info resize: hosts wait, come back, leave and are replaced, within the host list" {
  export XDG_STATE_HOME="$shared/state"
  printf '#!/bin/bash\necho "UP $DDP_GENERATION $RANK/$WORLD_SIZE $(hostname)"\n%s\n' \
    'while ! [ -e "$(dirname "$0")/go" ]; do sleep 0.1; done' >"$shared/worker"
  start_by_hosts --nnodes 1:3 -H n0,n1,n2 "$shared/worker"
  eventually 30 eval '[ -n "$(ls "$shared/state/libddp/jobs" 2>/dev/null)" ]'
  resize() { on_ctl "$bin/ddp-info" resize "$(ls "$shared/state/libddp/jobs")" "$@"; }
  [ "$(resize --nodes 1)" = "n1, n2 are to wait as spares" ]
  eventually 30 grep -q '^UP 1 0/1 n0$' "$shared/out"
  [ "$(resize --nodes 2)" = "n1 is to join" ]
  eventually 30 grep -q '^UP 2 1/2 n1$' "$shared/out"
  [ "$(resize --drain n1)" = "n1 is to leave" ]
  eventually 30 grep -q '^UP 3 1/2 n2$' "$shared/out"
  grep -Eq "^ddprun: n1 left, asked by ddp-info resize on [^ ]+; 1 of 2 nodes continues with n2 " "$shared/out"
  run resize --nodes 3
  [ "$status" -eq 1 ]
  [[ $output == *"2 nodes are left, and no other can join"* ]]
  clean_node n1
  touch "$shared/go"
  finish
  succeeded
  [ -z "$(ls "$shared/state/libddp/jobs")" ]
  clean
}
