#!/usr/bin/env bats
# Signals to ddprun: which reach the ranks, which end the job, and which stop and continue it.

load ../support/ddprun_jobs

@test "SIGTERM, SIGINT, SIGHUP and SIGQUIT reach the ranks and end the job with 128 + number" {
  for signal in TERM:143 INT:130 HUP:129 QUIT:131; do
    name=${signal%:*}
    rm -f "$NOTES"/*
    start --nproc-per-node 2 sh -c \
      "trap 'echo got >\"\$NOTES/got.\$RANK\"; exit 0' $name; echo \$\$ >\"\$NOTES/pid.\$RANK\"; while :; do sleep 0.05; done"
    eventually 20 noted 2
    kill "-$name" "$launcher"
    finish
    echo "$name: $status: $output"
    [ "$status" -eq "${signal#*:}" ]
    [ -e "$NOTES/got.0" ] && [ -e "$NOTES/got.1" ]
    [[ $output == *"ended by SIG$name"* ]]
  done
}

@test "a second SIGINT kills at once" {
  start --nproc-per-node 2 --shutdown-timeout 1000 sh -c \
    'trap "" INT TERM; echo $$$$ >"$NOTES/pid.$RANK"; while :; do sleep 100; done'
  eventually 20 noted 2
  kill -INT "$launcher"
  sleep 0.3
  kill -0 "$launcher"  # one SIGINT does not end what ignores it
  SECONDS=0
  kill -INT "$launcher"
  finish
  [ "$status" -eq 130 ]
  [ "$SECONDS" -lt 60 ]
  all_gone
}

@test "SIGUSR1 and SIGUSR2 reach the ranks, and the job goes on" {
  start --nproc-per-node 2 sh -c \
    'trap "touch \$NOTES/usr1.\$RANK" USR1; trap "touch \$NOTES/usr2.\$RANK" USR2; echo $$$$ >"$NOTES/pid.$RANK"
     while ! [ -e "$NOTES/usr1.$RANK" ] || ! [ -e "$NOTES/usr2.$RANK" ]; do sleep 0.05; done; exit 0'
  eventually 20 noted 2
  kill -USR1 "$launcher"
  kill -USR2 "$launcher"
  finish
  echo "$output"
  [ "$status" -eq 0 ]
  [ -e "$NOTES/usr1.0" ] && [ -e "$NOTES/usr2.1" ]
}

@test "under nohup, a hangup ends nothing" {
  nohup "$DDPRUN" --nproc-per-node 2 sh -c \
    'echo $$$$ >"$NOTES/pid.$RANK"; while ! [ -e "$NOTES/go" ]; do sleep 0.05; done' >/dev/null 2>&1 3>&- &
  launcher=$!
  eventually 20 noted 2
  kill -HUP "$launcher" "$(cat "$NOTES/pid.0")"
  sleep 0.2
  touch "$NOTES/go"
  ended "$launcher"
  [ "$status" -eq 0 ]
}

@test "--forward-signals: the job goes on; --signals-to-handle: these end it" {
  start --nproc-per-node 2 --forward-signals SIGUSR1,SIGCONT sh -c \
    'trap "touch \$NOTES/usr1.\$RANK" USR1; trap "touch \$NOTES/cont.\$RANK" CONT; echo $$$$ >"$NOTES/pid.$RANK"
     while ! [ -e "$NOTES/usr1.$RANK" ] || ! [ -e "$NOTES/cont.$RANK" ]; do sleep 0.05; done'
  eventually 20 noted 2
  kill -USR1 "$launcher"
  kill -CONT "$launcher"
  finish
  echo "$output"
  [ "$status" -eq 0 ]
  [ -e "$NOTES/usr1.0" ] && [ -e "$NOTES/cont.1" ]

  rm "$NOTES"/*
  start --signals-to-handle SIGTERM,SIGUSR2 sh -c \
    'trap "touch \$NOTES/usr2; exit 0" USR2; echo $$$$ >"$NOTES/pid.0"; while :; do sleep 0.05; done'
  eventually 20 noted 1
  kill -USR2 "$launcher"
  finish
  [ "$status" -eq 140 ]
  [ -e "$NOTES/usr2" ]

  # A signal that is in no list has its default action: it ends ddprun, and the ranks with it.
  rm "$NOTES"/*
  start --signals-to-handle SIGTERM sh -c 'trap "" HUP; echo $$$$ >"$NOTES/pid.0"; while :; do sleep 0.05; done'
  eventually 20 noted 1
  kill -HUP "$launcher"
  finish
  [ "$status" -eq 129 ]
  eventually 20 all_gone
  rejects 2 "SIGUSR1 is in --signals-to-handle and in --forward-signals" --signals-to-handle SIGUSR1 --forward-signals SIGUSR1 true
  rejects 2 "'SIGFOO' is not a signal" --forward-signals SIGFOO true
  rejects 2 "'SIGKILL' cannot be forwarded" --forward-signals SIGKILL true
}

# state PID STATES: whether the process is in one of them, by the letters of proc(5).
state() { [[ $(sed 's/.*) \(.\).*/\1/' "/proc/$1/stat") == ["$2"] ]]; }
# D: stopped while a shell's child had not become `sleep` yet, for which vfork() waits.
all_stopped() {
  local note
  for note in "$NOTES"/pid.*; do state "$(cat "$note")" TD || return 1; done
}

@test "Ctrl-Z stops the ranks, all below them, and ddprun; fg continues all" {
  start --nproc-per-node 2 --failure-grace 0 sh -c 'echo $$$$ >"$NOTES/pid.$RANK"
    setsid sh -c "echo \$\$ >\"$NOTES/pid.below$RANK\"; while ! [ -e \"$NOTES/go\" ]; do sleep 0.05; done" & wait
    exit $((RANK * 5))'
  eventually 20 noted 4
  for round in 1 2; do
    kill -TSTP "$launcher"
    eventually 20 state "$launcher" T
    eventually 20 all_stopped
    touch "$NOTES/go"
    sleep 0.3
    all_stopped
    [ $round -eq 2 ] || rm "$NOTES/go"
    kill -CONT "$launcher"
    [ $round -eq 2 ] || eventually 20 state "$(cat "$NOTES/pid.0")" SR
  done
  finish
  echo "$output"
  [ "$status" -eq 5 ]
  [[ $output != *stopped* ]]
}

@test "a signal that came after Ctrl-Z ends the job once it goes on" {
  start sh -c 'echo $$$$ >"$NOTES/pid.0"; while :; do sleep 0.1; done'
  eventually 20 noted 1
  kill -TSTP "$launcher"
  eventually 20 all_stopped
  kill -TERM "$launcher"
  kill -CONT "$launcher"
  finish
  [ "$status" -eq 143 ]
  all_gone
}

@test "a ddprun that is stopped and goes on has missed nothing" {
  start --nproc-per-node 2 sh -c 'echo $$$$ >"$NOTES/pid.$RANK"; while ! [ -e "$NOTES/go" ]; do sleep 0.02; done; exit $((RANK * 7))'
  eventually 20 noted 2
  kill -STOP "$launcher"
  touch "$NOTES/go"
  eventually 20 all_gone
  kill -CONT "$launcher"
  finish
  [ "$status" -eq 7 ]
  # A signal that came meanwhile is not lost either.
  rm "$NOTES"/*
  start sh -c 'echo $$$$ >"$NOTES/pid.0"; while :; do sleep 0.1; done'
  eventually 20 noted 1
  kill -STOP "$launcher"
  kill -TERM "$launcher"
  sleep 0.2
  run -1 all_gone
  kill -CONT "$launcher"
  finish
  [ "$status" -eq 143 ]
  all_gone
}

@test "SIGKILL to ddprun leaves no rank" {
  export TMPDIR=$BATS_TEST_TMPDIR  # nobody can remove the server's folder then
  start --nproc-per-node 4 sh -c 'trap "" TERM; echo $$$$ >"$NOTES/pid.$RANK"; while :; do sleep 1; done'
  eventually 20 noted 4
  run -1 all_gone
  kill -KILL "$launcher"
  eventually 20 all_gone
}
