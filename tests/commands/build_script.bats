#!/usr/bin/env bats
# scripts/build: which packages it needs for what, and how it configures. Its tools are stand-ins that write down what
# they are called with.

bats_require_minimum_version 1.5.0

setup() {
  tree=$BATS_TEST_TMPDIR/tree
  mkdir -p "$tree/scripts" "$tree/bin"
  cp "$BATS_TEST_DIRNAME/../../scripts/build" "$tree/scripts/"
  touch -d '1 hour ago' "$tree/CMakePresets.json"
  cat >"$tree/scripts/dependencies" <<'END'
#!/bin/sh
echo "packages: $*" >>"$CALLS"
END
  cat >"$tree/bin/cmake" <<'END'
#!/bin/bash
[ "$1" = --preset ] || exit 0
echo "cmake: $*" >>"$CALLS"
mkdir -p "build/$2"
touch "build/$2/build.ninja"
for word in "${@:3}"; do [[ $word != -D* ]] || { word=${word#-D}; echo "${word/=/:BOOL=}"; }; done >"build/$2/CMakeCache.txt"
END
  chmod +x "$tree/scripts/dependencies" "$tree/bin/cmake"
  export CALLS=$BATS_TEST_TMPDIR/calls PATH=$tree/bin:$PATH
}

# calls ARGUMENT...: what scripts/build called this time.
calls() {
  : >"$CALLS"
  "$tree/scripts/build" "$@"
  cat "$CALLS"
}

@test "--without-tests needs neither the tests' packages nor the benchmarks', whatever the preset" {
  [ "$(calls --without-tests release)" = $'packages: build\ncmake: --preset release -DDDP_BUILD_BENCHMARKS=OFF' ]
  [ "$(calls --without-tests dev)" = $'packages: build\ncmake: --preset dev -DDDP_BUILD_TESTS=OFF' ]
}

@test "a folder without tests or benchmarks gets them when they are wanted, and keeps them" {
  for preset in dev release; do
    calls --without-tests $preset
    [ "$(calls --without-tests $preset)" = "packages: build" ]  # configured already
    run calls $preset
    echo "$output"
    [ "${lines[0]}" = "packages: build test" ]
    [[ ${lines[1]} == *"--preset $preset -DDDP_BUILD_"*=ON ]]
    [ "$(calls $preset)" = "packages: build test" ]
    [ "$(calls --without-tests $preset)" = "packages: build" ]
  done
}
