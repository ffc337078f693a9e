#!/usr/bin/env bats
# scripts/check-lengths: silent on a tree that keeps the rule, and each kind of file that is too long is reported.

bats_require_minimum_version 1.5.0

setup() {
  root=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
  tree=$BATS_TEST_TMPDIR/tree
  git init -q "$tree"
  plant src/short.cpp 600
}

# plant FILE LINES [FIRST_LINE]: a file of so many lines in the tree.
plant() {
  mkdir -p "$(dirname "$tree/$1")"
  { echo "${3:-1}"; seq 2 "$2"; } >"$tree/$1"
}

check() { "$root/scripts/check-lengths" "$tree"; }

@test "the tree keeps the rule" {
  run -0 "$root/scripts/check-lengths"
  [ "$output" = "" ]
}

@test "600 lines are allowed, 601 are reported, whether or not the last one ends" {
  run -0 check
  [ "$output" = "" ]
  plant src/long.cpp 601
  run -1 check
  [ "$output" = "src/long.cpp: 601 lines, but 600 at most: split it into files with one subject each" ]
  truncate -s -1 "$tree/src/long.cpp"
  run -1 check
  [[ $output == "src/long.cpp: 601 lines, "* ]]
}

@test "sources, tests and scripts are looked at, also before they are added" {
  files=(a.hpp a.c a.py a.bats a.bash a.cmake a.sbatch CMakeLists.txt "with blank.cpp")
  for file in "${files[@]}"; do plant "src/$file" 700; done
  plant src/script 700 '#!/bin/bash'
  git -C "$tree" add src/a.hpp src/script
  run -1 check
  echo "$output"
  [ "${#lines[@]}" -eq 10 ]
  for file in "${files[@]}" script; do [[ $output == *"src/$file: 700 lines"* ]]; done
}

@test "documents, data, corpora and what git ignores may be longer" {
  for file in a.md a.csv a.json a.xml a.txt LICENSE build/a.cpp; do plant "src/$file" 700; done
  plant tests/fuzz/corpus/fuzz_x/script 700 '#!/bin/bash'
  echo /src/build/ >"$tree/.gitignore"
  run -0 check
  [ "$output" = "" ]
}

@test "a folder that is no checkout is said to be none" {
  run -1 "$root/scripts/check-lengths" "$BATS_TEST_TMPDIR"
  [[ $output == *"check-lengths: "*"has no files that git knows"* ]]
}
