#!/usr/bin/env bats
# The texts that ddprun prints about itself: help, manual page and completions for shells.

load ../support/ddprun_jobs

# Long options that --help names.
options() { "$DDPRUN" --help | grep -oE '^ {2,6}(-[a-zA-Z], )?--[a-z-]+' | grep -oE -- '--[a-z-]+'; }

@test "the completion is valid bash" {
  "$DDPRUN" --generate-bash-completion >completion
  bash -n completion
  run bash -c 'source completion; complete -p ddprun'
  [ "$output" = "complete -F _ddprun ddprun" ]
}

@test "bash completes options, values, files and programs" {
  "$DDPRUN" --generate-bash-completion >completion
  mkdir folder
  touch train.py train.txt
  # complete_words WORD...: what <Tab> offers after the last word, which may be empty.
  complete_words() {
    bash --norc -c 'source completion
      COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
      _ddprun ddprun "${@: -1}" "${@: -2:1}" 2>/dev/null
      printf "%s\n" "${COMPREPLY[@]}"' - "$@" | sort
  }
  [ "$(complete_words ddprun --nno)" = "--nnodes" ]
  [ "$(complete_words ddprun --nproc-per-node 2 --report)" = $'--report-bindings\n--report-json' ]
  [ "$(complete_words ddprun --log-format '')" = $'json\ntext' ]
  [ "$(complete_words ddprun --bind n)" = $'none\nnuma' ]
  [ "$(complete_words ddprun --rdzv_backend = c)" = c10d ]  # bash takes the '=' for a word
  [ "$(complete_words ddprun --nproc-per-node = '')" = $'auto\ncpu\ngpu' ]
  [ "$(complete_words ddprun --log-dir f)" = folder ]
  [[ $(complete_words ddprun --nproc-per-node 2 train) == *train.py* ]]
  [[ $(complete_words ddprun --dump-env train) == *train.py* ]] # the program: its value follows '=' only
  [[ $(complete_words ddprun --dump-env = train) == *train.txt* ]]
  [ -z "$(complete_words ddprun train.py --nno)" ]  # the script's own
  # All options of --help, and nothing else.
  complete_words ddprun -- | grep '^--' >offered
  options | sort >known
  diff known offered
}

@test "completion works in an interactive bash" {
  type script >/dev/null || skip "needs script, of util-linux"
  "$DDPRUN" --generate-bash-completion >completion
  printf 'source completion\nPS1="$ "\n' >rc
  # The keys that a user presses: a prefix, Tab, and a command that shows what became of it.
  printf 'ddprun() { echo "got: $*"; }\nddprun --log-for\tjs\t train\nexit\n' >keys
  run timeout 20 env TERM=dumb SHELL=/bin/sh script -qec "bash --noprofile --rcfile rc -i" /dev/null <keys
  echo "$output"
  [[ $output == *"got: --log-format json train"* ]]
}

@test "zsh completes options, values, files and programs" {
  type zsh script >/dev/null || skip "needs zsh, and script of util-linux"
  "$DDPRUN" --generate-zsh-completion >_ddprun
  zsh -f -c '_arguments() { print -rl -- "$@"; }; source ./_ddprun' |
    sed -nE 's/^(\*|\([^)]*\))?(--[a-z-]+).*/\2/p' | sort | diff <(options | sort) -
  mkdir folder
  touch train.py
  printf '%s\n' 'fpath=($PWD $fpath); autoload -Uz compinit; compinit -u -D; PS1="$ "' \
    'ddprun() { print -r "got: $*" }' >.zshrc
  printf 'ddprun --log-for\tjs\t --log-dir fo\t -v --dump-env tra\t --nno\t\nexit\n' >keys
  run timeout 60 env TERM=dumb ZDOTDIR="$PWD" SHELL=/bin/sh script -qec "zsh -d -i" /dev/null <keys
  echo "$output"
  [[ $output == *"got: --log-format=json --log-dir folder -v --dump-env train.py --nno"* ]]
}

@test "fish completes options, values, files and programs" {
  type fish >/dev/null || skip "needs fish"
  "$DDPRUN" --generate-fish-completion >ddprun.fish
  mkdir folder
  touch train.py
  offered() { HOME=$PWD fish --no-config -c 'source ddprun.fish; complete -C "$argv[1]"' -- "$1" | cut -f 1 | sort; }
  offered 'ddprun --' | diff <(options | sort) -
  offered 'ddprun --nno' | grep -qx -- --nnodes # fish 4 also offers --nproc-per-node
  [ "$(offered 'ddprun --log-format ')" = $'json\ntext' ]
  [ "$(offered 'ddprun --bind=n')" = $'--bind=none\n--bind=numa' ]
  [ "$(offered 'ddprun --log-dir f')" = folder/ ]
  [[ $(offered 'ddprun --nproc-per-node 2 --dump-env tra') == train.py* ]]
  [[ $(offered 'ddprun --nproc_per_node 2 py') == *python3* ]]
  [ -z "$(offered 'ddprun train.py --nno')" ]
}

@test "the manual page has all options and no mistakes" {
  "$DDPRUN" --generate-man >ddprun.1
  for option in $(options); do
    grep -qF -- "${option//-/\\-}" ddprun.1 || { echo "$option is missing"; return 1; }
  done
  for section in NAME SYNOPSIS DESCRIPTION "EXIT STATUS" ENVIRONMENT; do
    grep -qE "^\.SH \"?$section\"?$" ddprun.1 || { echo "$section is missing"; return 1; }
  done
  type groff >/dev/null || skip "needs groff"
  run groff -man -Tutf8 -ww -z ddprun.1
  echo "$output"
  [ "$status" -eq 0 ]
  [ -z "$output" ]
  if type mandoc >/dev/null 2>&1; then mandoc -T lint -W error ddprun.1; fi
  # The check does find mistakes.
  printf '.nosuchmacro\n' >>ddprun.1
  run groff -man -Tutf8 -ww -z ddprun.1
  [ -n "$output" ]
}

@test "help fits a terminal and goes to standard output" {
  "$DDPRUN" --help >help 2>err
  [ ! -s err ]
  [ "$(wc -L <help)" -le 100 ]
  run "$DDPRUN" -h
  [ "$output" = "$(cat help)" ]
  # Also behind other options, whatever they are, but not behind the program.
  run "$DDPRUN" --nproc-per-node 0 --help
  [ "$status" -eq 0 ]
  run "$DDPRUN" sh -c 'echo "$1"' - --help
  [ "$output" = --help ]
}

# slow_reader COMMAND...: its standard output is a small pipe that somebody else has made non-blocking, and that is read
# only when nothing more fits. Prints what comes, and ends with the command's status.
slow_reader() {
  timeout -k 5 120 python3 - "$@" <<'END'
import fcntl, os, subprocess, sys, time
reading, writing = os.pipe()
room = fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
os.set_blocking(writing, False)
program = subprocess.Popen(sys.argv[1:], stdout=writing)
os.close(writing)
size, held = bytearray(4), 0
while program.poll() is None:
    fcntl.ioctl(reading, 0x541B, size)  # FIONREAD
    now = int.from_bytes(size, sys.byteorder)
    if now > 0 and now == held:
        break
    held = now
    time.sleep(1.2)  # longer than ddprun's processes take to show each other life
while chunk := os.read(reading, 1024):
    sys.stdout.buffer.write(chunk)
sys.stdout.flush()
sys.exit(program.wait())
END
}

@test "a non-blocking standard output cuts nothing off" {
  "$DDPRUN" --help >whole
  [ "$(wc -c <whole)" -gt 8192 ]
  slow_reader "$DDPRUN" --help >got
  cmp whole got
  slow_reader "$DDPRUN" --dry-run --nproc-per-node 16 true >got
  [ "$(wc -c <got)" -gt 8192 ]
  [ "$(grep -c '^  LOCAL_RANK=' got)" -eq 16 ]
  # Ranks differ in values only, so that the last one shows whether all is there.
  names() { awk -v rank="$1" '/^rank / { now = $2 } now == rank { sub(/=.*/, ""); if (/^  /) print $1 }' got; }
  [ "$(names 0)" = "$(names 15)" ]
}
