#!/usr/bin/env bats
# scripts/check-layers: silent on a tree that keeps the rule, and each way to break it is reported with file and line.

bats_require_minimum_version 1.5.0

# A copy of the tree, whose sources other than headers are empty, for each check reads all of it.
setup_file() {
  local root folder tree=$BATS_FILE_TMPDIR/tree
  root=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
  mkdir -p "$tree/libddp"
  cp -r "$root/libddp/include" "$root/libddp/src" "$tree/libddp/"
  for folder in store_server launcher srun_plugin tools bindings; do
    if [ -d "$root/$folder" ]; then cp -r "$root/$folder" "$tree/"; fi
  done
  find "$tree" -name '*.cpp' -exec truncate -s 0 {} +
  echo "no such line" >"$BATS_FILE_TMPDIR/in_tree"
  "$root/scripts/check-layers" "$tree" >>"$BATS_FILE_TMPDIR/in_tree" || true
}

setup() {
  root=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
  tree=$BATS_TEST_TMPDIR/tree
  cp -r "$BATS_FILE_TMPDIR/tree" "$tree"
}

# What check-layers finds in the copy, but not in the tree itself.
check() {
  local status=0 found
  found=$("$root/scripts/check-layers" "$tree") || status=$?
  grep -vxF -f "$BATS_FILE_TMPDIR/in_tree" <<<"$found" || true
  return $status
}

# plant FILE LINE: appends LINE to FILE of the copy.
plant() {
  mkdir -p "$(dirname "$tree/$1")"
  printf '%s\n' "$2" >>"$tree/$1"
}

# The only finding is $1.
expect_only() {
  run check
  echo "$output"
  [ "$status" -eq 1 ]
  [ "$output" = "$1" ]
}

expect_nothing_new() {
  run check
  [ "$output" = "" ]
}

@test "the tree keeps the rule" {
  run "$root/scripts/check-layers"
  echo "$output"
  [ "$status" -eq 0 ]
  [ "$output" = "" ]
}

@test "a component that includes one above it is reported, one that includes one below is not" {
  plant libddp/src/base/planted.cpp '#include "world/job_connection.hpp"'
  expect_only "libddp/src/base/planted.cpp:1: base must not include world (world/job_connection.hpp)"
  rm "$tree/libddp/src/base/planted.cpp"
  plant libddp/src/world/planted.hpp '#include "base/log.hpp"'
  expect_nothing_new
}

@test "a component that includes one beside it is reported" {
  plant libddp/src/topology/planted.hpp '#include "kvs/memory_store.hpp"'
  expect_only "libddp/src/topology/planted.hpp:1: topology must not include kvs (kvs/memory_store.hpp)"
}

@test "an upward include is found in angle brackets, with spaces, and through .." {
  plant libddp/src/world/planted.hpp '#pragma once'
  plant libddp/src/kvs/planted.cpp '  #  include <world/planted.hpp>'
  expect_only "libddp/src/kvs/planted.cpp:1: kvs must not include world (world/planted.hpp)"
  echo '#include "../world/planted.hpp"' >"$tree/libddp/src/kvs/planted.cpp"
  expect_only "libddp/src/kvs/planted.cpp:1: kvs must not include world (../world/planted.hpp)"
}

@test "the public header of a component above is reported, that of a component below is not" {
  plant libddp/src/base/planted.hpp '#include <ddp/world.hpp>'
  expect_only "libddp/src/base/planted.hpp:1: base must not include world (ddp/world.hpp)"
  rm "$tree/libddp/src/base/planted.hpp"
  plant libddp/src/world/planted.hpp '#include <ddp/error.hpp>'
  expect_nothing_new
}

@test "the launcher must not know the library's upper components, nor the store server the launcher" {
  plant launcher/planted.hpp '#include "collectives/operation.hpp"'
  expect_only "launcher/planted.hpp:1: launcher must not include collectives (collectives/operation.hpp)"
  rm "$tree/launcher/planted.hpp"
  plant launcher/options/planted.hpp '#pragma once'
  plant store_server/planted.hpp '#include "launcher/options/planted.hpp"'
  expect_only "store_server/planted.hpp:1: store_server must not include launcher (launcher/options/planted.hpp)"
}

@test "the SPANK plugin may know the store server, but not the rest of the launcher" {
  plant store_server/planted.hpp '#pragma once'
  plant launcher/options/planted.hpp '#pragma once'
  plant srun_plugin/planted.cpp '#include "store_server/planted.hpp"'
  expect_nothing_new
  plant srun_plugin/planted.cpp '#include "launcher/options/planted.hpp"'
  expect_only "srun_plugin/planted.cpp:2: srun_plugin must not include launcher (launcher/options/planted.hpp)"
}

@test "parts of a component keep their order, too" {
  plant libddp/src/topology/placement/planted.hpp '#pragma once'
  plant libddp/src/topology/inventory/planted.cpp '#include "topology/placement/planted.hpp"'
  expect_only "libddp/src/topology/inventory/planted.cpp:1: topology/inventory must not include topology/placement (topology/placement/planted.hpp)"
}

@test "a class of a component above that is declared is reported, one of a component below is not" {
  plant libddp/src/base/planted.hpp '/* class NodeMap; */  // class NodeMap;'
  plant libddp/src/base/planted.hpp 'constexpr auto kText = "namespace ddp::world { class NodeMap; }";'
  plant libddp/src/base/planted.hpp 'namespace ddp { class NodeMap; namespace world { enum class NodeMap2 : int; class NodeMap; } }'
  expect_only "libddp/src/base/planted.hpp:3: base must not know world (class ddp::world::NodeMap)"
  rm "$tree/libddp/src/base/planted.hpp"
  plant libddp/src/collectives/planted.hpp 'namespace ddp::world { class NodeMap; }'
  expect_nothing_new
}

@test "a class of the same name elsewhere, and a class within a class or a function, are not meant" {
  plant libddp/src/base/planted.hpp 'namespace ddp::base { class NodeMap; struct Planted { struct NodeMap; class NodeMap* map; }; }'
  plant libddp/src/base/planted.hpp 'namespace ddp::world { struct PlantedToo { class NodeMap; }; inline void f() { class NodeMap; } }'
  plant libddp/src/base/planted.hpp 'namespace { class NodeMap; }'
  expect_nothing_new
}

@test "a public header that declares a class of a component above, or a private one of another component, is reported" {
  plant libddp/include/ddp/deadline.hpp 'namespace ddp { class World; }'
  local line
  line=$(wc -l <"$tree/libddp/include/ddp/deadline.hpp")
  expect_only "libddp/include/ddp/deadline.hpp:$line: base must not know world (class ddp::World)"
  cp "$root/libddp/include/ddp/deadline.hpp" "$tree/libddp/include/ddp/deadline.hpp"
  plant libddp/include/ddp/work.hpp 'namespace ddp { class World; class WorldState; namespace collectives { class GroupEngine; } }'
  line=$(wc -l <"$tree/libddp/include/ddp/work.hpp")
  expect_only "libddp/include/ddp/work.hpp:$line: a public header declares the private class ddp::WorldState of world"
}

@test "a public header that includes one of a component above is reported" {
  plant libddp/include/ddp/deadline.hpp '#include <ddp/world.hpp>'
  local line
  line=$(wc -l <"$tree/libddp/include/ddp/deadline.hpp")
  expect_only "libddp/include/ddp/deadline.hpp:$line: base must not include world (ddp/world.hpp)"
}

@test "folders that know each other by declarations are reported" {
  plant launcher/one/planted.hpp 'namespace ddp { struct PlantedOne {}; struct PlantedTwo; }'
  plant launcher/two/planted.hpp 'namespace ddp { struct PlantedTwo {}; struct PlantedOne; }'
  run check
  echo "$output"
  [ "$status" -eq 1 ]
  [ "$output" = "a circle of folders: launcher/one -> launcher/two (launcher/one/planted.hpp:1), launcher/two -> launcher/one (launcher/two/planted.hpp:1)" ]
}

@test "a public header that includes a private one, or one that is not there, is reported" {
  plant libddp/include/ddp/planted.hpp '#include "base/log.hpp"'
  plant libddp/include/ddp/planted.hpp '#include <base/log.hpp>'
  plant libddp/include/ddp/planted.hpp '#include <ddp/nowhere.hpp>'
  plant libddp/include/ddp/planted.hpp '#include <ddp/error.hpp>'
  run check
  [ "$status" -eq 1 ]
  [ "${#lines[@]}" -eq 3 ]
  [[ "${lines[0]}" == "libddp/include/ddp/planted.hpp:1: a public header includes \"base/log.hpp\""* ]]
  [ "${lines[1]}" = "libddp/include/ddp/planted.hpp:2: a public header includes the private <base/log.hpp>" ]
  [ "${lines[2]}" = "libddp/include/ddp/planted.hpp:3: includes <ddp/nowhere.hpp>, which is not a public header" ]
}

@test "folders that include each other are reported, with a line for each step" {
  plant launcher/one/planted.hpp '#include "two/planted.hpp"'
  plant launcher/two/planted.hpp '#include "three/planted.hpp"'
  plant launcher/three/planted.hpp '#include "one/planted.hpp"'
  run check
  [ "$status" -eq 1 ]
  [ "${#lines[@]}" -eq 1 ]
  [[ "$output" == "a circle of folders: "* ]]
  [[ "$output" == *"launcher/one -> launcher/two (launcher/one/planted.hpp:1)"* ]]
  [[ "$output" == *"launcher/three -> launcher/one (launcher/three/planted.hpp:1)"* ]]
}

@test "a component that is not known is reported" {
  plant libddp/src/mystery/planted.hpp '#pragma once'
  run check
  [ "$status" -eq 1 ]
  [[ "$output" == "libddp/src/mystery/planted.hpp:1: lies in a component that scripts/check-layers does not know"* ]]
}
