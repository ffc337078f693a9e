#!/usr/bin/env bats
# The manual pages and completions that ddp-info and ddp-selftest print say what --help says.

bats_require_minimum_version 1.5.0

setup() {
  root=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
  bin=${DDP_BIN_DIR:-$root/build/dev/bin}
  cd "$BATS_TEST_TMPDIR"
  for program in ddp-info ddp-selftest; do
    "$bin/$program" --generate-man >$program.1
    for shell in bash zsh fish; do "$bin/$program" --generate-$shell-completion >$program.$shell; done
  done
}

# Long options at the beginning of a line of the help.
options() { "$@" --help | grep -oE '^ +(-[a-z], ?)?--[a-z-]+' | grep -oE -- '--[a-z-]+' | sort; }

# documented: the options that a part of a page describes, each as one entry.
documented() { sed -E 's/\\f[BIR]//g; s/\\//g' | grep -A 1 '^\.TP' | grep -E '^(-[a-z], )?--' | grep -oE -- '--[a-z-]+' | sort; }

# section NAME: of ddp-info's page, up to the next one.
section() { awk -v name="$1" '/^\.S[HS] /{ inside = $2 == name } inside' ddp-info.1; }

# offered FUNCTION WORD...: what <Tab> offers after the last word, which may be empty.
offered() {
  bash --norc -c 'source "$1.bash"; shift; function=$1; shift
    COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(old)
    "$function" "$1" "${@: -1}" "${@: -2:1}" 2>/dev/null
    printf "%s\n" "${COMPREPLY[@]}"' - "$2" "$@" | sort
}

@test "manual pages describe the options of --help, and no others" {
  for command in doctor env flight resize status topo trace; do
    options "$bin/ddp-info" $command >known
    [ -s known ]
    section $command | documented | diff known -
  done
  options "$bin/ddp-info" >known
  section OPTIONS | documented | diff known -
  options "$bin/ddp-selftest" >known
  [ "$(wc -l <known)" -ge 4 ]
  documented <ddp-selftest.1 | diff known -
}

@test "commands of ddp-info are in its page, and completed" {
  "$bin/ddp-info" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p' >commands
  [ "$(wc -l <commands)" -ge 2 ]
  offered _ddp_info ddp-info '' | grep -v '^-' | diff <(sort commands) -
  while read -r command; do [ $command = version ] || grep -qx "\.SS $command" ddp-info.1; done <commands
}

@test "ddp-info doctor --rules prints a table of rules for each family" {
  run -0 "$bin/ddp-info" doctor --rules
  [[ $output == "# "*$'\n## '*"| \`shm-size\` | error |"* ]]
}

@test "ddp-info doctor: status 3 and one line where it cannot examine" {
  for arguments in --explain "--explain nothing" "--fail-on all" n0; do
    run -3 "$bin/ddp-info" doctor $arguments
    [[ ${#lines[@]} -eq 1 && $output == "ddp-info: reading "* ]]
  done
  run -0 "$bin/ddp-info" doctor --explain shm-size
  [[ $output == "shm-size (error): "*"Fix: "* ]]
}

@test "ddp-info doctor in an allocation: its findings have their statuses, failures of srun are 3" {
  mkdir path
  # srun, which leaves what it was told and ends as the test wants
  printf '#!/bin/bash\nprintf "%%s\\n" "$@" >srun.words\nexit "$SRUN_STATUS"\n' >path/srun
  chmod +x path/srun
  unset "${!SLURM@}" "${!PMI@}" RANK WORLD_SIZE
  export SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=2
  for each in 10:0 11:1 12:2 13:3 0:3 1:3 2:3 127:3 137:3; do
    SRUN_STATUS=${each%:*} PATH=$PWD/path:$PATH run -${each#*:} "$bin/ddp-info" doctor --rule shm-size
    [ "${each#*:}" -lt 3 ] || [[ $output == "ddp-info: examining all nodes of the allocation with srun: srun "* ]]
  done
  grep -qx -- --overlap srun.words
  grep -qE -- '^--immediate=[0-9]+$' srun.words # a full allocation must not hang
  [ "$(tail -n 4 srun.words)" = $'doctor\n--under-srun\n--rule\nshm-size' ]
  PATH=$PWD/none run -3 "$bin/ddp-info" doctor
  [[ $output == *"srun cannot be run"* ]]
}

@test "manual pages have no mistakes" {
  type groff >/dev/null || skip "needs groff"
  for page in *.1; do
    run groff -man -Tutf8 -ww -z "$page"
    echo "$output"
    [ "$status" -eq 0 ] && [ -z "$output" ]
  done
}

@test "bash completes commands, options, values and files" {
  touch node.xml
  mkdir dumps
  [ "$(offered _ddp_info ddp-info to)" = topo ]
  [ "$(offered _ddp_info ddp-info topo --ex)" = $'--explain\n--export' ]
  [ "$(offered _ddp_info ddp-info topo --bind n)" = $'none\nnuma' ]
  [ "$(offered _ddp_info ddp-info topo --bind = so)" = socket ] # bash takes the '=' for a word
  [ "$(offered _ddp_info ddp-info topo --gpus = '')" = $'all\nnone\none' ]
  [ "$(offered _ddp_info ddp-info topo --gpus =)" = $'all\nnone\none' ]
  [ "$(offered _ddp_info ddp-info topo --xml no)" = node.xml ]
  [ -z "$(offered _ddp_info ddp-info topo --nproc '')" ]
  [ -z "$(offered _ddp_info ddp-info version '')" ]
  [ "$(offered _ddp_info ddp-info doctor --fail-on e)" = error ]
  # Words that an option takes are those of its help.
  for each in "doctor --fail-on" "topo --bind" "topo --gpus"; do
    offered _ddp_info ddp-info $each '' >words
    [ -s words ]
    while read -r word; do "$bin/ddp-info" ${each% *} --help | grep -A 3 -e "${each#* }" | grep -qw -e "$word"; done <words
  done
  [ "$(offered _ddp_info ddp-info doctor --rule shm-)" = $'shm-private\nshm-size' ]
  [ "$(offered _ddp_info ddp-info doctor --s)" = --skip ]
  offered _ddp_info ddp-info doctor -- | diff <(options "$bin/ddp-info" doctor) -
  offered _ddp_info ddp-info status -- | diff <(options "$bin/ddp-info" status) -
  [ "$(offered _ddp_info ddp-info en)" = env ]
  [ "$(offered _ddp_info ddp-info env --nccl no)" = node.xml ]
  [ "$(offered _ddp_info ddp-info env --diff no)" = node.xml ]
  [ -z "$(offered _ddp_info ddp-info env --pid '')" ]
  offered _ddp_info ddp-info env -- | diff <(options "$bin/ddp-info" env) -
  [ "$(offered _ddp_info ddp-info fl)" = flight ]
  [ "$(offered _ddp_info ddp-info flight du)" = dumps ]
  [ "$(offered _ddp_info ddp-info flight dumps --j)" = --json ]
  offered _ddp_info ddp-info flight -- | diff <(options "$bin/ddp-info" flight) -
  offered _ddp_info ddp-info trace -- | diff <(options "$bin/ddp-info" trace) -
  offered _ddp_info ddp-info topo -- | diff <(options "$bin/ddp-info" topo) -
  offered _ddp_selftest ddp-selftest -- | diff <(options "$bin/ddp-selftest") -
  [ -z "$(offered _ddp_selftest ddp-selftest --timeout '')" ]
}

@test "zsh completes commands, options, values and files" {
  type zsh >/dev/null || skip "needs zsh"
  # specifications WORD...: what _arguments gets for options and words, behind these words.
  specifications() {
    zsh -f -c '_arguments() { print -rl -- "$@"; }; words=("$@" ""); CURRENT=$#words; source ./$1.zsh' - "$@"
  }
  long() { sed -nE 's/^(\*|\([^)]*\))?(--[a-z-]+).*/\2/p' | sort; }
  for command in doctor env flight status topo trace; do
    specifications ddp-info $command | long | diff <(options "$bin/ddp-info" $command) -
  done
  specifications ddp-selftest | long | diff <(options "$bin/ddp-selftest") -
  [[ $(specifications ddp-info) == *"1:command:(doctor "*" topo "*" version)" ]]
  [[ $(specifications ddp-info topo) == *"--bind=["*"]:"*":(numa "*"--xml=["*":_files"* ]]
  [[ $(specifications ddp-info flight) == *"*:file:_files -/" ]]
  [ -z "$(specifications ddp-info version)" ]
}

@test "fish completes commands, options, values and files" {
  type fish >/dev/null || skip "needs fish"
  touch node.xml
  mkdir dumps
  fish_offers() { HOME=$PWD fish --no-config -c 'source $argv[1].fish; complete -C "$argv[2]"' -- "${1%% *}" "$1" | cut -f 1 | sort; }
  [ "$(fish_offers 'ddp-info to')" = topo ]
  for command in doctor env flight status topo trace; do
    fish_offers "ddp-info $command --" | diff <(options "$bin/ddp-info" $command) -
  done
  fish_offers 'ddp-selftest --' | diff <(options "$bin/ddp-selftest") -
  [ "$(fish_offers 'ddp-info topo --bind n')" = $'none\nnuma' ]
  [ "$(fish_offers 'ddp-info topo --xml no')" = node.xml ]
  [ "$(fish_offers 'ddp-info flight du')" = dumps/ ]
  [ -z "$(fish_offers 'ddp-info version ')" ]
}
