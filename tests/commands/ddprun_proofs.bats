#!/usr/bin/env bats
# How ddpruns that meet at a host and port prove that they belong together: a secret, munge, a key file, or nothing.

load ddprun_agents_fixture

# refused WORDS ARGUMENTS...: an agent that comes to the waiting one is refused in one line; the other waits on.
refused() {
  local words=$1
  shift
  run -1 "$DDPRUN" --nnodes 2 "${meet[@]}" "$@" sh -c "$facts"
  echo "$output"
  [ "${#lines[@]}" -eq 1 ]
  [[ $output == "ddprun: connecting to the job's coordinator: "*":$port: "*$words* ]]
  kill -0 "${agents[a]}"
}

@test "DDP_RDZV_SECRET: who has another, or none, is refused alone" {
  export DDP_RDZV_SECRET=right
  start_agent a --nnodes 2 "${meet[@]}" sh -c "$facts"
  eventually 20 listening
  DDP_RDZV_SECRET=wrong refused "it does not accept this node's DDP_RDZV_SECRET"
  DDP_RDZV_SECRET='' refused "has DDP_RDZV_SECRET, which is not set on $(hostname)"
  completes
  [[ $(cat agent.a) == *"refused a connection from "*": it does not know the job's DDP_RDZV_SECRET"* ]]
}

@test "without secret and munge, ddpruns of one user know each other by a key file" {
  start_agent a --nnodes 2 "${meet[@]}" sh -c "$facts"
  eventually 20 listening
  [ "$(stat -c %a "$XDG_CONFIG_HOME/libddp/rendezvous.key")" = 600 ]
  XDG_CONFIG_HOME=$BATS_TEST_TMPDIR/other refused "it does not accept this node's key file '$BATS_TEST_TMPDIR/other/libddp/rendezvous.key'"
  DDP_RDZV_SECRET=x refused "DDP_RDZV_SECRET is set on $(hostname), but not for the coordinator's ddprun"
  completes
}

@test "without any proof, one line names the three; --rdzv-insecure does without, on all nodes or none" {
  touch "$XDG_CONFIG_HOME" # no folder can be made there
  rejects 1 "munged does not answer" --nnodes 2 "${meet[@]}" true
  [[ $output == *"DDP_RDZV_SECRET is not set"*"reading the key file '$XDG_CONFIG_HOME/libddp/rendezvous.key'"*ENOTDIR*--rdzv-insecure* ]]
  start_agent a --nnodes 2 "${meet[@]}" --rdzv-insecure sh -c "$facts"
  eventually 20 listening
  DDP_RDZV_SECRET=x refused "give --rdzv-insecure on all nodes, or on none"
  completes --rdzv-insecure
}

@test "a key file that others can read, and one of another user, are refused with the remedy" {
  mkdir -p "$XDG_CONFIG_HOME/libddp"
  key=$XDG_CONFIG_HOME/libddp/rendezvous.key
  head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$key"
  chmod 644 "$key"
  rejects 1 "others may use it: its mode is 0644" --nnodes 2 "${meet[@]}" true
  [[ $output == *"remove it, and ddprun makes it anew"* ]]
  [ "$(id -u)" = 0 ] || return 0
  chmod 600 "$key"
  chown 4711 "$key"
  rejects 1 "it belongs to user 4711, but this is user 0" --nnodes 2 "${meet[@]}" true
}

# start_munge NAME [SECONDS]: a munged, whose clock is wrong by so much; all have the same key.
start_munge() {
  local folder=$BATS_TEST_TMPDIR/munge.$1
  mkdir "$folder"
  [ -e munge.key ] || head -c 128 /dev/urandom | install -m 0600 /dev/stdin munge.key
  if [ -n "${2:-}" ]; then
    [ -e clock.so ] || ${CC:-cc} -shared -fPIC "$BATS_TEST_DIRNAME/../support/shifted_clock.c" -o clock.so -ldl
    local wrong=(SHIFTED_CLOCK_SECONDS="$2" LD_PRELOAD="$PWD/clock.so")
  fi
  env "${wrong[@]}" PATH="$PATH:/usr/sbin" munged --force --socket="$folder/socket" --key-file="$PWD/munge.key" \
    --pid-file="$folder/pid" --log-file="$folder/log" --seed-file="$folder/seed"
  agents[munge.$1]=$(cat "$folder/pid")
}

@test "munge proves the user; a munged that is dead, or whose clock is wrong, is named" {
  PATH=$PATH:/usr/sbin command -v munged >/dev/null || skip "needs munged"
  start_munge good
  start_munge late 3600
  start_munge early -3600
  socket() { echo "$BATS_TEST_TMPDIR/munge.$1/socket"; }
  export DDP_MUNGE_SOCKET
  DDP_MUNGE_SOCKET=$(socket good)
  # The second on this host would lead, too; as another node would, this one only joins.
  join=(--rdzv-conf is_host=0)
  start_agent a --nnodes 2 "${meet[@]}" sh -c "$facts"
  eventually 20 listening
  [ ! -e "$XDG_CONFIG_HOME" ]
  DDP_MUNGE_SOCKET=$(socket none) refused "uses munge, but on $(hostname): munged does not answer" "${join[@]}"
  [[ $output == *"start munged on $(hostname), or set DDP_RDZV_SECRET"* ]]
  for clock in late early; do
    DDP_MUNGE_SOCKET=$(socket $clock) refused "it does not accept this node's munge credential" "${join[@]}"
    [[ $output == *"same user, munge.key and time"* ]]
    sleep 1.1 # the other says so once a second
  done
  kill -KILL "${agents[munge.late]}"
  DDP_MUNGE_SOCKET=$(socket late) refused "ECONNREFUSED" "${join[@]}" || [[ $output == *"munged does not answer"* ]]
  completes
  [[ $(cat agent.a) == *"Rewound credential (made at "*"EMUNGE_CRED_REWOUND (16)"*"Expired credential (made at "*"EMUNGE_CRED_EXPIRED (15)"* ]]
}
