#!/usr/bin/env bats
# A build folder of a plain user from which root installs stays that user's. A project with what makes files when it is
# installed stands for the whole.

bats_require_minimum_version 1.5.0

setup() {
  [ "$(id -u)" = 0 ] || skip "needs root"
  umask 022
  unset DESTDIR "${!CMAKE_@}"
  ROOT=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
  folder=$(mktemp -d /tmp/ddp-owner.XXXXXX) # bats' own folders are root's alone
  mkdir "$folder/project"
  cat >"$folder/project/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.25)
project(libddp VERSION 0.1.0 LANGUAGES NONE)
include(GNUInstallDirs)
list(APPEND CMAKE_MODULE_PATH $ROOT/cmake)
include(DdpBuildFolder)
add_subdirectory($ROOT/modulefiles modulefiles)
install(FILES $ROOT/LICENSE DESTINATION share COMPONENT development)
END
  chmod 0755 "$folder"
  chown -R nobody "$folder"
  as_user cmake -S "$folder/project" -B "$folder/build" -DCMAKE_INSTALL_PREFIX=/nowhere
}

teardown() { [ -z "${folder:-}" ] || rm -rf "$folder"; }

as_user() { setpriv --reuid=nobody --regid=nogroup --clear-groups env HOME="$folder" "$@"; }

foreign() { find "$folder/build" ! -user nobody; }

@test "after root has installed, nothing there is root's, and the user installs elsewhere" {
  cmake --install "$folder/build" --prefix "$folder/system"
  cmake --install "$folder/build" --prefix "$folder/system" --component runtime
  [ -z "$(foreign)" ] || { foreign; return 1; }
  [ -s "$folder/system/share/modulefiles/libddp/0.1.0.lua" ]
  [ "$(wc -l <"$folder/build/install_manifest_runtime.txt")" -ge 1 ]
  as_user cmake --install "$folder/build" --prefix "$folder/own"
  as_user cmake --install "$folder/build" --prefix "$folder/own" --component runtime
  [ -s "$folder/own/share/modulefiles/libddp/0.1.0" ]
  grep -q "$folder/own/share/LICENSE" "$folder/build/install_manifest.txt"
}

@test "what an installation of root's has left before does not stop the user" {
  echo left >"$folder/build/install_manifest.txt"
  echo left >"$folder/build/modulefiles/0.1.0.lua"
  as_user cmake --install "$folder/build" --prefix "$folder/own"
  grep -q "$folder/own" "$folder/own/share/modulefiles/libddp/0.1.0.lua"
  [ -z "$(foreign)" ] || { foreign; return 1; }
}
