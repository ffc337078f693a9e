#!/usr/bin/env bats
# scripts/test: what it runs when, how it counts and how it ends; and scripts/affected, which chooses for --changed. What
# builds and runs tests is a stand-in.

bats_require_minimum_version 1.5.0

setup() {
  root=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
  tree=$BATS_TEST_TMPDIR/tree
  mkdir -p "$tree/scripts" "$tree/tests"
  cp "$root/scripts/"{test,isolated,failed-parts,stage-results} "$tree/scripts/"
  cp -r "$root/tests/support" "$tree/tests/"
  for name in dependencies python-env unpack-package; do program "$name" true; done
  program build '[ $1 != --existing ] || shift; echo "+build $*" >>"$CALLS"; sleep 1.2; echo "-build $*" >>"$CALLS"'
  program run-stage 'echo "+$*" >>"$CALLS"; sleep 1.8; echo "-$*" >>"$CALLS"; echo "ok 1 a"'
  program affected cat
  export CALLS=$BATS_TEST_TMPDIR/calls DDP_TEST_MEMORY=$BATS_TEST_TMPDIR/memory
  : >"$CALLS"
}

# program NAME COMMANDS: a stand-in in the tree's scripts.
program() {
  printf '#!/bin/bash\n%s\n' "$2" >"$tree/scripts/$1"
  chmod +x "$tree/scripts/$1"
}

run_test() { timeout -k 5 60 "$tree/scripts/test" "$@"; }

affected() { printf '%s\n' "$@" | "$root/scripts/affected"; }

# has LINE: a line of $output that is exactly this.
has() { grep -Fxq -- "$1" <<<"$output" || { echo "no line: $1" && return 1; }; }

@test "builds and stages: three at a time, of them one build and two that wait; computing ones fill up in the end; each after its build" {
  run -0 run_test --only unit --only commands --only packaging --only asan --only tsan --only fuzz
  echo "$output"
  cat "$CALLS"
  awk '
    function waits(stage) { return stage !~ /build|asan|tsan|fuzz/ }
    /^[+]/ {
      if (++running > 3) bad = running " at a time"
      if (waits($1) ? ++waiting > 2 : ++computing > 1 && begun < 3) bad = $0 " too early"
      begun += waits($1)
    }
    /^-/ { --running; if (waits($1)) --waiting; else --computing }
    /^[+]build/ { if (++builds > 1) bad = "two builds" }
    /^-build/ { --builds; built[$2] = 1 }
    /^[+](unit|commands|packaging)/ && !built["dev"] { bad = $0 " before its build" }
    /^[+](asan|tsan)/ && !built[substr($1, 2)] { bad = $0 " before its build" }
    running == 3 && waiting == 2 { beside = 1 }
    running == 3 && computing > 1 { after = 1 }
    END { if (!beside || !after) bad = "too few at a time"; print bad; exit bad != "" }' "$CALLS"
  [ "${lines[-1]}" = "6 passed, 0 failed" ]
  # the table's order is fixed
  [ "$(sed -n '/==== summary/,$p' <<<"$output" | awk '$2 ~ /^[0-9-]+$/ {print $1}' | tr '\n' ' ')" = \
    "dev unit commands packaging asan tsan fuzz " ]
  if [ "$(id -u)" = 0 ] && unshare --pid --fork --mount-proc true; then
    program run-stage 'for ((i = 0; i < 1000000; i++)); do :; done; echo "ok 1 a"'
    run -0 run_test --only unit
    echo "$output"
    [ "$(sed -n '/==== summary/,$p' <<<"$output" | awk '$1 == "unit" {print $5}')" -gt 0 ]
  fi
}

@test "the address sanitizer's build has what the wanted stages need, and is made once" {
  run -0 run_test --only asan --only fuzz
  [ "$(grep '^+build' "$CALLS")" = "+build asan ctest_programs fuzzers" ]
  : >"$CALLS"
  run -0 run_test --only fuzz
  [ "$(cat "$CALLS")" = $'+build asan fuzzers\n-build asan fuzzers\n+fuzz\n-fuzz' ]
}

@test "a failed test, a failed stage and a failed build are counted, the others still run" {
  program run-stage 'case $1 in unit) echo "not ok 1 a"; echo "not ok 2 b"; exit 1 ;; commands) exit 3 ;; esac; echo "ok 1 a"'
  program build '[[ $* != *tsan ]] || { echo "no such header"; exit 1; }'
  run -1 run_test --only unit --only commands --only packaging --only tsan
  echo "$output"
  [ "${lines[-1]}" = "1 passed, 4 failed" ]
  has "no such header"
  [[ $output == *"build FAILED"* ]]
}

# The end of ctest's output where one program failed.
one_program_failed() { printf '%s\n' "50% tests passed, 1 tests failed out of 2" "The following tests FAILED:" $'\t 17 - kvs_test (Failed)'; }

@test "what fails beside other stages is repeated alone, and passes if it passes twice" {
  export -f one_program_failed
  program run-stage 'echo "$*" >>"$CALLS"; case $* in
    unit) one_program_failed; exit 1 ;; "unit kvs_test") echo "100% tests passed, 0 tests failed out of 1" ;; *) echo "ok 1 a" ;; esac'
  run -0 run_test --only unit --only commands
  echo "$output"
  [ "$(grep -v build "$CALLS" | sort | paste -sd,)" = "commands,unit,unit kvs_test,unit kvs_test" ]
  [[ $output == *"passed, 1 only when repeated alone"* ]]
  has "failed beside other stages, and passed twice alone:"
  has "  unit: kvs_test (Failed) "
  [ "${lines[-1]}" = "3 passed, 0 failed" ]
  # the second time, too
  program run-stage 'echo "$*" >>"$CALLS"; [ "$(grep -c unit "$CALLS")" = 2 ] || { one_program_failed; exit 1; }
    echo "100% tests passed, 0 tests failed out of 1"'
  : >"$CALLS"
  run -1 run_test --only unit
  echo "$output"
  [ "$(grep -c unit "$CALLS")" -eq 3 ]
  has "  unit: kvs_test (Failed) "
  [ "${lines[-1]}" = "1 passed, 1 failed" ]
}

@test "what passes only alone is remembered, and fails the third time within a month" {
  export -f one_program_failed
  program run-stage 'echo "$*" >>"$CALLS"; case $* in
    unit) echo "[  FAILED  ] Keys.Wait (5 ms)"; one_program_failed; exit 1 ;;
    "unit kvs_test") echo "100% tests passed, 0 tests failed out of 1" ;; *) echo "ok 1 a" ;; esac'
  mkdir "$DDP_TEST_MEMORY"
  printf '%s\n' "2001-01-01 - Keys.Wait" "$(date +%F) - Keys.WaitLonger" >"$DDP_TEST_MEMORY/alone"
  for count in 1 2; do
    run -0 run_test --only unit
    [ "${lines[-1]}" = "2 passed, 0 failed" ]
    [ "$(grep -c ' Keys.Wait$' "$DDP_TEST_MEMORY/alone")" = $((1 + count)) ]
  done
  run -1 run_test --only unit
  echo "$output"
  [[ $output == *"unit: Keys.Wait: passed alone for the 3. time since "*": mend it, then take its lines out of $DDP_TEST_MEMORY/alone"* ]]
  [ "${lines[-1]}" = "1 passed, 1 failed" ]
  run -1 grep kvs_test "$DDP_TEST_MEMORY/alone" # its test is named
}

@test "separate, asan, tsan and fuzz: what can have broken since the newest commit that passed them; all with --all" {
  cd "$tree"
  program affected 'sort >"$CALLS.affected"; printf "%s\n" style "unit kvs_test" "asan kvs_test" "fuzz fuzz_x"'
  program run-stage 'echo "$*" >>"$CALLS.stages"; echo "ok 1 a"'
  mkdir tests/cluster
  printf '#!/bin/bash\nshift 2\nexec "$@"\n' >tests/cluster/slurm_cluster
  chmod +x tests/cluster/slurm_cluster
  git init -q -b main
  git config user.email a@b
  git config user.name a
  echo build >.gitignore
  git add . && git commit -qm first
  first=$(git rev-parse HEAD)
  run -0 run_test --list
  [[ $output == *"all, for git knows no commit here that is known to have passed them"* ]]
  [ "$(cat "$CALLS.affected")" = unknown ]
  has separate
  has unit
  has "asan kvs_test"
  run -1 has tsan
  echo "$first" >tests/last_full_run && git add . && git commit -qm second
  run -0 run_test --list
  [[ $output == *"what can have broken since ${first:0:7}"*": first)"* ]]
  [ "$(cat "$CALLS.affected")" = tests/last_full_run ]
  # a run of all stages is remembered, if all is committed
  echo 1 >new
  run -0 run_test
  [ ! -e "$DDP_TEST_MEMORY/sanitized" ]
  git add . && git commit -qm third
  run -0 run_test
  echo "$output"
  [ "$(cut -d' ' -f1 "$DDP_TEST_MEMORY/sanitized")" = "$(git rev-parse HEAD)" ]
  grep -qx "asan kvs_test" "$CALLS.stages"
  run -0 run_test --list
  [ "$(cat "$CALLS.affected")" = "" ]
  run -0 run_test --all --list
  has asan
  has tsan
  [ "$(cat tests/last_full_run)" = "$first" ]
}

@test "a stage that runs scripts/test itself counts by its last line" {
  log() { printf '%s\n' "ok 1 a" "not ok 2 b" "[  FAILED  ] Keys.Wait (5 ms)" "failed beside other stages, and passed twice alone:" "$1"; }
  [ "$("$root/scripts/stage-results" <(log "7 passed, 0 failed"))" = "7 0" ]
  [ "$("$root/scripts/stage-results" <(log "6 passed, 1 failed") | sort)" = "$(printf '%s\n' "6 1" "b" Keys.Wait | sort)" ]
}

@test "debian13 is a stage of --all, and skipped where there can be none" {
  run -0 run_test --list
  run -1 has debian13
  run -0 run_test --all --list
  has debian13
  program on-debian 'exit 77'
  run -0 run_test --only debian13
  has "debian13 skipped: scripts/on-debian cannot make it"
  program on-debian 'true'
  run -0 run_test --only debian13
  [ "${lines[-1]}" = "1 passed, 0 failed" ]
}

@test "which parts of a stage are repeated: few, and none that may show a defect which comes and goes" {
  parts() { cat >"$BATS_TEST_TMPDIR/log" && "$root/scripts/failed-parts" "$1" "$BATS_TEST_TMPDIR/log"; }
  [ "$(one_program_failed | parts unit)" = kvs_test ]
  [ "$({ one_program_failed; echo "WARNING: ThreadSanitizer: data race (pid=1)"; } | parts tsan)" = "" ]
  [ "$({ one_program_failed; echo "==1==ERROR: AddressSanitizer: heap-use-after-free"; } | parts asan)" = "" ]
  [ "$({ one_program_failed; echo "left running: sleep 9"; } | parts unit)" = "" ]
  [ "$(one_program_failed | sed 's/(Failed)/(SEGFAULT)/' | parts unit)" = "" ]
  [ "$({ one_program_failed; printf '\t 18 - shm_test (Timeout)\n'; } | parts unit)" = "" ]
  [ "$(printf 'ERROR tests/python/test_b.py::test_c - x\nFAILED tests/python/test_a.py::test_b - x\n' | parts python)" = "" ]
  of_bats="not ok 3 scancel
# (in test file tests/cluster/spank.bats, line 80)
not ok 5 another
# (from function \`finish' in file tests/support/x.bash, line 7,
#  in test file tests/cluster/status.bats, line 9)"
  [ "$(parts cluster <<<"$of_bats")" = $'tests/cluster/spank.bats\ntests/cluster/status.bats' ]
  [ "$(parts cluster <<<"$of_bats"$'\nnot ok 6 setup_file failed')" = "" ]
  [ "$(parts python <<<"FAILED tests/python/test_a.py::test_b[1] - AssertionError")" = "tests/python/test_a.py::test_b[1]" ]
  [ "$(printf 'FAILED tests/python/test_a.py::test_%s - x\n' 1 2 3 4 | parts python)" = "" ]
}

@test "a process that a stage leaves makes it fail" {
  [ "$(id -u)" = 0 ] && unshare --pid --fork --mount-proc true || skip "needs namespaces of processes"
  program run-stage 'setsid sleep 1234 & echo "ok 1 a"'
  run -1 run_test --only commands
  echo "$output"
  has "left running: sleep 1234 "
  [ "${lines[-1]}" = "1 passed, 1 failed" ]
}

@test "a signal ends it with its stages, and nothing is left" {
  program run-stage 'echo started >"$CALLS"; setsid sleep 4321; true'
  for signal in INT TERM; do
    : >"$CALLS"
    env --default-signal "$tree/scripts/test" --only unit --only commands >"$BATS_TEST_TMPDIR/out" 2>&1 &
    test=$!
    for ((i = 0; i < 200; i++)); do [ ! -s "$CALLS" ] || break; sleep 0.05; done
    [ -s "$CALLS" ]
    kill -$signal $test
    status=0
    wait $test || status=$?
    [ $status = $((128 + $(kill -l $signal))) ]
    for ((i = 0; i < 100; i++)); do pgrep -f '^sleep 4321' || break; sleep 0.05; done
    run -1 pgrep -f '^sleep 4321'
  done
}

@test "--changed asks about committed, changed and new files" {
  cd "$tree"
  program affected 'sed "s/^/file /" >"$CALLS"; echo "commands tests/commands/x.bats"'
  git init -q -b main
  git config user.email a@b
  git config user.name a
  git add . && git commit -qm first
  echo 1 >committed && git add . && git commit -qm second
  echo 2 >>scripts/build && echo 3 >new
  run -0 run_test --changed HEAD~1 --list
  [ "$output" = "commands tests/commands/x.bats" ]
  [ "$(sort "$CALLS" | tr '\n' ' ')" = "file committed file new file scripts/build " ]
  run -0 run_test --changed --list
  [ "$(sort "$CALLS" | tr '\n' ' ')" = "file new file scripts/build " ]
  git update-ref refs/remotes/origin/main HEAD~1
  run -0 run_test --changed --list
  [ "$(sort "$CALLS" | tr '\n' ' ')" = "file committed file new file scripts/build " ]
  run -2 run_test --changed nowhere
  [[ $output == *"git knows no commit 'nowhere'"* ]]
}

@test "two clusters take the cluster's files in turn, each once, and one that fails makes the stage fail" {
  cp "$root/scripts/run-stage" "$tree/scripts/"
  mkdir -p "$tree/tests/cluster" "$BATS_TEST_TMPDIR/bin" "$BATS_TEST_TMPDIR/cluster"/{1,2}
  printf '#!/bin/bash\nshift 2\nexec "$@"\n' >"$tree/tests/cluster/slurm_cluster"
  # "first" ends only when another cluster has begun the rest
  printf '#!/bin/bash\n%s\n' 'echo "${DDP_CLUSTER_DIR##*/} $2" >>"$CALLS"' \
    '[ $2 != first ] || timeout 60 sh -c "until grep -q third \"$CALLS\"; do sleep 0.05; done" || exit 1' \
    'echo "ok 1 $2"; [ $2 != "$WRONG" ]' >"$BATS_TEST_TMPDIR/bin/bats"
  chmod +x "$tree/tests/cluster/slurm_cluster" "$BATS_TEST_TMPDIR/bin/bats"
  export DDP_CLUSTER_DIR=$BATS_TEST_TMPDIR/cluster WRONG=
  PATH=$BATS_TEST_TMPDIR/bin:$PATH run -0 "$tree/scripts/run-stage" cluster first second third
  [ "$(sort <<<"$output")" = $'ok 1 first\nok 1 second\nok 1 third' ] || { echo "$output"; return 1; }
  [ "$(cut -d' ' -f1 "$CALLS" | sort -u)" = $'1\n2' ]
  : >"$CALLS"
  WRONG=second PATH=$BATS_TEST_TMPDIR/bin:$PATH run -1 "$tree/scripts/run-stage" cluster first second third
  [ "$(wc -l <"$CALLS")" -eq 3 ]
  PATH=$BATS_TEST_TMPDIR/bin:$PATH run -0 "$tree/scripts/run-stage" cluster second
  [ "$(tail -n 1 "$CALLS")" = "cluster second" ] # one file needs no further cluster
}

@test "two namespaces of processes take the commands' files in turn, and one in which a process is left makes the stage fail" {
  [ "$(id -u)" = 0 ] && unshare --pid --fork --mount-proc true || skip "needs namespaces of processes"
  cp "$root/scripts/run-stage" "$tree/scripts/"
  mkdir -p "$BATS_TEST_TMPDIR/bin"
  # "first" ends only when the other namespace has begun the rest
  printf '#!/bin/bash\n%s\n' 'echo "$(readlink /proc/self/ns/pid) $2" >>"$CALLS"' \
    '[ $2 != first ] || timeout 60 sh -c "until grep -q third \"$CALLS\"; do sleep 0.05; done" || exit 1' \
    '[ $2 != "$LEAVES" ] || setsid sleep 1234 &' 'echo "ok 1 $2"; [ $2 != "$WRONG" ]' >"$BATS_TEST_TMPDIR/bin/bats"
  chmod +x "$BATS_TEST_TMPDIR/bin/bats"
  export PATH=$BATS_TEST_TMPDIR/bin:$PATH WRONG= LEAVES=
  run -0 "$tree/scripts/run-stage" commands first second third
  [ "$(sort <<<"$output")" = $'ok 1 first\nok 1 second\nok 1 third' ] || { echo "$output"; return 1; }
  [ "$(cut -d' ' -f1 "$CALLS" | sort -u | wc -l)" -eq 2 ]
  WRONG=second run -1 "$tree/scripts/run-stage" commands first second third
  LEAVES=third run -1 "$tree/scripts/run-stage" commands first second third
  has "left running: sleep 1234 "
}

@test "documents concern the tests of documents" {
  run -0 affected docs/reference/launching.md
  [ "$output" = $'style\ncommands tests/commands/architecture.bats tests/commands/howto.bats\npackaging tests/packaging/install.bats' ]
  run -0 affected README.md
  has "packaging tests/packaging/install.bats"
  has "cluster tests/cluster/howto.bats"
  run -0 affected .github/workflows/ci.yml
  [ "$output" = style ]
  run affected
  [ -z "$output" ]
}

@test "a component concerns itself and those above it" {
  run -0 affected libddp/src/collectives/work.cpp
  echo "$output"
  has "unit collectives_test engine_test environment_test flight_test folder_owner_test hang_test hierarchy_test host_backend_test named_test nccl_backend_test nccl_library_test reducer_test shm_test tcp_test training_test unit_digits unit_doctor unit_selftest unit_tools"
  has "multiproc collectives_multiproc failures_multiproc fault_matrix_multiproc flight_multiproc launcher_pmix_multiproc liveness_multiproc nccl_multiproc reducer_multiproc remains_multiproc shm_multiproc tcp_multiproc training_multiproc"
  run -0 affected launcher/main.cpp
  has "unit unit_doctor unit_launcher unit_selftest unit_spank_host unit_srun_plugin unit_tools"
  has "asan unit_doctor unit_launcher unit_selftest unit_spank_host unit_srun_plugin unit_tools"
  has "tsan launcher_pmix_multiproc unit_launcher"
  has "fuzz $(echo fuzz_{control_protocol,environment,error_file,flight_dump,host_file,launch_options,messages,prefix_template})"
  has cluster
  run -0 affected srun_plugin/srun_side/command_line.cpp
  run -1 has multiproc
}

@test "a source, but not a test, is compiled by itself when it, or a header that it includes, has changed" {
  run -0 affected libddp/src/named/engine.hpp tests/unit/named/coordinator_test.cpp libddp/src/named/gone.cpp
  has "separate libddp/src/named/engine.cpp libddp/src/named/named_operations.cpp libddp/src/named/stalls.cpp libddp/src/named/steps.cpp libddp/src/named/timeline_of_ranks.cpp"
  run -0 affected README.md
  run -1 grep -q ^separate <<<"$output"
}

@test "sanitizers: one for each program, both for those of the changed component, unless these are many" {
  run -0 affected libddp/src/kvs/x.cpp
  asan=$(sed -n 's/^asan //p' <<<"$output") tsan=$(sed -n 's/^tsan //p' <<<"$output")
  [ "$(printf '%s\n' $asan $tsan | sort | uniq -d)" = kvs_test ]
  [[ " $asan " == *" unit_launcher "* && " $tsan " == *" world_test "* && " $tsan " == *" shm_multiproc "* ]]
  run -0 affected CMakeLists.txt
  asan=$(sed -n 's/^asan //p' <<<"$output") tsan=$(sed -n 's/^tsan //p' <<<"$output")
  # every program once
  diff <(printf '%s\n' $asan $tsan | sort) <(grep -rhoP 'ddp_add_(multiproc_)?test\(\K\w+' "$root"/tests/{unit,multiproc} | grep -v '^name$' | sort)
  # names that no program has any more
  for name in $(python3 -c 'import runpy, sys; print(*runpy.run_path(sys.argv[1])["FEW_THREADS"])' "$root/scripts/affected"); do
    [[ " $asan " == *" $name "* ]] || { echo "FEW_THREADS: no program $name" && return 1; }
  done
  run -0 affected libddp/src/{base,kvs,world,cuda,reducer,training,topology,kernels}/x.cpp store_server/x.cpp launcher/x.cpp
  asan=$(sed -n 's/^asan //p' <<<"$output") tsan=$(sed -n 's/^tsan //p' <<<"$output")
  [ "$(printf '%s\n' $asan $tsan | sort | uniq -d)" = "" ]
}

@test "a test concerns itself, and what no rule knows concerns everything" {
  run -0 affected tests/unit/kvs/x_test.cpp tests/unit/collectives/shm/x_test.cpp tests/multiproc/fault_matrix_multiproc.cpp tests/cluster/faults.bats tests/fuzz/fuzz_error_file.cpp scripts/build
  echo "$output"
  has "unit kvs_test shm_test"
  has "multiproc fault_matrix_multiproc"
  has "cluster tests/cluster/faults.bats"
  has "fuzz fuzz_error_file"
  [[ $output == *tests/commands/build_script.bats* ]]
  run -0 affected tests/torch/CMakeLists.txt bindings/torch/include/ddp/torch/tensor.hpp
  [ "$output" = $'style\npython tests/python/test_libddp_torch.py tests/python/test_libddp_torch_cuda.py tests/python/test_libtorch.py\npackaging tests/packaging/api_docs.bats tests/packaging/install.bats' ]
  run -0 affected bindings/python/libddp/_progress.py
  [ "$output" = $'style\npython\npackaging tests/packaging/api_docs.bats\ncluster tests/cluster/python.bats' ]
  run -0 affected tests/multiproc/fault_exchange.hpp
  [ "$output" = $'style\nmultiproc fault_matrix_multiproc\ntsan fault_matrix_multiproc' ]
  run -0 affected benchmarks/flight/flight.cpp
  [ "$output" = $'style\ncommands tests/commands/benchmarks_run.bats' ]
  run -0 affected docs/reference/observability.md
  has "unit hang_test"
  run -0 affected docs/reference/environment.md
  has "commands tests/commands/architecture.bats tests/commands/ddp_info_env.bats tests/commands/howto.bats"
  for file in CMakeLists.txt cmake/x.cmake tests/support/x.hpp libddp/include/ddp/world.hpp something; do
    [ "$(affected tests/unit/kvs/x_test.cpp $file | grep -cv ^separate)" = 10 ]
    [ "$(affected $file | grep -v ^separate | grep ' ' | cut -d' ' -f1 | paste -sd,)" = asan,tsan ]
  done
}
