#!/usr/bin/env bats
# Another version beside a job that runs, installed as pip does it: files are removed, and others get their names. And the next
# version's programs and library beside these: no job has both. Where versions are compared is tested beside each comparison:
# agents (coordinator_joining_test), ranks (group_backends_test), srun's helper (spank_faults.bats), an allocation that joins
# (job_file_test).

load ../support/ddprun_jobs

setup() {
  ddprun_jobs_setup
  cd "$BATS_TEST_TMPDIR"
  mkdir installed
  cp "$DDPRUN" installed
  cat >ssh <<'SSH'
#!/bin/bash
exec sh -c "${*: -1}"
SSH
  chmod +x ssh
  root=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
  bin=${DDPRUN%/*}
  own=$(sed -n 's/.*DDP_VERSION_STRING "\(.*\)"/\1/p' "$root/libddp/include/ddp/version.hpp")
  next=${own%?}$(((${own: -1} + 1) % 10))
}

# next_version FILE: a folder with the next version of a file of the build.
next_version() {
  mkdir -p next
  "$root/tests/support/other_version.py" "$bin/$1" "next/${1##*/}" "$own" "$next" &&
    echo "$PWD/next"
}

# upgrade: what is installed is another version from now on, which runs nothing.
upgrade() {
  for file in installed/*; do
    rm "$file"
    printf '#!/bin/sh\necho "the other version of %s was started" >&2\nexit 99\n' "$file" >"$file"
    chmod +x "$file"
  done
}

@test "an upgrade under a running job: its ranks end, and are restarted, by the version that began" {
  cat >program <<'PROGRAM'
#!/bin/bash
touch "started.$RANK.$TORCHELASTIC_RESTART_COUNT"
[ "$TORCHELASTIC_RESTART_COUNT" = 0 ] || { echo "again $RANK"; exit 0; }
until [ -e upgraded ]; do sleep 0.05; done
exit 1
PROGRAM
  chmod +x program
  "installed/ddprun" --ssh-command "$PWD/ssh" -H a:1,b:1 --max-restarts 1 ./program >out 2>&1 &
  local job=$!
  eventually 60 test -e started.0.0 -a -e started.1.0
  upgrade
  touch upgraded
  wait $job || { cat out; return 1; }
  [ "$(grep -c '^again' out)" -eq 2 ] || { cat out; return 1; }
  ! grep -q "other version" out || { cat out; return 1; }
}

@test "an agent of the next version by ssh: one line, and no rank starts" {
  local folder
  folder=$(next_version ddprun)
  [ "$("$folder/ddprun" --version)" = "ddprun (libddp) $next" ]
  printf '#!/bin/bash\nhost=${*: -2:1} command=${*: -1}\n[ $host != b ] || command=${command//%s/%s}\nexec sh -c "$command"\n' \
    "${PWD//\//\\/}\\/installed" "${folder//\//\\/}" >ssh
  run -1 "installed/ddprun" --ssh-command "$PWD/ssh" -H a,b touch started
  [[ $output == *"the frontend is version $own, but ddprun on"*"is version $next; install the same version on all hosts"* ]] || { echo "$output"; return 1; }
  [ ! -e started ]
}

@test "a ddprun of the next version at the same host and port is refused, and the job waits for the right one" {
  local folder job
  folder=$(next_version ddprun)
  job=(--nnodes 2 --master-port "$(free_port)" sh -c 'echo "RANK $RANK"')
  start_agent a --node-rank 0 "${job[@]}"
  DDPRUN=$folder/ddprun start_agent b --node-rank 1 "${job[@]}"
  finish_agent b
  [ "$status" -ne 0 ]
  [[ $output == *"is version $next, but the coordinator's is $own: install the same on all nodes"* ]]
  start_agent c --node-rank 1 "${job[@]}"
  for name in a c; do finish_agent $name && [ "$status" -eq 0 ]; done
  [[ $(cat agent.a) == *"refused the agent on "*": ddprun on "*" is version $next, but the coordinator's is $own"* ]]
  grep -hx 'RANK [01]' agent.[ac] | sort | diff - <(printf 'RANK %s\n' 0 1)
}

@test "a rank with the next version's library: all ranks name both versions" {
  local folder
  folder=$(next_version ../lib/libddp.so.0.1)
  run "$DDPRUN" --nproc-per-node 2 bash -c '[ $RANK = 0 ] || export LD_PRELOAD=$0/libddp.so.0.1; exec "$1" collectives' "$folder" "$bin/rank_program"
  [ "$status" -ne 0 ]
  [[ $output == *"rank 0: libddp $own; rank 1: libddp $next"*"install the same version on all nodes"* ]] || { echo "$output"; return 1; }
}
