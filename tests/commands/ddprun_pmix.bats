#!/usr/bin/env bats
# ddprun's PMIx server: values and facts for ranks, aborts, fences that break, who may connect, and its folder.

load ../support/ddprun_jobs

setup_file() {
  ddprun_jobs_setup_file
  export HELLO=$BATS_FILE_TMPDIR/pmix_hello
  # shellcheck disable=SC2046
  ${CC:-cc} $(pkg-config --cflags pmix) "$BATS_TEST_DIRNAME/../support/pmix_hello.c" -o "$HELLO" $(pkg-config --libs pmix)
}

@test "PMIx: 8 ranks exchange values, and the facts are right" {
  run "$DDPRUN" --nproc-per-node 8 "$HELLO"
  echo "$output"
  [ "$status" -eq 0 ]
  [ "$(grep -c 'is well$' <<<"$output")" -eq 8 ]
  # The client does look: a wrong size is noticed.
  run "$DDPRUN" --nproc-per-node 2 env WORLD_SIZE=3 "$HELLO"
  [ "$status" -eq 1 ]
  [[ $output == *"job size differs from WORLD_SIZE"* ]]
}

# libpmix believes the user that a client names.
@test "PMIx: the server listens on loopback alone, and who does not know the namespace's random part cannot connect" {
  run "$DDPRUN" --nproc-per-node 1 python3 -c '
import os, re, subprocess, sys
address, port = re.search(r"tcp4://([0-9.]+):([0-9]+)", os.environ["PMIX_SERVER_URI4"]).groups()
own = open("/proc/net/tcp").read() + open("/proc/net/tcp6").read()
places = re.findall(r"([0-9A-F]+):%04X 0+:0000 0A" % int(port), own)
assert address == "127.0.0.1" and places == ["0100007F"], (address, places)
name = os.environ["PMIX_NAMESPACE"]
host, secret = re.fullmatch(r"(ddp\..*\.[0-9]+)\.([0-9a-f]{32})\.0", name).groups()
guess = "%s.%032x.0" % (host, int(secret, 16) ^ 1)
environment = {key: value.replace(name, guess) for key, value in os.environ.items()}
stranger = subprocess.run([sys.argv[1]], env=environment, timeout=60, capture_output=True, text=True)
assert stranger.returncode != 0 and "is well" not in stranger.stdout, stranger
sys.exit(subprocess.run([sys.argv[1]], timeout=60).returncode)' "$HELLO"
  echo "$output"
  [ "$status" -eq 0 ]
  [[ $output == *"is well"* ]]
}

# With all that a rank knows. The first says nothing and stays; the second says all that a rank would.
@test "PMIx: another user of the host cannot connect to the server, nor keep ranks from it" {
  [ "$EUID" -eq 0 ] || skip "not root, who can become another user"
  run "$DDPRUN" --nproc-per-node 1 python3 -c '
import os, re, socket, subprocess, sys
port = int(re.search(r"tcp4://127.0.0.1:([0-9]+)", os.environ["PMIX_SERVER_URI4"])[1])
program = os.open(sys.argv[1], os.O_RDONLY)  # in a folder of root alone

def as_other_user(act):
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            act()
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def listen():
    connection = socket.socket()
    connection.settimeout(20)
    connection.connect(("127.0.0.1", port))
    os._exit(1 if connection.recv(1) else 0)

assert as_other_user(listen) == 0, "the server did not close the connection"
# The default module reads files of the rank, which the other user could not.
hash_only = {**os.environ, "PMIX_GDS_MODULE": "hash"}
assert as_other_user(lambda: os.execve(program, ["pmix_hello"], hash_only)) == 1, "the client was let in"
sys.exit(subprocess.run([sys.argv[1]], timeout=60).returncode)' "$HELLO"
  echo "$output"
  [ "$status" -eq 0 ]
  [[ $output == *"UNREACH"*"is well"* ]]
  [ "$(grep -c 'is well' <<<"$output")" -eq 1 ]
}

# One that says nothing, one that stops in the middle: before the ranks connect, while they do, and afterwards.
@test "PMIx: connections of the job's own user that say nothing hold nobody up" {
  run timeout -s KILL 60 "$DDPRUN" --nproc-per-node 2 python3 -c '
import os, re, socket, struct, subprocess, sys
port = int(re.search(r"tcp4://127.0.0.1:([0-9]+)", os.environ["PMIX_SERVER_URI4"])[1])

def hold(count):
    held = [socket.create_connection(("127.0.0.1", port), 20) for _ in range(count)]
    held[0].sendall(struct.pack("=iIII", -1, 2**32 - 1, 500, 0) + b"x" * 100)
    return held

before = hold(20)
ranks = subprocess.Popen([sys.argv[1]])
during = hold(20)
status = ranks.wait()
after = hold(20)
sys.exit(status)' "$HELLO"
  echo "$output"
  [ "$status" -eq 0 ]
  [ "$(grep -c 'is well$' <<<"$output")" -eq 2 ]
}

@test "PMIx: a server that hangs is named, and not only the rank that could not wait for it" {
  # shellcheck disable=SC2016
  DDP_INIT_TIMEOUT=4 start --nproc-per-node 2 sh -c \
    'echo $$$$ >"$NOTES/pid.$RANK"; until [ -e "$NOTES/go" ]; do sleep 0.05; done; exec "$1" world' sh \
    "$(dirname "$DDPRUN")/rank_program"
  eventually 20 noted 2
  attempt=$(ps -o ppid= -p "$(cat "$NOTES/pid.0")")
  mkfifo "$NOTES/held"
  # shellcheck disable=SC2086
  python3 "$BATS_TEST_DIRNAME/../support/hold_threads.py" $attempt libpmix.so <"$NOTES/held" >"$NOTES/holder" 3>&- &
  agents[holder]=$!
  exec 9>"$NOTES/held"
  eventually 20 test -s "$NOTES/holder"
  [[ $(cat "$NOTES/holder") == "held "[1-9]* ]] || skip "$(cat "$NOTES/holder")"
  touch "$NOTES/go"
  finish
  exec 9>&-
  echo "$output"
  [ "$status" -eq 4 ]
  [[ $output == *"Root Cause"*"  pmix      : ddprun's PMIx server on "*" has not answered for "*"not to blame"* ]]
  grep -q "ERROR.*code=timeout ranks=\[\] .*the PMIx server did not complete the connection" "$BATS_TEST_TMPDIR/out"
}

@test "PMIx: an outer server's variables do no harm" {
  PMIX_NAMESPACE=outer PMIX_RANK=5 PMIX_SERVER_URI4="outer.0;tcp4://127.0.0.1:1" \
    run "$DDPRUN" --nproc-per-node 2 "$HELLO"
  echo "$output"
  [ "$status" -eq 0 ]
}

@test "PMIx: without its library, ddprun says in one line what to install" {
  [ "$(id -u)" -eq 0 ] && unshare --mount true 2>/dev/null || skip "needs root, to hide the library"
  local library
  library=$(ldconfig -p | sed -n 's/.*libpmix\.so\.2 .*=> //p' | head -n 1)
  run -1 unshare --mount sh -c 'mount --bind /dev/null "$1" && shift && exec "$@"' sh "$(realpath "$library")" "$DDPRUN" --nproc-per-node 2 true
  echo "$output"
  [ "${#lines[@]}" -eq 1 ]
  [[ $output == "ddprun: opening PMIx's library: "*"libpmix.so.2"*"install PMIx"* ]]
}

@test "PMIx: PMIx_Abort ends the job with its status and says who called" {
  SECONDS=0
  run "$DDPRUN" --nproc-per-node 3 "$HELLO" abort
  echo "$output"
  [ "$status" -eq 7 ]
  [ "$SECONDS" -lt 60 ]
  [[ $output == *"rank      : 1 "*"PMIx_Abort(7): rank 1 gives up"* ]]
}

@test "PMIx: ranks that wait in a fence for a rank that failed are ended, and that rank is the root cause" {
  run "$DDPRUN" --nproc-per-node 3 --failure-grace 0 sh -c \
    'if [ "$RANK" = 2 ]; then exit 11; fi; exec "$HELLO" abort'
  echo "$output"
  [ "$status" -eq 11 ]
  [[ $output == *"Root Cause"*"rank      : 2 "* ]]
}

@test "PMIx: ranks that die while they connect do not hold up the end" {
  for _ in $(seq 20); do
    run timeout -s KILL 20 "$DDPRUN" --nproc-per-node 3 --failure-grace 0 sh -c \
      'if [ "$RANK" = 2 ]; then exit 11; fi; exec "$HELLO" abort'
    echo "$output"
    [ "$status" -eq 11 ]
  done
}

@test "PMIx: two jobs at once do not meet" {
  "$DDPRUN" --nproc-per-node 4 "$HELLO" >"$BATS_TEST_TMPDIR/one" 3>&- &
  launcher=$!
  run "$DDPRUN" --nproc-per-node 4 "$HELLO"
  [ "$status" -eq 0 ]
  ended "$launcher"
  [ "$status" -eq 0 ]
  [ "$(grep -c 'is well$' "$BATS_TEST_TMPDIR/one")" -eq 4 ]
  [ "$(cut -d' ' -f4 <<<"${lines[0]}")" != "$(head -n1 "$BATS_TEST_TMPDIR/one" | cut -d' ' -f4)" ]
}

@test "64 ranks" {
  run "$DDPRUN" --nproc-per-node 64 /bin/true
  echo "$output"
  [ "$status" -eq 0 ]
  run "$DDPRUN" --nproc-per-node 64 "$HELLO"
  [ "$(grep -c 'is well$' <<<"$output")" -eq 64 ]
}

@test "the server's folder is private, and removed after success, failure and signal" {
  export TMPDIR=$BATS_TEST_TMPDIR/scratch
  mkdir "$TMPDIR"
  run "$DDPRUN" sh -c 'stat -c "%a" "$TMPDIR"/ddprun.*'
  [ "$output" = 700 ]
  [ -z "$(ls -A "$TMPDIR")" ]
  run "$DDPRUN" false
  [ "$status" -eq 1 ]
  [ -z "$(ls -A "$TMPDIR")" ]
  start sh -c 'echo $$$$ >"$NOTES/pid.0"; exec sleep 100'
  eventually 20 noted 1
  [ -n "$(ls -A "$TMPDIR")" ]
  kill -TERM "$launcher"
  finish
  [ "$status" -eq 143 ]
  [ -z "$(ls -A "$TMPDIR")" ]
}

@test "the folders of a job that was killed are removed by the next one, and those in use are not" {
  export TMPDIR=$BATS_TEST_TMPDIR/scratch
  mkdir "$TMPDIR"
  start sh -c 'echo $$$$ >"$NOTES/pid.0"; exec sleep 100'
  eventually 20 noted 1
  folder=$(echo "$TMPDIR"/ddprun.*)
  run "$DDPRUN" true
  [ "$(echo "$TMPDIR"/*)" = "$folder" ]
  attempt=$(ps -o ppid= -p "$(cat "$NOTES/pid.0")")
  kill -STOP "$launcher" # or it would clean up
  # shellcheck disable=SC2086
  kill -KILL $attempt "$launcher"
  eventually 20 all_gone
  launcher=
  [ -d "$folder" ]
  run "$DDPRUN" true
  [ -z "$(ls -A "$TMPDIR")" ]
}
