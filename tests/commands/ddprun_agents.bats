#!/usr/bin/env bats
# Several ddpruns that meet at a host and port, all on this host: who gets which ranks, who is refused, what strangers at
# the port can do, and what the end of one means for the others.

load ../support/ddprun_jobs

setup() {
  ddprun_jobs_setup
  cd "$BATS_TEST_TMPDIR"
  port=$(free_port)
  meet=(--rdzv-backend c10d --rdzv-endpoint "localhost:$port" --rdzv-id meeting)
}

facts='echo "$ROLE_NAME: $GROUP_RANK/$GROUP_WORLD_SIZE $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $ROLE_RANK/$ROLE_WORLD_SIZE"'

# A rank that notes its process id and waits for the file go.
waiting='echo $$$$ >"$NOTES/pid.$RANK"; while ! [ -e "$NOTES/go" ]; do sleep 0.02; done'

listening() { grep -Eqi ":$(printf '%04X' "$port") 0+:0000 0A" /proc/net/tcp /proc/net/tcp6; }

# stranger PYTHON...: talks to the port; connect() gives a connection to it.
stranger() {
  python3 -c "
import os, socket, struct, time
def connect():
    return socket.create_connection(('127.0.0.1', $port), 10)
def answer(connection):
    connection.settimeout(20)
    data = b''
    try:
        while chunk := connection.recv(4096):
            data += chunk
    except ConnectionResetError:
        pass
    return data
$1"
}

@test "with several nodes the prefix is the rank, each node writes to its own console, and --dry-run likewise" {
  start_agent a --nnodes 2 "${meet[@]}" -t 1 --log-dir /dev/null --nproc-per-node 2 sh -c 'echo "this is $RANK"'
  start_agent b --nnodes 2 "${meet[@]}" -t 1 --log-dir /dev/null --nproc-per-node 2 sh -c 'echo "this is $RANK"'
  finish_agent a
  [ "$status" -eq 0 ]
  [ "$(sort <<<"$output")" = $'[0]:this is 0\n[1]:this is 1' ] || [ "$(sort <<<"$output")" = $'[2]:this is 2\n[3]:this is 3' ]
  finish_agent b
  [ "$status" -eq 0 ]
  start_agent a --nnodes 2 "${meet[@]}" --dry-run true
  start_agent b --nnodes 2 "${meet[@]}" --dry-run true
  finish_agent a
  [ "$(grep -c '^rank [01] on ' <<<"$output")" -eq 1 ]
  finish_agent b
  [ "$(grep -c '^rank [01] on ' <<<"$output")" -eq 1 ]
}

@test "two agents with different numbers of ranks and roles form one world" {
  start_agent a --nnodes 2 "${meet[@]}" --nproc-per-node 1 --role a sh -c "$facts"
  start_agent b --nnodes 2 "${meet[@]}" --nproc-per-node 3 --role b sh -c "$facts"
  finish_agent a
  [ "$status" -eq 0 ]
  all=$output$'\n'
  finish_agent b
  [ "$status" -eq 0 ]
  all=$(sort <<<"$all$output")
  # Either may have been first; ranks of an agent are consecutive.
  [ "$all" = "a: 0/2 0/4 0/1 0/1
b: 1/2 1/4 0/3 0/3
b: 1/2 2/4 1/3 1/3
b: 1/2 3/4 2/3 2/3" ] || [ "$all" = "a: 1/2 3/4 0/1 0/1
b: 0/2 0/4 0/3 0/3
b: 0/2 1/4 1/3 1/3
b: 0/2 2/4 2/3 2/3" ]
}

@test "static: nodes have the numbers that they were given, whoever comes first" {
  static=(--nnodes 3 --master-addr 127.0.0.1 --master-port "$port")
  for node in 2 1 0; do start_agent $node "${static[@]}" --node-rank $node sh -c "$facts"; done
  for node in 0 1 2; do
    finish_agent $node
    [ "$status" -eq 0 ]
    [ "$output" = "default: $node/3 $node/3 0/1 $node/3" ]
  done
}

@test "two agents with the same node rank: the job fails at once and says why" {
  static=(--nnodes 3 --master-port "$port")
  start_agent 0 "${static[@]}" --node-rank 0 true
  start_agent 1 "${static[@]}" --node-rank 1 true
  start_agent again "${static[@]}" --node-rank 1 true
  finish_agent 0
  [ "$status" -eq 1 ]
  [[ $output == *"both say that they are node 1: give each its own --node-rank; 2 of 3 nodes have joined"* ]]
  [[ $output != *"node      : -1"* ]]
  finish_agent 1
  [ "$status" -eq 1 ]
  finish_agent again
  [ "$status" -eq 1 ]
}

@test "a second node 0 says that the port is taken" {
  start_agent 0 --nnodes 2 --master-port "$port" --node-rank 0 true
  eventually 20 listening
  rejects 1 "Address already in use" --nnodes 2 --master-port "$port" --node-rank 0 true
  start_agent 1 --nnodes 2 --master-port "$port" --node-rank 1 true
  finish_agent 0
  [ "$status" -eq 0 ]
}

@test "an agent of another run is refused; the job goes on" {
  start_agent a --nnodes 2 "${meet[@]}" sh -c "$facts"
  eventually 20 listening
  run -1 "$DDPRUN" --nnodes 2 "${meet[@]}" --rdzv-id other sh -c "$facts"
  echo "$output"
  [ "${#lines[@]}" -eq 1 ]
  [[ $output == "ddprun: "*"belongs to run 'other', but this is run 'meeting': give all agents the same --rdzv-id" ]]
  start_agent b --nnodes 2 "${meet[@]}" sh -c "$facts"
  finish_agent a
  [ "$status" -eq 0 ]
  [[ $output == *"default: 0/2 "* ]]
  finish_agent b
  [ "$status" -eq 0 ]
}

@test "another program on one node: the job fails at once" {
  start_agent a --nnodes 2 "${meet[@]}" true
  start_agent b --nnodes 2 "${meet[@]}" false
  finish_agent a
  [ "$status" -eq 1 ]
  one=$output
  finish_agent b
  [ "$status" -eq 1 ]
  [[ $one$output == *"start the same program on all nodes (or give --role)"* ]]
}

@test "a node that cannot take part is the root cause, also where the others know the plan before it has said why" {
  start_agent a -v --nnodes 3 "${meet[@]}" true
  eventually 20 listening
  PATH=/nonexistent start_agent b --nnodes 3 "${meet[@]}" true
  eventually 20 agent_said a "has joined with 0 ranks"
  kill -STOP "${agents[b]}"
  start_agent c --nnodes 3 "${meet[@]}" true
  joined() { [ "$(grep -c "has joined with 1 rank" agent.a)" -eq 2 ]; }
  eventually 20 joined
  sleep 0.5  # time for a and c to do what is wrong
  kill -CONT "${agents[b]}"
  for name in a b c; do
    finish_agent $name
    [ "$status" -eq 127 ]
  done
  [[ $(cat agent.a) == *"Root Cause"*"(0 ranks)"*"'true'"* ]]
  [[ $(cat agent.a) != *"has 0 ranks"* ]]
}

@test "an agent that comes too late is refused; the job goes on" {
  start_agent a --nnodes 2 "${meet[@]}" sh -c "$waiting"
  start_agent b --nnodes 2 "${meet[@]}" sh -c "$waiting"
  eventually 20 noted 2
  run -1 "$DDPRUN" --nnodes 2 "${meet[@]}" sh -c "$waiting"
  echo "$output"
  [[ $output == *"run 'meeting' has already started; nodes cannot join a running job" ]]
  touch "$NOTES/go"
  finish_agent a
  [ "$status" -eq 0 ]
  finish_agent b
  [ "$status" -eq 0 ]
}

@test "with --nnodes MIN:MAX, the job starts at MAX at once, and else after the last call" {
  for name in a b c; do start_agent $name --nnodes 2:3 "${meet[@]}" --rdzv-conf last_call_timeout=60 sh -c "$facts"; done
  for name in a b c; do
    finish_agent $name
    [ "$status" -eq 0 ]
    [[ $output == "default: "?"/3 "?"/3 "* ]]
  done
  port=$(free_port)
  meet[3]=localhost:$port
  for name in a b; do start_agent $name --nnodes 2:3 "${meet[@]}" --rdzv-conf last_call_timeout=2 sh -c "$facts"; done
  sleep 1
  # Not yet: a third could still come.
  [ ! -s agent.a ] && [ ! -s agent.b ]
  for name in a b; do
    finish_agent $name
    [ "$status" -eq 0 ]
    [[ $output == "default: "?"/2 "?"/2 "* ]]
  done
}

@test "nodes that do not come are a failure that says how many did" {
  run -1 "$DDPRUN" --nnodes 3 "${meet[@]}" --rdzv-conf join_timeout=1 true
  echo "$output"
  [[ $output == *"not all nodes joined within 1 s; 1 of 3 nodes has joined: "* ]]
  run -1 "$DDPRUN" --nnodes 2 --master-port "$port" --node-rank 1 --rdzv-conf timeout=1 true
  echo "$output"
  [ "${#lines[@]}" -eq 1 ]
  [[ $output == "ddprun: connecting to the job's coordinator: "*":$port: "*"has the job's first node been started"* ]]
}

@test "a signal that is to be passed on does not end an agent that waits for its peer; one that ends jobs does" {
  static=(--nnodes 2 --master-port "$port")
  holds_usr1() { (($((0x$(sed -n 's/^SigBlk:\t//p' "/proc/$1/status"))) & 1 << 9)); }
  # Nothing of it reaches the ranks.
  job=(sh -c 'grep -q "^SigBlk:[^1-9a-f]*$" /proc/self/status')
  start_agent 1 "${static[@]}" --node-rank 1 "${job[@]}"
  eventually 20 holds_usr1 "${agents[1]}"
  kill -USR1 "${agents[1]}"
  start_agent 0 "${static[@]}" --node-rank 0 "${job[@]}"
  finish_agent 0
  [ "$status" -eq 0 ]
  finish_agent 1
  [ "$status" -eq 0 ]
  start_agent 1 "${static[@]}" --node-rank 1 "${job[@]}"
  eventually 20 holds_usr1 "${agents[1]}"
  kill -TERM "${agents[1]}"
  finish_agent 1
  [ "$status" -eq 143 ]
}

@test "the death of an agent ends the ranks of all, and the report names it" {
  start_agent a --nnodes 2 "${meet[@]}" --failure-grace 0.2 sh -c "$waiting"
  eventually 20 listening
  start_agent b --nnodes 2 "${meet[@]}" --failure-grace 0.2 sh -c "$waiting"
  eventually 20 noted 2
  lost=${agents[b]}
  kill -KILL "$lost"
  wait "$lost" || true
  finish_agent a
  [ "$status" -eq 1 ]
  [[ $output == *"the connection to ddprun's agent on $(hostname) (pid $lost) was lost"*"1 other rank was ended by ddprun"* ]]
  eventually 20 all_gone
}

@test "the death of the coordinator ends the ranks of all" {
  start_agent a --nnodes 2 "${meet[@]}" sh -c "$waiting"
  eventually 20 listening
  start_agent b --nnodes 2 "${meet[@]}" sh -c "$waiting"
  eventually 20 noted 2
  kill -KILL "${agents[a]}"
  wait "${agents[a]}" || true
  finish_agent b
  [ "$status" -eq 1 ]
  [[ $output == *"the connection to the coordinator at "*" was lost"*"ending the ranks of this node"* ]]
  eventually 20 all_gone
}

@test "after the death of the coordinator, what ranks have detached ends with ranks that had to be killed" {
  options=(--nnodes 2 "${meet[@]}" --shutdown-timeout 1)
  deaf='trap "" TERM; setsid sleep 1000 & echo $! >"$NOTES/pid.detached.$RANK"; '$waiting
  start_agent a "${options[@]}" sh -c "$deaf"
  eventually 20 listening
  start_agent b "${options[@]}" sh -c "$deaf"
  eventually 20 noted 4
  kill -KILL "${agents[a]}"
  wait "${agents[a]}" || true
  finish_agent b
  [ "$status" -eq 1 ]
  eventually 20 all_gone
}

@test "a rank's failure on one node ends the job with the same exit status on all" {
  start_agent a --nnodes 2 "${meet[@]}" --role good --failure-grace 0 sh -c "$waiting"
  start_agent b --nnodes 2 "${meet[@]}" --role bad --failure-grace 0 sh -c 'exit 85'
  finish_agent a
  [ "$status" -eq 85 ]
  finish_agent b
  [ "$status" -eq 85 ]
  [[ $(cat agent.a agent.b) == *"Root Cause"*"exitcode  : 85 "* ]]
  eventually 20 all_gone
}

@test "strangers at the port do not disturb the job" {
  start_agent a --nnodes 2 "${meet[@]}" sh -c "$facts"
  eventually 20 listening
  # A port scanner; random bytes; a web browser; an agent of a later version; a greeting without a proof.
  stranger 'for _ in range(50): connect().close()'
  stranger '
for _ in range(20):
    with connect() as c:
        c.sendall(os.urandom(2000))
        answer(c)'
  stranger '
with connect() as c:
    c.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    answer(c)'
  run stranger '
with connect() as c:
    c.sendall(b"ddpctl\r\n" + struct.pack(">I", 99) + os.urandom(32))
    print(answer(c)[:8])'
  [ "$output" = "b'ddpctl\\r\\n'" ]
  stranger '
with connect() as c:
    c.sendall(b"ddpctl\r\n" + struct.pack(">I", 1) + os.urandom(32) + os.urandom(32) + b"x" * 1000)
    answer(c)'
  kill -0 "${agents[a]}"
  # Connections that say nothing, or a byte from time to time, are open while the second agent comes.
  stranger '
idle = [connect() for _ in range(100)]
open("'"$NOTES"'/open", "w").close()
end = time.monotonic() + 20
while time.monotonic() < end and not os.path.exists("'"$NOTES"'/over"):
    for c, byte in zip(idle, b"ddpctl\r\n"):
        try:
            c.send(bytes([byte]))
        except OSError:
            pass
    time.sleep(0.1)' 3>&- &
  agents[slow]=$!
  eventually 20 test -e "$NOTES/open"
  start_agent b --nnodes 2 "${meet[@]}" sh -c "$facts"
  finish_agent b
  [ "$status" -eq 0 ]
  touch "$NOTES/over"
  finish_agent a
  [ "$status" -eq 0 ]
  [[ $output == *"default: "*"/2 "* ]]
  # It is told, but not once for each of them.
  [[ $output == *"refused a connection from 127.0.0.1:"* ]]
  [ "${#output}" -lt 5000 ]
  ended "${agents[slow]}"
  [ "$status" -eq 0 ]
}

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

# Ends the waiting agent a by the one that it waits for.
completes() {
  start_agent b --nnodes 2 "${meet[@]}" "$@" sh -c "$facts"
  for name in a b; do
    finish_agent $name
    [ "$status" -eq 0 ]
    [[ $output == *"default: "?"/2 "* ]]
  done
}

@test "strangers who crowd the port do not use up the job's descriptors" {
  printf '#!/bin/sh\nulimit -n 200\nexec "%s" "$@"\n' "$DDPRUN" >limited
  chmod +x limited
  DDPRUN=$PWD/limited start_agent a --nnodes 2 "${meet[@]}" sh -c "$facts"
  eventually 20 listening
  stranger '
crowd = [connect() for _ in range(600)]
open("'"$NOTES"'/open", "w").close()
end = time.monotonic() + 60
while time.monotonic() < end and not os.path.exists("'"$NOTES"'/over"):
    crowd = (crowd + [connect() for _ in range(10)])[10:]
    time.sleep(0.01)' 3>&- &
  agents[crowd]=$!
  eventually 20 test -e "$NOTES/open"
  completes
  touch "$NOTES/over"
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

@test "a stranger who holds the port is not followed: one line says that the port is taken" {
  XDG_CONFIG_HOME=$BATS_TEST_TMPDIR/stranger start_agent stranger --nnodes 2 "${meet[@]}" true
  eventually 20 listening
  run -1 "$DDPRUN" --nnodes 2 "${meet[@]}" true
  echo "$output"
  [ "${#lines[@]}" -eq 1 ]
  [[ $output == *"another process of this host listens at port $port: choose another port"* ]]
}

@test "node 0 with another host's address is told so" {
  rejects 1 "$(hostname), node 0, has no address '192.0.2.1'" --nnodes 2 --node-rank 0 --master-addr 192.0.2.1 true
  [[ $output == *"is_host=1"* ]]
}

@test "the endpoint's own address is the only one that is listened at" {
  start_agent a -v --nnodes 2 --rdzv-backend c10d --rdzv-endpoint "127.0.0.9:$port" true
  eventually 20 agent_said a "waiting for the other nodes at 127.0.0.9:$port"
  run -1 stranger 'connect()'
  [[ $output == *ConnectionRefusedError* ]]
}

@test "a port that belongs to something else is no coordinator" {
  python3 -c "
import socket
with socket.create_server(('127.0.0.1', $port)) as server:
    while True:
        connection, _ = server.accept()
        connection.sendall(b'SSH-2.0-OpenSSH_9.2\r\n' * 10)
        connection.close()" 3>&- &
  agents[server]=$!
  eventually 20 listening
  run -1 "$DDPRUN" --nnodes 2 --master-port "$port" --node-rank 1 true
  echo "$output"
  [ "${#lines[@]}" -eq 1 ]
  [[ $output == *"it is no coordinator"* ]]
}
