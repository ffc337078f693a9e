#!/usr/bin/env bats
# Systems that lack what libddp would use: kernels and filters without some system calls, a /proc that hides other users'
# processes, no PMIx or one of another release.

load ../support/ddprun_jobs

setup() {
  ddprun_jobs_setup
  cd "$BATS_TEST_TMPDIR"
  root=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
  bin=${DDPRUN%/*}
}

without() { "$root/tests/support/without_calls.py" "$@"; }
expect_all() { [ "$(grep -cF -- "$2" <<<"$output")" -eq "$1" ] || { echo "not $1 lines with '$2': $output"; return 1; }; }

@test "without memfd_create, pidfd_open, close_range and openat2: ranks run over TCP, and each end is noticed" {
  printf '#!/bin/sh\nwhile [ $# -gt 1 ]; do shift; done\nexec sh -c "$1"\n' >ssh
  chmod +x ssh
  for refusal in EPERM ENOSYS; do
    calls=($refusal memfd_create,pidfd_open,close_range,openat2)
    DDP_LOG_LEVEL=info run -0 without "${calls[@]}" "$DDPRUN" --nproc-per-node 2 "$bin/rank_program" collectives
    expect_all 2 DONE
    [[ $output == *"forbids memfd_create"* ]] || { echo "$output"; return 1; }
    run -3 without "${calls[@]}" "$DDPRUN" --nproc-per-node 3 --failure-grace 0 sh -c '[ $RANK != 1 ] || exit 3; exec sleep 500'
    expect_all 1 "2 other ranks were ended by ddprun"
    run -0 without "${calls[@]}" "$DDPRUN" --ssh-command "$PWD/ssh" -H a,b --max-restarts 1 sh -c 'exit $((1 - TORCHELASTIC_RESTART_COUNT))'
    run -1 without "${calls[@]}" "$DDPRUN" --ssh-command 'sh -c "exit 5"' -H a true
    expect_all 1 "ended with exit code 5"
  done
}

@test "a /proc that hides other users' processes (hidepid=2)" {
  [ "$(id -u)" = 0 ] || skip "needs root, to be another user"
  others_can_run "$DDPRUN" || skip "another user cannot run $DDPRUN"
  unshare --mount --pid --fork true 2>/dev/null || skip "namespaces are not permitted"
  open=$(mktemp -d /tmp/ddprun-hidepid-XXXXXX)  # TMPDIR may be closed to other users
  chmod 777 "$open"
  other=(setpriv --reuid=65534 --regid=65534 --clear-groups env -C "$open" -u XDG_CONFIG_HOME -u XDG_STATE_HOME HOME="$open" TMPDIR="$open")
  hidden() { unshare --mount --pid --fork sh -c 'mount -t proc -o hidepid=2 proc /proc && "$@"' sh "${other[@]}" "$@"; }
  run hidden ls -d /proc/1
  [ "$status" -ne 0 ]
  run -0 hidden "$DDPRUN" --nproc-per-node 2 "$bin/rank_program" collectives
  expect_all 2 DONE
  # Also the rank's child in a session of its own is found, and ended.
  run -3 hidden "$DDPRUN" --nproc-per-node 2 --failure-grace 0 sh -c 'setsid sleep 531 & [ $RANK != 1 ] || exit 3; exec sleep 532'
  expect_all 1 "1 other rank was ended by ddprun"
  run -1 pgrep -f 'sleep 53[12]'
  rm -r "$open"
}

@test "no PMIx, or one of another release, whose functions differ: a line says so" {
  unshare --mount true 2>/dev/null || skip "namespaces are not permitted"
  without_pmix() {
    unshare --mount sh -c 'for file in $(ldconfig -p | sed -n "s/.*libpmix\.so\.2 .*=> //p"); do mount --bind /dev/null "$(realpath "$file")"; done; exec "$@"' sh "$@"
  }
  run -1 without_pmix "$DDPRUN" --nproc-per-node 2 sh -c 'echo "RANK $RANK"'
  [ "${#lines[@]}" = 1 ]
  [[ $output == "ddprun: opening PMIx's library: the process has loaded none, and the loader says: "*"; install PMIx 4.2 or newer on this node"* ]]
  LD_LIBRARY_PATH=$bin/../lib/other_pmix run -1 "$DDPRUN" --nproc-per-node 2 sh -c 'echo "RANK $RANK"'
  [ "${#lines[@]}" = 1 ]
  [[ $output == "ddprun: opening PMIx's library: "*"/other_pmix/libpmix.so.2 (OtherPMIx 9) has no PMIx_Finalize,"*"; libddp needs PMIx 4.2 or newer"* ]]
}
