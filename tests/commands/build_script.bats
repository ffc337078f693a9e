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

@test "what a build lacks is named at once, with the packages that have it" {
  local root
  root=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
  PATH=${PATH#"$tree/bin:"}
  mkdir "$tree/none" "$tree/some"
  configure() { run env PKG_CONFIG_LIBDIR="$1" PKG_CONFIG_PATH= timeout 120 cmake -S "$root" -B "$tree/build" -DDDP_WITH_CUDA=OFF; }
  configure "$tree/none"
  [ "$status" -ne 0 ]
  said=$(tr -s ' \n' ' ' <<<"$output")
  echo "$said"
  [[ $said == *"not found: PMIx with its headers (pmix.pc), hwloc 2.5 or newer (hwloc.pc), libsodium (libsodium.pc)."* ]]
  [[ $said == *"apt-get install libpmix-dev libhwloc-dev libsodium-dev "* ]]
  [[ $said == *"dnf install pmix-devel hwloc-devel libsodium-devel "* ]]
  [[ $said == *"scripts/dependencies build"*"PKG_CONFIG_PATH="* ]]
  for name in hwloc libsodium; do
    printf 'Name: %s\nDescription: a stand-in\nVersion: 2.9\n' $name >"$tree/some/$name.pc"
  done
  configure "$tree/some"
  [ "$status" -ne 0 ]
  said=$(tr -s ' \n' ' ' <<<"$output")
  [[ $said == *"not found: PMIx with its headers (pmix.pc). "*"apt-get install libpmix-dev scripts/"* ]]
}

@test "scripts explain themselves without doing anything, and a site's own library counts as there" {
  local scripts=$BATS_TEST_DIRNAME/../../scripts
  run -0 "$scripts/dependencies" --help
  [[ $output == *"scripts/dependencies --list GROUP..."* ]]
  run -0 timeout 20 "$scripts/demo" --help
  [[ $output == *"--epochs N"* && $output != *building* ]]
  # A Debian without the package, whose user has PMIx elsewhere.
  printf '#!/bin/sh\nexit 1\n' >"$tree/bin/dpkg-query"
  printf '#!/bin/sh\necho 1000\n' >"$tree/bin/id"
  printf '#!/bin/sh\n[ "$2" = pmix ] || [ "$2" = libsodium ]\n' >"$tree/bin/pkg-config"
  chmod +x "$tree/bin/"*
  run -1 "$scripts/dependencies" build
  [[ $output == *" libhwloc-dev "* && $output != *libpmix-dev* && $output != *libsodium-dev* ]]
}
