# For bats files that run ddprun on this host: where the program is, jobs and agents in the background, and what must be
# gone afterwards. A shell among the ranks has its process id from $$$$, since ddprun makes $ of $$ in arguments.

bats_require_minimum_version 1.5.0
load ../support/outer_settings
load ../support/eventually

# Sets DDPRUN. DDP_BIN_DIR names the folder with the program; default: build/dev/bin.
ddprun_jobs_setup_file() {
  export DDPRUN=${DDP_BIN_DIR:-$(cd "$BATS_TEST_DIRNAME/../.." && pwd)/build/dev/bin}/ddprun
  [ -x "$DDPRUN" ] || { echo "no ddprun found; set DDP_BIN_DIR" >&2; return 1; }
}

ddprun_jobs_setup() {
  forget_outer_settings
  export NOTES=$BATS_TEST_TMPDIR/notes  # where workers leave their process ids
  mkdir "$NOTES"
  # ddpruns that meet prove themselves by a key file, not by this host's munged; the user's own stays as it is.
  export XDG_CONFIG_HOME=$BATS_TEST_TMPDIR/config DDP_MUNGE_SOCKET=$BATS_TEST_TMPDIR/no-munge
  export XDG_STATE_HOME=$BATS_TEST_TMPDIR/state # files of running jobs
  launcher=
  declare -gA agents=()
}

setup_file() { ddprun_jobs_setup_file; }
setup() {
  ddprun_jobs_setup
  cd "$BATS_TEST_TMPDIR"
}
teardown() { ddprun_jobs_teardown; }

ddprun_jobs_teardown() {
  local pid note name
  if [ -z "${BATS_TEST_COMPLETED:-}" ]; then # bats shows it where the test failed
    for name in "${!agents[@]}"; do sed "s/^/agent $name: /" "$BATS_TEST_TMPDIR/agent.$name"; done
  fi
  for pid in $launcher "${agents[@]}"; do kill -KILL "$pid" 2>/dev/null || true; done
  for note in "$NOTES"/pid.*; do
    if [ -e "$note" ]; then kill -KILL "$(cat "$note")" 2>/dev/null || true; fi
  done
}

gone() { [ ! -d "/proc/$1" ] || grep -q '^State:[[:space:]]*Z' "/proc/$1/status"; }
all_gone() {
  local note pid
  for note in "$NOTES"/pid.*; do
    pid=$(cat "$note")
    # empty: the rank was killed while it wrote its note
    [ -z "$pid" ] || gone "$pid" || return 1
  done
}
noted() { [ "$(find "$NOTES" -name 'pid.*' -size +0 | wc -l)" -eq "$1" ]; }

# ended PID: waits for a child of the test, and sets status; what does not end in two minutes is killed.
ended() {
  local deadline=$((SECONDS + 120))
  until gone "$1"; do
    [ $SECONDS -lt $deadline ] || { kill -KILL "$1"; echo "process $1 did not end" >&2; return 1; }
    sleep 0.05
  done
  status=0
  wait "$1" || status=$?
}

# start ARGUMENTS...: ddprun in the background, its streams in files. A SIGHUP ends it also where the tests run under nohup.
start() {
  env --default-signal=HUP "$DDPRUN" "$@" >"$BATS_TEST_TMPDIR/out" 2>"$BATS_TEST_TMPDIR/err" 3>&- &
  launcher=$!
}
# finish: waits for it; like run, sets status and output.
finish() {
  ended "$launcher" || { cat "$BATS_TEST_TMPDIR/err"; return 1; }
  launcher=
  output=$(cat "$BATS_TEST_TMPDIR/err")
}

# start_agent NAME ARGUMENTS...: one of several ddpruns; both its streams go to the file agent.NAME.
start_agent() {
  local name=$1
  shift
  "$DDPRUN" "$@" >"$BATS_TEST_TMPDIR/agent.$name" 2>&1 3>&- &
  agents[$name]=$!
}
# finish_agent NAME: like run, sets status and output.
finish_agent() {
  ended "${agents[$1]}" || { cat "$BATS_TEST_TMPDIR/agent.$1"; return 1; }
  unset "agents[$1]"
  output=$(cat "$BATS_TEST_TMPDIR/agent.$1")
  echo "agent $1: exit status $status"
  echo "$output"
}
agent_said() { grep -qF -- "$2" "$BATS_TEST_TMPDIR/agent.$1"; }

# A port of this host that nobody listens on.
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'; }

# The command line must give exactly one line on standard error that begins with "ddprun: " and has the given words.
# rejects STATUS WORDS ARGUMENTS...
rejects() {
  local code=$1 words=$2
  shift 2
  run "-$code" "$DDPRUN" "$@"
  echo "$output"
  [ "${#lines[@]}" -eq 1 ]
  [[ ${lines[0]} == "ddprun: "* ]]
  [[ ${lines[0]} == *"$words"* ]]
}
