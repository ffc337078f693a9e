#!/usr/bin/env bats
# ddprun by host list, where a script stands for ssh: it runs what it gets on this host, or fails as ssh would. The real
# thing is in tests/cluster/ssh.bats.

load ../support/ddprun_jobs

setup() {
  ddprun_jobs_setup
  cd "$BATS_TEST_TMPDIR"
  mkdir home
  cat >ssh <<'SSH'
#!/bin/bash
printf '%s\n' "$*" >>"$(dirname "$0")/calls"
host=${*: -2:1} command=${*: -1}
case $host in
  down) echo "ssh: connect to host down port 22: No route to host" >&2; exit 255 ;;
  asks) printf '%s\r\n' "*** Welcome ***" "me@asks: Permission denied (publickey,password)." >&2; exit 255 ;;
  bare) echo "bash: line 1: exec: $command: not found" >&2; exit 127 ;;
  old) exec sh -c "$command" < <(sed -u '1s/ [^ ]* / 0.0.1 /') ;;
esac
exec env -i HOME="$(dirname "$0")/home" LANG=C sh -c "$command"
SSH
  chmod +x ssh
}

by_hosts() { "$DDPRUN" --ssh-command "$PWD/ssh" "$@"; }

@test "hosts start in the order of the list, with their numbers of ranks" {
  run by_hosts -H a:2,b:1 sh -c 'echo "$RANK/$WORLD_SIZE $GROUP_RANK $LOCAL_RANK"'
  [ "$status" -eq 0 ] || { echo "$output"; return 1; }
  [ "$(sort <<<"$output")" = $'0/3 0 0\n1/3 0 1\n2/3 1 0' ]
  printf 'b slots=1\n# a is off\n' >hosts
  run by_hosts --hostfile hosts --ssh-port 2222 sh -c 'echo "$RANK/$WORLD_SIZE"'
  [ "$output" = 0/1 ]
  [[ $(tail -n 1 calls) == *"BatchMode=yes"*"-p 2222 b exec '"*"' --agent-from-stdin" ]]
  [ "$(sort -u calls | wc -l)" -eq 3 ]
}

@test "the environment and folder are the caller's, home and the like the host's; no secret is left" {
  mkdir 'a folder'
  cd 'a folder'
  SETTING=$'two\nlines' SLURM_JOB_ID=7 TMPDIR=/tmp run "$DDPRUN" -H a,b --ssh-command "bash '../ssh'" \
    sh -c 'echo "$(printenv SETTING | wc -l) $PWD $HOME ${SLURM_JOB_ID-none} ${DDPRUN_AGENT-none} $(readlink /proc/self/fd/0)"' </dev/null
  [ "$status" -eq 0 ] || { echo "$output"; return 1; }
  [ "$(grep -cx "2 $BATS_TEST_TMPDIR/a folder ../home none none /dev/null" <<<"$output")" -eq 2 ] || { echo "$output"; return 1; }
}

@test "a host that cannot be used is one line, and no rank starts" {
  rejects 1 "starting ddprun on down: $PWD/ssh ended with exit code 255: ssh: connect to host down port 22: No route" \
    --ssh-command "$PWD/ssh" -H a,down touch started
  rejects 1 "me@asks: Permission denied (publickey,password); ssh must log in without a password" \
    --ssh-command "$PWD/ssh" -H a,asks touch started
  rejects 1 "not found; install the same libddp on all hosts" --ssh-command "$PWD/ssh" -H a,bare touch started
  rejects 1 "the frontend is version 0.0.1, but ddprun on" --ssh-command "$PWD/ssh" -H a,old touch started
  rejects 127 "no folder of PATH has it" --ssh-command no-such-ssh -H a,b touch started
  [ ! -e started ]
}

@test "this host needs no ssh" {
  run "$DDPRUN" --ssh-command /no/such -H localhost:2 sh -c 'echo "$RANK/$WORLD_SIZE"'
  [ "$(sort <<<"$output")" = $'0/2\n1/2' ] || { echo "$output"; return 1; }
  run "$DDPRUN" --ssh-command /no/such -H "localhost:1,127.0.0.2:2,$(hostname):1" sh -c 'echo "$RANK/$WORLD_SIZE"'
  [ "$(sort <<<"$output")" = $'0/4\n1/4\n2/4\n3/4' ] || { echo "$output"; return 1; }
}

@test "a failed rank's exit code is the job's; standard error comes through" {
  run by_hosts -H a,b sh -c 'echo "rank $RANK says" >&2; exit $((RANK * 3))'
  [ "$status" -eq 3 ]
  [[ $output == *"rank 1 says"*"rank      : 1"*"exitcode  : 3"* ]] || { echo "$output"; return 1; }
}

@test "SIGKILL to ddprun leaves no rank; nor does SIGTERM before all have joined" {
  start --ssh-command "$PWD/ssh" -H a,b sh -c 'echo $$$$ >"$NOTES/pid.$RANK"; exec sleep 1000'
  eventually 60 noted 2
  kill -KILL "$launcher"
  eventually 60 all_gone
  finish
  start --ssh-command "$PWD/ssh" -H a,b --shutdown-timeout 2 sh -c 'echo $$$$ >"$NOTES/pid.$RANK"; exec sleep 1000'
  eventually 60 noted 2
  kill -TERM "$launcher"
  finish
  [ "$status" -eq 143 ]
  eventually 60 all_gone
}

@test "other launchers' options get a pointer" {
  rejects 2 "it is --ssh-port here" -p 22 true
  rejects 2 "it is -H (--host) or --hostfile here" -machinefile hosts true
}

@test "standard input goes to rank 0, whether its host needs ssh or not, and --stdin none keeps it" {
  local reads='echo "$RANK $(wc -c) $(readlink /proc/self/fd/0 | cut -d: -f1)"' hosts
  for hosts in a:2,b:1 localhost:2,b:1; do
    run by_hosts -H $hosts sh -c "$reads" < <(head -c 300000 /dev/zero)
    [ "$status" -eq 0 ] && [ "$(sort <<<"$output")" = $'0 300000 pipe\n1 0 /dev/null\n2 0 /dev/null' ] ||
      { echo "$output"; return 1; }
  done
  run by_hosts -H a:1,b:1 --stdin none sh -c "$reads" < <(echo text)
  [ "$(sort <<<"$output")" = $'0 0 /dev/null\n1 0 /dev/null' ] || { echo "$output"; return 1; }
  rejects 2 "cannot all read one standard input" --stdin all -H a,b true
}

@test "what rank 0 does not read of standard input stays: a loop over a list runs each line" {
  printf 'run %s\n' 1 2 3 4 >list
  while read -r line; do by_hosts -H a:1,b:1 sh -c "echo \$RANK $line"; done <list >out.file 2>&1
  [ "$(grep "^[01] run" out.file | sort)" = "$(printf '%s\n' '0 run '{1..4} '1 run '{1..4})" ] || { cat out.file; return 1; }
  cat list | while read -r line; do by_hosts -H a:1,b:1 sh -c "echo \$RANK $line"; done >out.pipe 2>&1
  [ "$(grep "^[01] run" out.pipe | sort)" = "$(grep "^[01] run" out.file | sort)" ] || { cat out.pipe; return 1; }
  # Other lines warn of name servers that do not answer. Rank 0 reads one line; the next run begins behind it.
  for _ in 1 2; do by_hosts -H a:1,b:1 sh -c '[ $RANK != 0 ] || { read -r line; echo "got $line"; }'; done <list >out.read 2>&1
  [ "$(grep ^got out.read)" = $'got run 1\ngot run 2' ] || { cat out.read; return 1; }
}

@test "one host under several names and addresses is one host" {
  local name other
  name=$(hostname)
  other=$(tr '[:lower:][:upper:]' '[:upper:][:lower:]' <<<"$name")
  run "$DDPRUN" --ssh-command /no/such -H "$other:2" sh -c 'echo "$RANK/$WORLD_SIZE $GROUP_WORLD_SIZE"'
  [ "$(sort <<<"$output")" = $'0/2 1\n1/2 1' ] || { echo "$output"; return 1; }
  run "$DDPRUN" --ssh-command /no/such -H "LOCALHOST:1,127.0.0.2:1,$other:1" sh -c 'echo "$LOCAL_RANK/$LOCAL_WORLD_SIZE"'
  [ "$(sort <<<"$output")" = $'0/3\n1/3\n2/3' ] || { echo "$output"; return 1; }
  run by_hosts -H "a:1,A:1" sh -c 'echo "$LOCAL_RANK/$LOCAL_WORLD_SIZE"'
  [ "$(sort <<<"$output")" = $'0/2\n1/2' ] || { echo "$output"; return 1; }
  run "$DDPRUN" --ssh-command /no/such -H "localhost,$name" sh -c 'echo "rank $RANK"'
  [ "$status" -eq 0 ] && [[ $output == *"'$name' is 'localhost'"* ]] && [ "$(grep -c '^rank' <<<"$output")" -eq 1 ] ||
    { echo "$output"; return 1; }
}

@test "a rank 0 that reads nothing, or not all, holds up no job by host list" {
  run by_hosts -H a:1,b:1 true < <(yes)
  [ "$status" -eq 0 ] && [ -z "$output" ] || { echo "$output"; return 1; }
  run by_hosts -H a:1,b:1 sh -c '[ $RANK != 0 ] || { read -r line; echo "$line"; }' < <(yes)
  [ "$status" -eq 0 ] && [ "$output" = y ] || { echo "$output"; return 1; }
}
