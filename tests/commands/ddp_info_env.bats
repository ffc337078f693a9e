#!/usr/bin/env bats
# `ddp-info env`: alone, under ddprun, of another process, against a library's own names; its files and their comparison.

bats_require_minimum_version 1.5.0

load ../support/outer_settings

setup_file() {
  root=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
  export ROOT=$root BIN=${DDP_BIN_DIR:-$root/build/dev/bin}
  export INFO=$BIN/ddp-info DDPRUN=$BIN/ddprun
  [ -x "$INFO" ] || { echo "no ddp-info found; set DDP_BIN_DIR" >&2; return 1; }
  export LIBRARY=$BATS_FILE_TMPDIR/libnccl.so.2
  cc -shared -fPIC -o "$LIBRARY" "$root/tests/unit/diagnostics/nccl_names.c"
}

setup() {
  forget_outer_settings
  unset VIRTUAL_ENV CONDA_PREFIX LD_PRELOAD LD_LIBRARY_PATH # where a library of NCCL may be
  export HOME=$BATS_TEST_TMPDIR
  cd "$BATS_TEST_TMPDIR"
}

# in_job N COMMAND: as each of N ranks, by a shell.
in_job() { "$DDPRUN" --nproc-per-node "$1" --no-python -- bash -c "$2"; }

# json EXPRESSION <DOCUMENT: what Python makes of it, with the document as d and its variables as v.
json() { python3 -c 'import json, sys; d = json.load(sys.stdin); v = {x["name"]: x["values"] for x in d["variables"]}; print(eval(sys.argv[1]))' "$1"; }

@test "a healthy environment has no finding" {
  NCCL_DEBUG=INFO UCX_TLS=rc NCCL_TESTS_DEVICE=0 run -0 --separate-stderr "$INFO" env --nccl "$LIBRARY"
  echo "$output"
  [[ ${lines[1]} == "nothing wrong found" ]]
  [[ ${lines[2]} == "NCCL: 2.18.3+cuda12.1, $LIBRARY (--nccl), reads 21 variables" ]]
  [[ $output == *"NCCL_DEBUG"*"INFO"*"environment"* ]]
}

@test "what is wrong is found, with how to fix it, and following that it is gone" {
  wrong=(NCCL_DEBG=INFO NCCL_IB_RETRY_CNT=15 NCCL_IB_DISABLE=true NCCL_RINGS=x NCCL_MAX_NCHANNELS=4 NCCL_TIMEOUT=60
    NCCL_CUMEM_HOST_ENABLE=1 NCCL_ASYNC_ERROR_HANDLING=1 DDP_BAKCEND=host)
  run -0 env "${wrong[@]}" "$INFO" env --nccl "$LIBRARY"
  echo "$output"
  [[ ${lines[1]} == "1 error, 8 warnings:" ]]
  [[ $output == *"unrecognized variable NCCL_DEBG; did you mean NCCL_DEBUG?"* ]]
  [[ $output == *"NCCL_IB_RETRY_CNT=15 is not in 0..7"* ]]
  [[ $output == *"NCCL_IB_DISABLE=true is read as 0"* ]]
  [[ $output == *"NCCL_RINGS was last read by NCCL 2.4.8; use NCCL_GRAPH_FILE"* ]]
  [[ $output == *"NCCL_MAX_NCHANNELS is deprecated; use NCCL_MAX_CTAS"* ]]
  [[ $output == *"no library reads NCCL_TIMEOUT"* ]]
  [[ $output == *"NCCL_CUMEM_HOST_ENABLE is not read by NCCL 2.18.3+cuda12.1: it came with 2.23.4"* ]]
  [[ $output == *"unrecognized variable DDP_BAKCEND; did you mean DDP_BACKEND?"* ]]
  run -0 env NCCL_DEBUG=INFO NCCL_IB_RETRY_CNT=7 NCCL_IB_DISABLE=1 TORCH_NCCL_ASYNC_ERROR_HANDLING=1 DDP_BACKEND=host \
    "$INFO" env --nccl "$LIBRARY"
  [[ ${lines[1]} == "nothing wrong found" ]]
}

@test "the library is found by LD_LIBRARY_PATH, and nothing loads it" {
  echo 'NCCL_ALGO=Ring' >.nccl.conf
  LD_LIBRARY_PATH=${LIBRARY%/*} NCCL_CONF_FILE=$PWD/.nccl.conf run -0 "$INFO" env
  echo "$output"
  [[ $output == *"NCCL: 2.18.3+cuda12.1, $LIBRARY (the loader's, by LD_LIBRARY_PATH), reads 21 variables"* ]]
  [[ $output == *"NCCL_ALGO"*"Ring"*"$PWD/.nccl.conf"* ]]
}

@test "env and doctor read the .nccl.conf that this NCCL reads: HOME's from 2.30.3 on, before that the password file's" {
  echo NCCL_SOCKET_IFNAME=nosuch >.nccl.conf
  for each in 2.30.2:0 2.30.3:2; do
    sed "s/2\.18\.3/${each%:*}/" "$ROOT/tests/unit/diagnostics/nccl_names.c" | cc -shared -fPIC -xc - -o "${each%:*}.so"
    DDP_NCCL_LIBRARY=$PWD/${each%:*}.so run -"${each#*:}" "$INFO" doctor --rule interface-missing
    DDP_NCCL_LIBRARY=$PWD/${each%:*}.so run -0 "$INFO" env
    [[ ${each#*:} = 0 || $output == *NCCL_SOCKET_IFNAME*nosuch* ]] || { echo "$output"; return 1; }
    [[ ${each#*:} = 2 || $output != *NCCL_SOCKET_IFNAME*nosuch* ]] || { echo "$output"; return 1; }
  done
}

@test "ranks are folded, and what must not differ is named with them" {
  run -0 in_job 4 'case $RANK in 2 | 3) export NCCL_ALGO=Tree;; *) export NCCL_ALGO=Ring;; esac; [ $RANK != 3 ] || export NCCL_DEBG=1
    exec "$INFO" env'
  echo "$output"
  [[ $output == *"4 ranks on 1 host: "*"1 error, 1 warning:"* ]]
  [[ $output == *"error env-differs: NCCL_ALGO must be equal on all ranks, but is 'Ring' on ranks 0, 1, 'Tree' on ranks 2, 3;"* ]]
  [[ $output == *"warning env-misspelt: unrecognized variable NCCL_DEBG; did you mean NCCL_DEBUG? (rank 3);"* ]]
  run -0 in_job 4 'exec "$INFO" env --json'
  [ "$(json 'len(d["findings"]), d["ranks"], [x["ranks"] for x in v["RANK"]], v["WORLD_SIZE"][0]["origin"], v["OMP_NUM_THREADS"][0]["origin"]' <<<"$output")" = \
    "(0, 4, ['0', '1', '2', '3'], 'ddprun', \"ddprun's placement\")" ]
}

@test "two dumps are compared" {
  NCCL_DEBUG=INFO UCX_TLS=rc "$INFO" env --json >a.json
  NCCL_DEBUG=WARN UCX_TLS=rc OMP_NUM_THREADS=4 "$INFO" env --json >b.json
  run -0 "$INFO" env --diff a.json b.json
  [ "$output" = $'- NCCL_DEBUG=INFO [environment]\n+ NCCL_DEBUG=WARN [environment]\n+ OMP_NUM_THREADS=4 [environment]' ]
  run -0 "$INFO" env --diff a.json a.json
  [ "$output" = "no differences" ]
  # Of a large job: a list of ranks is longer than what is shown of values.
  python3 -c 'import json; d = json.load(open("a.json")); r = ",".join(map(str, range(0, 4000, 2)))
d["hosts"] *= 4000
for v in d["variables"]: v["values"][0]["ranks"] = r
json.dump(d, open("long.json", "w"))'
  run -0 "$INFO" env --diff long.json long.json
  [ "$output" = "no differences" ]
  echo '{"schema": "ddp-info-env/1"}' >bad.json
  for file in bad.json "$INFO" /dev/null nowhere; do
    run -1 "$INFO" env --diff a.json "$file"
    [ "${#lines[@]}" -eq 1 ]
    [[ ${lines[0]} == "ddp-info: reading '$file': "* ]]
  done
}

@test "running jobs and processes are compared" {
  # Two jobs of two ranks. What a rank starts has its environment, too, and does not count; nor does a batch script.
  processes=()
  start() { env "$@" bash -c 'NCCL_ALGO=Tree sleep 60 & wait' 3>&- & processes+=($!); }
  has_child() { [ "$(ps -o comm= --ppid "$1")" = sleep ]; }
  number=$((900000 + $$ % 1000 * 100))
  for rank in 0 1; do
    start SLURM_JOB_ID=$number SLURM_STEP_ID=0 SLURM_PROCID=$rank NCCL_DEBUG=INFO UCX_TLS=rc
    start SLURM_JOB_ID=$((number + 1)) SLURM_STEP_ID=0 SLURM_PROCID=$rank NCCL_DEBUG=WARN UCX_TLS=rc
  done
  start SLURM_JOB_ID=$number NCCL_DEBUG=TRACE
  for process in "${processes[@]}"; do
    for _ in {1..100}; do ! has_child "$process" || break; sleep 0.1; done
  done
  run "$INFO" env --diff job:$number job:$((number + 1)).0
  first=$output
  run "$INFO" env --diff job:$((number + 1)) pid:"${processes[1]}"
  second=$output
  for process in "${processes[@]}"; do kill $(ps -o pid= --ppid "$process") "$process"; done
  [ "$first" = $'- NCCL_DEBUG=INFO [environment]\n+ NCCL_DEBUG=WARN [environment]' ] || { echo "$first"; return 1; }
  [ "$second" = "no differences" ] || { echo "$second"; return 1; }
  run -1 "$INFO" env --diff job:$((number + 7)) job:$number
  [[ $output == "ddp-info: looking for the ranks of job $((number + 7)): none of your processes"* ]]
  run -1 "$INFO" env --diff job:x job:y
  [[ $output == *"not the number of a job"* ]]
}

@test "secrets are hidden everywhere" {
  export NCCL_PSK=hunter2hunter2 WANDB_API_KEY=hunter2 HTTPS_PROXY=http://me:hunter2@proxy:3128
  for arguments in "--all" "--all --json" "--torch" "NCCL_PSK HTTPS_PROXY"; do
    run -0 "$INFO" env $arguments
    [[ $output != *hunter2* ]]
  done
  [[ $output == *"http://me:(hidden)@proxy:3128"* ]]
}

@test "a running process, as it was started" {
  NCCL_DEBG=INFO sleep 60 3>&- &
  process=$!
  # not the shell between fork and exec
  for _ in {1..100}; do [ "$(cat /proc/$process/comm)" != sleep ] || break; sleep 0.1; done
  run "$INFO" env --pid $process
  kill $process
  echo "$output"
  [ "$status" -eq 0 ]
  [[ $output == *"did you mean NCCL_DEBUG?"* ]]
  wait $process || true
  run -1 "$INFO" env --pid $process
  [[ $output == "ddp-info: reading the environment of process $process: "* ]]
}

@test "a process in a container: the library and files that it sees, not this machine's" {
  mkdir inside
  # The last word tells when the mounts are there.
  unshare --mount bash -c 'mount -t tmpfs tmpfs inside && cp "$LIBRARY" inside/ && echo NCCL_ALGO=Ring >inside/conf &&
    exec env LD_LIBRARY_PATH=$PWD/inside NCCL_CONF_FILE=$PWD/inside/conf sleep 60' 3>&- 2>refusal &
  process=$!
  for _ in {1..100}; do
    [ "$(cat /proc/$process/comm 2>/dev/null)" != sleep ] || break
    [ -e /proc/$process ] || { cat refusal; skip "needs the right to mount"; }
    sleep 0.1
  done
  run "$INFO" env --pid $process
  kill $process
  echo "$output"
  [ "$status" -eq 0 ]
  [[ $output == *"NCCL: 2.18.3+cuda12.1, $PWD/inside/libnccl.so.2 (the loader's, by LD_LIBRARY_PATH), reads 21 variables"* ]]
  [[ $output == *"NCCL_ALGO"*"Ring"*"$PWD/inside/conf"* ]]
  # A library that was replaced after it was loaded.
  cp "$(type -P sleep)" sleep
  cp "$LIBRARY" libnccl.so.2
  LD_PRELOAD=$PWD/libnccl.so.2 ./sleep 60 3>&- &
  process=$!
  for _ in {1..100}; do ! grep -q libnccl /proc/$process/maps || break; sleep 0.1; done
  rm libnccl.so.2
  run "$INFO" env --pid $process
  kill $process
  [[ $output == *"NCCL: $PWD/libnccl.so.2 (loaded already): it cannot be opened: ENOENT"* ]] || { echo "$output"; return 1; }
}

@test "ddprun --dump-env: of any program, which then runs as it would without" {
  mkdir -p venv/bin venv/lib/python3.11/site-packages/nvidia/nccl/lib
  printf '#!/bin/bash\necho "rank $RANK $(grep SigIgn /proc/self/status) $*"\nexit $RANK\n' >venv/bin/python3
  chmod +x venv/bin/python3
  cp "$LIBRARY" venv/lib/python3.11/site-packages/nvidia/nccl/lib/
  job=(--nproc-per-node 2 --no-python venv/bin/python3 "two words")
  run -1 --separate-stderr "$DDPRUN" "${job[@]}"
  expected=$(sort <<<"$output")
  run -1 --separate-stderr "$DDPRUN" --dump-env "${job[@]}"
  [ "$(sort <<<"$output")" = "$expected" ] || { echo "$output"; return 1; }
  [[ $stderr == "2 ranks on 1 host: "*"nothing wrong found"*"ddprun's placement"* ]] || { echo "$stderr"; return 1; }
  # The library that this Python would load counts.
  [[ $stderr == *"NCCL: 2.18.3+cuda12.1, $PWD/venv/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2 (packages of the program's Python)"* ]]
  NCCL_DEBG=1 run -1 "$DDPRUN" --dump-env=dump.json "${job[@]}"
  [ "$(json 'd["ranks"], [x["variable"] for x in d["findings"]], v["RANK"][1]["ranks"]' <dump.json)" = "(2, ['NCCL_DEBG'], '1')" ]
  [ "$(stat -c %a dump.json)" = 600 ] # other users read no variables
  # A file that cannot be written is said, and the program runs.
  run -1 "$DDPRUN" --dump-env=/nowhere/dump.json "${job[@]}"
  [[ $output == *"ddp-info: warning: "*"/nowhere/"*ENOENT*"; the program starts without a dump of the environments"* && $output == *"rank 0"* ]]
}

@test "env and doctor judge the NCCL of the Python that ddprun would take" {
  mkdir -p python/bin python/lib/python3.12/site-packages/{torch,nvidia/nccl/lib}
  printf '#!/bin/bash\n' >python/bin/python3
  chmod +x python/bin/python3
  own=$PWD/python/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2
  cp "$LIBRARY" "$own"
  PATH=$PWD/python/bin:$PATH run -0 "$INFO" env
  [[ $output != *"$own"* ]] || { echo "it has no PyTorch: $output"; return 1; }
  touch python/lib/python3.12/site-packages/torch/__init__.py
  PATH=$PWD/python/bin:$PATH run -0 "$INFO" env
  [[ $output == *"NCCL: 2.18.3+cuda12.1, $own (packages of the Python that ddprun takes, $PWD/python/bin/python3)"* ]] || { echo "$output"; return 1; }
  # What only a newer NCCL reads is a fault there.
  export NCCL_CUMEM_HOST_ENABLE=1
  PATH=$PWD/python/bin:$PATH run "$INFO" doctor --no-job --rule env-unread
  [[ $output == *"env-unread"*NCCL_CUMEM_HOST_ENABLE* ]] || { echo "$output"; return 1; }
}

@test "DDP_DUMP_ENV writes what World::init finds on all ranks, and says who has not set it" {
  run -0 in_job 3 '[ $RANK = 2 ] || export DDP_DUMP_ENV=$PWD/dump.json; exec "$BIN/rank_program" world'
  [ "$(json '[(x["rule"], x["ranks"]) for x in d["findings"]]' <dump.json)" = "[('env-absent', '2')]" ]
  [ "$(json 'v["LOCAL_RANK"][1]["ranks"]' <dump.json)" = 1 ]
  [ "$(stat -c %a dump.json)" = 600 ]
  DDP_DUMP_ENV=stderr NCCL_DEBG=1 run -0 --separate-stderr "$BIN/rank_program" world
  [[ $stderr == "1 rank on 1 host: "*"did you mean NCCL_DEBUG?"* ]]
  # A file that cannot be written does not end the job.
  DDP_DUMP_ENV=/nowhere/dump.json run -0 --separate-stderr "$BIN/rank_program" world
  [[ $stderr == *"DDP_DUMP_ENV: "*"/nowhere/"*ENOENT* ]]
}

@test "one variable is explained" {
  NCCL_IB_TIMEOUT=22 run -1 "$INFO" env NCCL_IB_TIMEOUT DDP_BACKEND NCCL_DEBG
  echo "$output"
  [[ $output == "NCCL_IB_TIMEOUT: "*"  values: 1..31"*"all ranks need the same value"* ]]
  [[ $output == *"DDP_BACKEND: Backend of process groups"*"NCCL for CUDA tensors; cpu:NAME,cuda:NAME: another pair. auto:"*"  values: auto, host, cpu, gloo, nccl"*"NCCL_DEBG: not known; did you mean NCCL_DEBUG?"* ]]
  [[ $output == *"NCCL_IB_TIMEOUT  22"* ]]
}

@test "PyTorch's list is PyTorch's" {
  NCCL_DEBUG=INFO run -0 "$INFO" env --torch
  [ "$(grep -c '^env:' <<<"$output")" -eq 47 ]
  [[ $output == *"env:NCCL_DEBUG=INFO"*"env:NCCL_RINGS=N/A"* ]]
  "${DDP_TORCH_PYTHON:-false}" -c 'import importlib.util as i; exit(not i.find_spec("torch"))' 2>/dev/null || skip "needs PyTorch (DDP_TORCH_PYTHON)"
  NCCL_DEBUG=INFO "$DDP_TORCH_PYTHON" -c 'from torch.nn.parallel import distributed as d; d._dump_DDP_relevant_env_vars()' >torch.txt
  grep '^env:' torch.txt | diff - <(grep '^env:' <<<"$output")
}

@test "the page of known variables is that of the table; new names of a library are shown" {
  run -0 "$INFO" env --known
  table=$ROOT/libddp/src/diagnostics/environment/known_variables.tsv
  diff <(grep -o '^| `[A-Z]\w*' <<<"$output" | cut -c 4- | LC_ALL=C sort) <(grep -v '^#' "$table" | cut -f 1)
  [[ $output == *'| `NCCL_CROSS_NIC` | 0..2; 2 | since 2.5.6; equal | Whether a ring/tree may enter and leave nodes'* ]]
  diff <("$INFO" env --own | tr -s ' \n' '\n') \
    <(sed -n '/^- `DDP_/,/^$/p; /^`InitOptions`/q' "$ROOT/docs/reference/environment.md" | tr -s ' \n' '\n')
  run -0 "$INFO" env --nccl "$LIBRARY" --new
  [ "$output" = NCCL_SITE_SWITCH ]
  run -1 "$INFO" env --nccl /dev/null --new
  [[ $output == *"it is not a 64-bit ELF file"* ]]
}

@test "bad command lines are one clear line" {
  while IFS='|' read -r words arguments; do
    run -2 "$INFO" env $arguments
    echo "$output"
    [ "${#lines[@]}" -eq 1 ]
    [[ ${lines[0]} == "ddp-info: "*"$words"* ]]
  done <<'END'
did you mean '--json'?|--jsno
needs a value|--pid
is not the number of a process|--pid x
is not the number of a process|--pid=-1
--diff needs two files, not 1|--diff a
exclude each other|--json --torch
goes with no other option|--diff a b --json
takes no value|--json=yes
'NCCL_DEBUG' is one word too many|--json NCCL_DEBUG
END
}

@test "a new NCCL's variables are taken over by one command" {
  mkdir -p tree/scripts tree/libddp/src/diagnostics/environment
  cp "$ROOT/scripts/take-nccl-variables" tree/scripts
  table=tree/libddp/src/diagnostics/environment/known_variables.tsv
  cp "$ROOT/libddp/src/diagnostics/environment/known_variables.tsv" before.tsv
  cp before.tsv $table
  printf '#!/bin/bash\necho "$@" >>builds\n' >tree/scripts/build # what is built is tested elsewhere
  chmod +x tree/scripts/build
  DDP_BIN_DIR=$BIN run -0 tree/scripts/take-nccl-variables "$LIBRARY"
  [[ $output == "NCCL 2.18.3: 1 new variables:"*"  NCCL_SITE_SWITCH"*"not in this library:"*"  NCCL_CHUNK_SIZE"* ]]
  [[ $output != *"  NCCL_ALGO"* ]]
  # One row more, in its place, and everything else as it was.
  diff before.tsv $table >changes || true
  [ "$(grep -c '^>' changes)" -eq 2 ] && [ "$(grep -c '^<' changes)" -eq 1 ] # the head names the library
  grep -qP '^> NCCL_SITE_SWITCH\tNCCL\tundocumented\t2.18\t\ttext\t{5}Not documented; in the library since 2.18' changes
  grep -v '^#' $table | cut -f 1 | LC_ALL=C sort -c
  [ "$(cat tree/builds)" = "dev ddp-info" ]
  # What is no NCCL changes nothing.
  cp $table after.tsv
  DDP_BIN_DIR=$BIN run -1 tree/scripts/take-nccl-variables /dev/null
  [[ $output == *"no file of NCCL"* ]]
  diff after.tsv $table
}
