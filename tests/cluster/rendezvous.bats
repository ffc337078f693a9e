#!/usr/bin/env bats
# ddpruns that are started by hand on several hosts, without Slurm: how they prove who started them, and who is refused.

load ../support/cluster_jobs

setup() {
  cluster_jobs_setup
  ddprun="$bin/ddprun"
  # No host has a munged unless its test says so; all have a home folder of their own.
  munge=$DDP_CLUSTER_DIR/munge/socket
  declare -gA hands=()
}

teardown() {
  local pid
  for pid in "${hands[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done
  cluster_jobs_teardown
}

facts='echo "$(hostname): $GROUP_RANK/$GROUP_WORLD_SIZE $RANK/$WORLD_SIZE"'
meet=(--nnodes 2 --rdzv-backend c10d --rdzv-endpoint n0:29411 --rdzv-conf "join_timeout=60,read_timeout=30")

# hand NODE VARIABLE=VALUE... -- ARGUMENTS...: a ddprun in the background; its streams go to $shared/NODE.
hand() {
  local node=$1 variables=(HOME="/tmp/$1-home" XDG_CONFIG_HOME= DDP_MUNGE_SOCKET=/no/munge)
  shift
  while [ "$1" != -- ]; do variables+=("$1") && shift; done
  shift
  timeout -k 5 "${LIMIT:-120}" "$cluster" on "$node" sh -c 'mkdir -p "$1"; shift; exec "$@"' sh "/tmp/$node-home" \
    env "${variables[@]}" "$ddprun" "$@" >"$shared/$node" 2>&1 3>&- &
  hands[$node]=$!
}

# finishes STATUS NODE...: all of them end with it; then output has what all said.
finishes() {
  local expected=$1 node
  shift
  output=
  for node in "$@"; do
    status=0
    wait "${hands[$node]}" || status=$?
    unset "hands[$node]"
    output+=$(cat "$shared/$node")$'\n'
    [ "$status" -eq "$expected" ] || { echo "$node: status $status"; echo "$output"; return 1; }
  done
}

# refused NODE WORDS: it ends with one line that has them, which says what to do behind a semicolon.
refused() {
  finishes 1 "$1" || return 1
  echo "$output"
  [ "$(wc -l <"$shared/$1")" -eq 1 ]
  [[ $output == "ddprun: "*"$2"*"; "* ]]
}

listens() { "$cluster" on n0 grep -qi "$1:72E3 0*:0000 0A" /proc/net/tcp; } # port 29411
expect_world() { [ "$(grep -o 'n[0-9]: .*' <<<"$output" | sort)" = $'n0: 0/2 0/2\nn1: 1/2 1/2' ]; }

@test "munge: hosts of one user's ddpruns know each other, at the endpoint's address alone" {
  hand n0 DDP_MUNGE_SOCKET="$munge" -- "${meet[@]}" sh -c "$facts"
  eventually 30 listens 01004E0A # 10.78.0.1
  run ! listens 00000000
  hand n1 DDP_MUNGE_SOCKET="$munge" -- "${meet[@]}" sh -c "$facts"
  finishes 0 n0 n1
  expect_world
}

@test "munge on one host only: the other is told so; the job waits on for one that has it" {
  hand n0 DDP_MUNGE_SOCKET="$munge" -- "${meet[@]}" sh -c "$facts"
  hand n2 -- "${meet[@]}" sh -c "$facts"
  refused n2 "uses munge, but on n2: munged does not answer"
  hand n1 DDP_MUNGE_SOCKET="$munge" -- "${meet[@]}" sh -c "$facts"
  finishes 0 n0 n1
  expect_world
}

@test "DDP_RDZV_SECRET: the same on all hosts; another is refused alone" {
  hand n0 DDP_RDZV_SECRET=right DDP_MUNGE_SOCKET="$munge" -- "${meet[@]}" sh -c "$facts"
  hand n2 DDP_RDZV_SECRET=wrong -- "${meet[@]}" sh -c "$facts"
  refused n2 "10.78.0.1:29411: it does not accept this node's DDP_RDZV_SECRET"
  hand n1 DDP_RDZV_SECRET=right -- "${meet[@]}" sh -c "$facts"
  finishes 0 n0 n1
  expect_world
}

@test "the key file: of a shared home folder, also when all make it at once; another host's own is refused" {
  hand n0 XDG_CONFIG_HOME="$shared/config" -- "${meet[@]}" sh -c "$facts"
  hand n1 XDG_CONFIG_HOME="$shared/config" -- "${meet[@]}" sh -c "$facts"
  finishes 0 n0 n1
  expect_world
  [ "$(stat -c %a "$shared/config/libddp/rendezvous.key")" = 600 ]
  hand n0 XDG_CONFIG_HOME="$shared/config" -- "${meet[@]}" sh -c "$facts"
  hand n2 -- "${meet[@]}" sh -c "$facts"
  refused n2 "it does not accept this node's key file '/tmp/n2-home/.config/libddp/rendezvous.key'"
  hand n1 XDG_CONFIG_HOME="$shared/config" -- "${meet[@]}" sh -c "$facts"
  finishes 0 n0 n1
}

@test "another user's ddprun is refused: by munge, and without its key file" {
  others_can_run "$ddprun" || skip "the programs are in a folder of root's"
  chmod 711 "$DDP_CLUSTER_DIR" "$DDP_CLUSTER_DIR/munge"
  # another_user VARIABLE=VALUE...: on n2
  another_user() {
    run -1 timeout 60 "$cluster" on n2 setpriv --reuid=65534 --regid=65534 --clear-groups env HOME=/tmp/nobody \
      TMPDIR=/tmp "$@" "$ddprun" "${meet[@]}" sh -c "$facts"
    echo "$output"
    [ "${#lines[@]}" -eq 1 ]
  }
  "$cluster" on n2 install -d -o 65534 -g 65534 /tmp/nobody
  hand n0 DDP_MUNGE_SOCKET="$munge" -- "${meet[@]}" sh -c "$facts"
  another_user DDP_MUNGE_SOCKET="$munge"
  [[ $output == *"it does not accept this node's munge credential"* ]]
  hand n1 DDP_MUNGE_SOCKET="$munge" -- "${meet[@]}" sh -c "$facts"
  finishes 0 n0 n1
  [[ $output == *"EMUNGE_CRED_UNAUTHORIZED (18)"*"the same user's"* ]]
  hand n0 XDG_CONFIG_HOME="$shared/config" -- "${meet[@]}" sh -c "$facts"
  another_user DDP_MUNGE_SOCKET=/no/munge XDG_CONFIG_HOME="$shared/config"
  [[ $output == *"on n2: reading the key file '$shared/config/libddp/rendezvous.key': Permission denied"*EACCES* ]]
  hand n1 XDG_CONFIG_HOME="$shared/config" -- "${meet[@]}" sh -c "$facts"
  finishes 0 n0 n1
}

@test "without any proof, and with another host's address as node 0's, one line says what to do" {
  hand n0 XDG_CONFIG_HOME=/proc/none -- "${meet[@]}" true
  refused n0 "munged does not answer"
  [[ $output == *"DDP_RDZV_SECRET is not set"*"/proc/none/libddp/rendezvous.key"*ENOENT*--rdzv-insecure* ]]
  hand n0 -- --nnodes 2 --node-rank 0 --master-addr n1 true
  refused n0 "n0, node 0, has no address 'n1'"
}

@test "strangers of another host that crowd the port keep no agent out" {
  hand n0 DDP_MUNGE_SOCKET="$munge" -- "${meet[@]}" sh -c "$facts"
  eventually 30 listens 01004E0A
  timeout 100 "$cluster" on n3 python3 -c '
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
connections = []
while True:
    connections.append(socket.create_connection(("n0", 29411)))
    if len(connections) == 1000:
        print(flush=True)
    if len(connections) > 2000:
        del connections[:1000]' >"$shared/crowd" 2>&1 3>&- &
  hands[crowd]=$!
  eventually 60 test -s "$shared/crowd"
  hand n1 DDP_MUNGE_SOCKET="$munge" -- "${meet[@]}" sh -c "$facts"
  finishes 0 n0 n1
  expect_world
}
