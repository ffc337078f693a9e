#!/usr/bin/env bats
# scripts/api-docs: the references of C++ and Python are built without a warning, and an undocumented name is one. Skipped where
# Doxygen, pdoc or the package is missing.

bats_require_minimum_version 1.5.0

setup() {
  root=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
  tree=$BATS_TEST_TMPDIR/tree
  mkdir -p "$tree/build"
}

# skip_if_missing STATUS: 77 says that a tool is missing.
skip_if_missing() { if [ "$1" = 77 ]; then skip "${output##*$'\n'}"; fi; }

copy_headers() {
  mkdir -p "$tree"/{libddp,bindings/torch}
  cp -r "$root/libddp/include" "$tree/libddp/"
  cp -r "$root/bindings/torch/include" "$tree/bindings/torch/"
}

# With the package and pdoc of the source tree, but libddp's own Python files copied.
copy_package() {
  local made=0
  (cd "$root" && scripts/python-package) >"$BATS_TEST_TMPDIR/package" 2>&1 || made=$?
  if [ $made = 77 ]; then skip "$(tail -n 1 "$BATS_TEST_TMPDIR/package")"; fi
  [ $made = 0 ] || { cat "$BATS_TEST_TMPDIR/package"; return 1; }
  [ -e "$root/build/pdoc/.installed" ] || skip "pdoc is missing (scripts/python-env)"
  mkdir -p "$tree/build/python/site"
  cp -r "$root"/build/python/site/libddp{,_autoload} "$tree/build/python/site/"
  ln -s "$root/build/pdoc" "$tree/build/pdoc"
  export DDP_TORCH_PYTHON=${DDP_TORCH_PYTHON:-$root/build/venv/bin/python}
}

@test "the C++ reference has every public class, and no warning" {
  copy_headers
  run "$root/scripts/api-docs" --cpp "$tree"
  skip_if_missing $status
  echo "$output"
  [ $status = 0 ]
  [ "$output" = "" ]
  local page
  for page in classddp_1_1World classddp_1_1ProcessGroup classddp_1_1Reducer classddp_1_1Checkpoints \
    classddp_1_1torch_1_1DistributedDataParallel; do
    [ -s "$tree/build/api/cpp/$page.html" ]
  done
  grep -q 'Waits for all buckets and writes the averages' "$tree/build/api/cpp/classddp_1_1Reducer.html"
}

@test "an undocumented function, and a wrong parameter's name, in a public header are errors" {
  copy_headers
  sed -i 's|^ProcessGroup make_process_group(World& world, std::string_view backend = "auto");|&\nvoid forgotten(int what);|' \
    "$tree/libddp/include/ddp/process_group.hpp"
  run "$root/scripts/api-docs" --cpp "$tree"
  skip_if_missing $status
  [ $status = 1 ]
  [[ $output == *"/libddp/include/ddp/process_group.hpp:"*"forgotten(int what) "*"is not documented"* ]]
  sed -i 's|^void forgotten(int what);|/// Forgets. @param those which\n&|' "$tree/libddp/include/ddp/process_group.hpp"
  run -1 "$root/scripts/api-docs" --cpp "$tree"
  [[ $output == *"argument 'those' of command @param is not found"* ]]
}

@test "the Python reference has the package's names, and no warning" {
  copy_package
  run "$root/scripts/api-docs" --python "$tree"
  skip_if_missing $status
  echo "$output"
  [ $status = 0 ]
  [ "$output" = "" ]
  local name
  for name in World.rank ProcessGroup.all_reduce PeerLost Error.ranks CsvWriter; do
    grep -q "id=\"$name\"" "$tree/build/api/python/libddp.html" || { echo "absent: $name"; return 1; }
  done
  grep -q 'id="DistributedDataParallel.several_backwards"' "$tree/build/api/python/libddp/torch.html"
}

@test "an undocumented Python function is an error" {
  copy_package
  printf '\n\ndef forgotten() -> None:\n    pass\n\n\n__all__.append("forgotten")\n' >>"$tree/build/python/site/libddp/__init__.py"
  run "$root/scripts/api-docs" --python "$tree"
  skip_if_missing $status
  [ $status = 1 ]
  [[ $output == *"libddp.forgotten has no documentation"* ]]
}

@test "what is missing is named, with status 77" {
  run -77 "$root/scripts/api-docs" --python "$tree"
  [[ $output == *"the package or pdoc is missing"* ]]
  run -77 env PATH=/nonexistent "$(python3 -c 'import sys; print(sys.executable)')" "$root/scripts/api-docs" --cpp "$tree"
  [[ $output == *"doxygen is missing"* ]]
}
