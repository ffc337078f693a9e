#!/usr/bin/env bats
# docs/architecture.md: the functions of its walks and the files that it names exist.

bats_require_minimum_version 1.5.0

setup() {
  root=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
  page=docs/architecture.md
}

check() { python3 "$root/tests/support/check_walks.py" "${1:-$root}"; }

# copy_tree: what the page names, in $tree.
copy_tree() {
  tree=$BATS_TEST_TMPDIR/tree
  mkdir -p "$tree"
  (cd "$root" && cp -r docs bindings cli libddp launcher srun_plugin store_server tools benchmarks ./*.md "$tree")
}

# damage EXPRESSION WORDS: a page that this sed expression has changed is refused with these words.
damage() {
  sed "$1" "$root/$page" >"$tree/$page"
  run ! diff -q "$root/$page" "$tree/$page"
  run -1 check "$tree"
  echo "$output"
  [[ $output == *"$2"* ]]
}

@test "architecture: every hop of the walks exists" {
  run -0 check
  [[ $output =~ ^([0-9]+)" hops are as described"$ ]]
  [ "${BASH_REMATCH[1]}" -ge 30 ]
  [ "$(grep -c '^### Walk' "$root/$page")" -eq 5 ]
}

@test "architecture: a wrong file, function, type or link is found" {
  copy_tree
  run -0 check "$tree"
  damage 's|`libddp/src/world/world.cpp:World::rank`|`libddp/src/world/word.cpp:World::rank`|' \
    'there is no libddp/src/world/word.cpp'
  damage 's|world.cpp:World::rank`|world.cpp:World::rang`|' 'world.cpp does not define World::rang'
  damage 's|world.cpp:World::rank`|world.cpp:Word::rank`|' 'world.cpp does not define Word::rank'
  # declared, or called, but not defined
  damage 's|`libddp/src/world/world.cpp:World::rank`|`libddp/include/ddp/world.hpp:World::rank`|' \
    'world.hpp does not define World::rank'
  damage 's|world.cpp:World::rank`|world.cpp:check_rank`|' 'world.cpp does not define check_rank'
  damage 's|(reference/topology.md#|(reference/topologies.md#|' 'there is no reference/topologies.md'
}

@test "architecture: a function that the code renames is found" {
  copy_tree
  sed -i 's/World::rank(/World::own_rank(/' "$tree/libddp/src/world/world.cpp"
  run -1 check "$tree"
  [[ $output == *"world.cpp does not define World::rank" ]]
}

@test "architecture: tests of torchcomms and PyTorch have one here, or a reason" {
  check_tests() { python3 "$root/tests/support/check_upstream_tests.py" "${1:-$root}"; }
  run -0 check_tests
  [[ $output == *" tests of others have one here, or a reason" ]]
  mkdir -p "$BATS_TEST_TMPDIR/wrong/tests"
  sed 's/NcclGroups.TheSame/NcclGroups.TheOther/; s|driver_test.cpp|owner_test.cpp|' "$root/tests/upstream_tests.tsv" \
    >"$BATS_TEST_TMPDIR/wrong/tests/upstream_tests.tsv"
  cp -r "$root"/tests/{unit,multiproc} "$BATS_TEST_TMPDIR/wrong/tests"
  run -1 check_tests "$BATS_TEST_TMPDIR/wrong"
  [[ $output == *"nccl_multiproc.cpp does not define NcclGroups.TheOtherProcessesMakeOthersInAnyShape"* ]]
  [[ $output == *"there is no tests/unit/cuda/owner_test.cpp"* ]]
}
