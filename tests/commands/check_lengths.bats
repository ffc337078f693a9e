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

@test "functions of more than 80 lines, wherever they stand; neither data nor shorter ones" {
  function_of() { printf '%s\n' "$1"; for ((i = 2; i < $2; i++)); do echo "  call();  // {"; done; echo "${1%%[! ]*}}"; }
  {
    echo "namespace {"
    function_of "int short_one(int a) {" 80
    echo
    function_of $'/// Long.\nint long_one(int a,\n             // why\n             int b) {' 79
    echo "class Some {" && echo " public:" && function_of "  void method() const {" 81 && echo "};"
    function_of "constexpr std::array kTable{" 100
    echo "}  // namespace"
  } >"$tree/src/short.cpp"
  run -1 "$root/scripts/check-lengths" --functions "$tree"
  echo "$output"
  [ "$output" = "src/short.cpp:84: long_one: 81 lines, but 80 at most
src/short.cpp:167: method: 81 lines, but 80 at most" ]
}
