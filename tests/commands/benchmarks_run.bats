#!/usr/bin/env bats
# benchmarks/run: where it writes the tables. The benchmark is a stand-in.

bats_require_minimum_version 1.5.0

setup() {
  tree=$BATS_TEST_TMPDIR/benchmarks
  mkdir -p "$tree/store"
  cp "$BATS_TEST_DIRNAME/../../benchmarks/"{run,machine.py} "$tree/"
  printf '#!/bin/sh\necho "| measured with $2 $3 |"\n' >"$tree/store/store.py"
  chmod +x "$tree/store/store.py"
  printf 'before\n<!-- begin store -->\nold table\n<!-- end store -->\nafter\n' >"$tree/store/results.md"
}

@test "--update replaces what lies between the markers of the results file, and nothing else" {
  run -0 "$tree/run" store --rounds 3 --binaries "$tree"
  [[ $output == *"| measured with --rounds 3 |"* ]]
  grep -q 'old table' "$tree/store/results.md"

  run -0 "$tree/run" store --rounds 4 --binaries "$tree" --update
  run -0 cat "$tree/store/results.md"
  [[ $output == $'before\n<!-- begin store -->\n- Processors: '*$'\n\n| measured with --rounds 4 |\n<!-- end store -->\nafter' ]]
}

@test "a results file without markers stays as it is, and a benchmark that fails replaces nothing" {
  echo 'no markers' >"$tree/store/results.md"
  run -1 "$tree/run" store --binaries "$tree" --update
  [[ $output == *"store/results.md has 0 pairs of markers for store"* ]]
  [ "$(cat "$tree/store/results.md")" = 'no markers' ]

  printf 'exit 3\n' >>"$tree/store/store.py"
  run -1 "$tree/run" store --binaries "$tree" --update
  [[ $output == *"store failed with exit code 3"* ]]
}

@test "each benchmark has one pair of markers in its results file" {
  cd "$BATS_TEST_DIRNAME/../../benchmarks"
  names=$(python3 -c 'import re; print(*re.findall(r"\"(\w+)\"", re.search(r"^NAMES = \((.*?)\)", open("run").read(), re.M | re.S)[1]))')
  [ "$(wc -w <<<"$names")" -ge 8 ]
  for name in $names; do
    [ "$(cat -- */results.md | grep -c -e "^<!-- begin $name -->$" -e "^<!-- end $name -->$")" = 2 ]
  done
}
