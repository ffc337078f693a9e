#!/usr/bin/env bats
# scripts/ddp-plugin: whether Slurm comes from its plugstack.conf to the plugin, and what is said of slips. Its tree is a
# stand-in; tests/packaging/install.bats has a real one.

bats_require_minimum_version 1.5.0

setup() {
  prefix=$BATS_TEST_TMPDIR/tree
  mkdir -p "$prefix/share/libddp/scripts" "$prefix/lib/slurm" "$BATS_TEST_TMPDIR/bin" "$BATS_TEST_TMPDIR/etc/slurm"
  cp "$BATS_TEST_DIRNAME/../../scripts/ddp-plugin" "$prefix/share/libddp/scripts/"
  touch "$prefix/lib/slurm/spank_ddp.so"
  switch=$prefix/share/libddp/scripts/ddp-plugin
  etc=$BATS_TEST_TMPDIR/etc/slurm
  conf=$etc/plugstack.conf.d
  stack=$etc/plugstack.conf
  export SLURM_CONF=$etc/slurm.conf PATH=$BATS_TEST_TMPDIR/bin:$PATH
  printf '#!/bin/sh\n' >"$BATS_TEST_TMPDIR/bin/srun"
  chmod +x "$BATS_TEST_TMPDIR/bin/srun"
}

@test "status says that plugstack.conf is not there, or does not include the plugin" {
  run -0 "$switch" on
  [[ $output == *"Add to $stack the line: include $conf/*.conf"* ]]
  run -1 "$switch" status
  [[ $output == *"names $prefix/lib/slurm/spank_ddp.so, but Slurm does not come to it: $stack is not there"* ]]
  printf '# include %s/*.conf\nrequired /other.so\ninclude %s/other/*.conf\n' "$conf" "$etc" >"$stack"
  run -1 "$switch" status
  [[ $output == *"$stack does not include it, so that srun does not know --ddp; add to it the line: include $conf/*.conf" ]]
  run -0 "$switch" on
  [[ $output == *"Add to $stack"* ]]
}

@test "status follows includes as Slurm does" {
  "$switch" on >/dev/null
  local line
  for line in "include $conf/*.conf" "include plugstack.conf.d/*" "  include	$conf/ddp.conf # libddp's" "include $etc/more.conf"; do
    echo "$line" >"$stack"
    echo "include plugstack.conf.d/d*.conf" >"$etc/more.conf"
    run -0 "$switch" status
    [[ $output == "$conf/ddp.conf names $prefix"* ]]
  done
  echo "include $stack" >"$stack" # a circle
  run -1 "$switch" status
  echo "include $conf/*.conf" >"$etc/elsewhere.conf"
  echo "PlugStackConfig=$etc/elsewhere.conf" >"$SLURM_CONF"
  run -0 "$switch" status
}

@test "a plugin that another user may change is named" {
  [ "$(id -u)" = 0 ] || skip "needs root, to give files away"
  run -0 "$switch" on
  [[ $output != *"belongs to"* ]]
  chown nobody "$prefix/lib/slurm/spank_ddp.so"
  run -0 "$switch" on
  [[ $output == *"ddp-plugin: $prefix/lib/slurm/spank_ddp.so belongs to nobody, who can change what Slurm's daemons then run as root"* ]]
}

@test "slips are answered by what was meant, and by whom it can be done" {
  run -2 "$switch" onn
  [[ $output == *"'onn' is none of on, off and status; did you mean 'on'?"* ]]
  run -2 "$switch" disable
  [[ $output == *"did you mean 'off'?"* ]]
  run -2 "$switch" frobnicate
  [[ $output != *"did you mean"* ]]
  run -2 "$switch"
  [[ $output == *"ddp-plugin on [FOLDER]"* ]]
  [ "$(id -u)" = 0 ] || skip "needs root, to be somebody else"
  local open
  open=$(mktemp -d /tmp/ddp-plugin-XXXXXX)
  cp -r "$prefix" "$etc" "$open/"
  chmod -R a+rX "$open"
  run -1 env SLURM_CONF="$open/slurm/slurm.conf" setpriv --reuid=65534 --clear-groups "$open/tree/share/libddp/scripts/ddp-plugin" on
  rm -r "$open"
  [[ $output == "ddp-plugin: you may not write to $open/slurm: run it as root"* ]] || { echo "$output"; return 1; }
}
