#!/usr/bin/env bats
# scripts/uninstall: which folders it leaves. tests/packaging/install.bats has a real installation.

bats_require_minimum_version 1.5.0

setup() { uninstall=$BATS_TEST_DIRNAME/../../scripts/uninstall; }

# installed PREFIX: files as CMake would install them, and their list.
installed() {
  local file
  mkdir -p list
  : >list/install_manifest.txt
  for file in bin/ddprun lib/libddp.so lib/slurm/spank_ddp.so share/man/man1/ddprun.1 share/doc/libddp/README.md "share/x y/z"; do
    mkdir -p "$(dirname "$1/$file")"
    touch "$1/$file"
    echo "$1/$file" >>list/install_manifest.txt
  done
}

@test "of a prefix of its own nothing is left, whatever its name" {
  cd "$BATS_TEST_TMPDIR"
  installed "$PWD/opt/a b/tool"
  touch "opt/other"
  run -0 "$uninstall" list
  [ "$(find opt -mindepth 1 | sort | tr '\n' ' ')" = "opt/a b opt/other " ]
}

@test "of a prefix with other things only what is empty goes" {
  cd "$BATS_TEST_TMPDIR"
  installed "$PWD/opt/tool"
  touch opt/tool/lib/other.so
  run -0 "$uninstall" list
  [ "$(find opt/tool | sort | tr '\n' ' ')" = "opt/tool opt/tool/lib opt/tool/lib/other.so " ]
}
