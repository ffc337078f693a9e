#!/usr/bin/env bats
# What strangers at the port where ddpruns meet can do, and what ddprun says of a port that is another's.

load ddprun_agents_fixture

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

@test "a stranger who holds the port is not followed: one line says that the port is taken" {
  XDG_CONFIG_HOME=$BATS_TEST_TMPDIR/stranger start_agent stranger --nnodes 2 "${meet[@]}" true
  eventually 20 listening
  run -1 "$DDPRUN" --nnodes 2 "${meet[@]}" true
  echo "$output"
  [ "${#lines[@]}" -eq 1 ]
  [[ $output == *"another process of this host listens at port $port: choose another port"* ]]
}

@test "the endpoint's own address is the only one that is listened at" {
  start_agent a -v --nnodes 2 --rdzv-backend c10d --rdzv-endpoint "127.0.0.9:$port" true
  eventually 20 agent_said a "waiting for the other nodes at 127.0.0.9:$port"
  run -1 stranger 'connect()'
  [[ $output == *ConnectionRefusedError* ]]
}

@test "a port that belongs to something else is not a coordinator" {
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
  [[ $output == *"it is not a coordinator"* ]]
}
