#!/usr/bin/env bats
# What libddp.so offers to programs: the committed list, nothing of its inside, and a name that says with what it is compatible.
# DDP_BIN_DIR: see build_folder.bash.

bats_require_minimum_version 1.5.0
load build_folder.bash

setup() {
  find_build_folder
  forget_other_installations
  library=$BUILD/lib/libddp.so
  cd "$BATS_TEST_TMPDIR"
}

# compare LIST: fails and says what is missing, which breaks programs that are there, and what is new.
compare() {
  "$SOURCE/scripts/exported-symbols" "$library" >found
  LC_ALL=C comm -23 "$1" found | sed 's/^/gone: /'
  LC_ALL=C comm -13 "$1" found | sed 's/^/new: /'
  cmp -s "$1" found || {
    echo "if that is meant: scripts/exported-symbols $library >libddp/libddp.symbols; before 1.0, what is gone needs another minor version"
    return 1
  }
}

@test "abi: the exported functions are those of the list; one that is gone and one that is new are named" {
  [ "$(wc -l <"$SOURCE/libddp/libddp.symbols")" -gt 200 ]
  compare "$SOURCE/libddp/libddp.symbols"
  { cat "$SOURCE/libddp/libddp.symbols"; echo 'ddp::World::zone() const'; } >more
  run -1 compare more
  [[ $output == *"gone: ddp::World::zone() const"* ]]
  grep -v '^ddp::World::rank() const$' "$SOURCE/libddp/libddp.symbols" >fewer
  run -1 compare fewer
  [[ $output == *"new: ddp::World::rank() const"* ]]
}

@test "abi: nothing of the library's inside is exported, but what its own programs and plugins share" {
  nm -D --defined-only "$library" >symbols
  [ "$(grep -c '@@LIBDDP_0\.' symbols)" -gt 300 ]
  run ! grep -v '@@LIBDDP_\(0\.[0-9]*\|PRIVATE\)$' <(grep -v ' A ' symbols)
  # all that is private is in two components, and nothing of a component is public
  run ! grep -vE ' [A-Za-z] _Z[A-Z]*3ddp(4base|7kernels)' <(grep '@@LIBDDP_PRIVATE' symbols | grep -v _ZGV)
  local component
  for component in "$SOURCE"/libddp/src/*/; do
    component=$(basename "$component")
    run ! grep -E "_ZNK?3ddp${#component}$component[0-9]+.*@@LIBDDP_0" symbols
  done
  run ! grep -E '10WorldState|7Reducer4Impl|10TorchStore4Impl' <(awk '$2 == "T"' symbols | grep -v '_ZN3ddp5WorldC')
}

@test "abi: the library's name and its symbols' version have the minor version, while the major is 0" {
  local version
  version=$(sed -n 's/.*DDP_VERSION_STRING "\([0-9]*\.[0-9]*\).*/\1/p' "$SOURCE/libddp/include/ddp/version.hpp")
  [[ $version == 0.* ]]
  [[ $(readelf -d "$library") == *"Library soname: [libddp.so.$version]"* ]]
  grep -q "^LIBDDP_$version {" "$SOURCE/libddp/libddp.map"
}
