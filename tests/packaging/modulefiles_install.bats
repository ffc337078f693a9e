#!/usr/bin/env bats
# What installing makes of the modulefiles: the prefix and the folders in them, their component, and when there are none.

bats_require_minimum_version 1.5.0
load modulefiles

setup_file() { modulefiles_setup_file; }
setup() { modulefiles_setup; }

# recorded PREFIX FOLDER: FOLDER has both modulefiles, and their prefix is PREFIX.
recorded() {
  grep -qxF "local recorded = [==[$1]==]" "$2/libddp/0.1.0.lua"
  grep -qxF "set recorded {$1}" "$2/libddp/0.1.0"
}

@test "the prefix is that of cmake --install, without DESTDIR" {
  cd "$BATS_TEST_TMPDIR"
  cmake --install "$TREES/build-0.1.0" --prefix "$PWD/a b"
  recorded "$PWD/a b" "a b/share/modulefiles"
  cmake --install "$TREES/build-0.1.0" --prefix relative
  recorded "$PWD/relative" relative/share/modulefiles
  DESTDIR=$PWD/stage cmake --install "$TREES/build-0.1.0" --prefix /opt/libddp
  recorded /opt/libddp stage/opt/libddp/share/modulefiles
  DESTDIR=$PWD/stage cmake --install "$TREES/build-0.1.0"
  recorded /nowhere stage/nowhere/share/modulefiles
  DESTDIR=$PWD/root cmake --install "$TREES/build-0.1.0" --prefix /
  recorded / root/share/modulefiles
}

@test "the modulefiles belong to the component runtime" {
  cmake --install "$TREES/build-0.1.0" --component development --prefix "$BATS_TEST_TMPDIR/tree"
  [ ! -e "$BATS_TEST_TMPDIR/tree" ]
  cmake --install "$TREES/build-0.1.0" --component runtime --prefix "$BATS_TEST_TMPDIR/tree"
  recorded "$BATS_TEST_TMPDIR/tree" "$BATS_TEST_TMPDIR/tree/share/modulefiles"
}

@test "folders as the installation chose them" {
  using lmod lua
  configure 0.1.0 "$BATS_TEST_TMPDIR/build" -DCMAKE_INSTALL_LIBDIR=lib/x86_64-linux-gnu -DCMAKE_INSTALL_DATADIR=data \
    -DCMAKE_INSTALL_BINDIR=programs
  one=$BATS_TEST_TMPDIR/before modulepath=$BATS_TEST_TMPDIR/tree/data/modulefiles
  cmake --install "$BATS_TEST_TMPDIR/build" --prefix "$one"
  mv "$one" "$BATS_TEST_TMPDIR/tree"
  one=$BATS_TEST_TMPDIR/tree
  mkdir -p "$one/lib/x86_64-linux-gnu"
  touch "$one/lib/x86_64-linux-gnu/libddp.so.0.1.0"
  session '
    module load libddp || fail "not loaded"
    expect LIBDDP_ROOT "$one"
    expect PATH "$one/programs:/usr/local/bin:/usr/bin:/bin"
    expect LD_LIBRARY_PATH "$one/lib/x86_64-linux-gnu"'
  [ "$status" -eq 0 ]
}

@test "a folder outside the prefix is warned of, and no modulefile installed" {
  run configure 0.1.0 "$BATS_TEST_TMPDIR/build" -DCMAKE_INSTALL_LIBDIR=/usr/lib64
  [ "$status" -eq 0 ]
  [[ ${output//[[:space:]]/} == *"modulefilesarenotinstalled:CMAKE_INSTALL_LIBDIRistheabsolutepath/usr/lib64"* ]]
  cmake --install "$BATS_TEST_TMPDIR/build" --prefix "$BATS_TEST_TMPDIR/tree"
  [ ! -e "$BATS_TEST_TMPDIR/tree" ]
}
