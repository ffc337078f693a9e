#!/usr/bin/env bats
# Another version beside a job that runs, installed as pip does it: files are removed, and others get their names. Where
# versions are compared is tested beside each comparison: agents (coordinator_joining_test, ddprun_hosts.bats), ranks
# (group_backends_test), srun's helper (spank_faults.bats), an allocation that joins (job_file_test).

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
