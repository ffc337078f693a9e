#!/usr/bin/env bats
# The plugin's Debian package, upgraded and removed while a step runs: that goes on, later ones get what is there then. dpkg works
# in a folder in place of /; of its settings the test makes the cluster's.

load ../support/cluster_jobs

setup_file() {
  [ -n "${DDP_CLUSTER_DIR:-}" ] || return 0
  local root bin
  root=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
  bin=${DDP_BIN_DIR:-$root/build/dev/bin}
  export PACKAGES=$DDP_CLUSTER_DIR/shared/packages
  mkdir -p "$PACKAGES"
  cpack --config "${bin%/bin}/CPackConfig.cmake" -G DEB -D CPACK_COMPONENTS_ALL=slurm_plugin -B "$PACKAGES/build" \
    >"$PACKAGES/log" 2>&1 || { cat "$PACKAGES/log" >&2; return 1; }
  mv "$PACKAGES"/build/*.deb "$PACKAGES/this.deb"
  dpkg-deb -R "$PACKAGES/this.deb" "$PACKAGES/next"
  sed -i 's/^Version: .*/&.1/' "$PACKAGES/next/DEBIAN/control"
  dpkg-deb -b "$PACKAGES/next" "$PACKAGES/next.deb" >/dev/null
}
teardown_file() {
  [ -n "${DDP_CLUSTER_DIR:-}" ] || return 0
  rm -rf "$PACKAGES" "$DDP_CLUSTER_DIR/etc/plugstack.conf.d/ddp.conf"
}

setup() {
  cluster_jobs_setup
  export LIMIT=60 SLURM_MPI_TYPE=pmi2
  system=$shared/system settings=$DDP_CLUSTER_DIR/etc/plugstack.conf.d/ddp.conf
  (umask 022 && mkdir -p "$system"/var/lib/dpkg/{info,updates})
  touch "$system"/var/lib/dpkg/{status,available}
  facts='echo "FACTS RANK=${RANK-none}"'
}

# package DPKG_WORDS...: what apt does on a host.
package() {
  local own=$system/etc/slurm/plugstack.conf.d/ddp.conf
  (umask 022 && dpkg --root="$system" --force-depends --force-script-chrootless --log=/dev/null "$@")
  if [ -e "$own" ]; then
    sed "s| /usr/| $system/usr/|" "$own" >"$settings.new"
    mv "$settings.new" "$settings"
  else
    rm -f "$settings"
  fi
}

@test "upgrade and removal while a step runs: it ends well, later ones follow" {
  local later
  package -i "$PACKAGES/this.deb"
  start srun --ddp -N4 -n4 bash -c "echo \"up \$RANK\"; while [ ! -e $shared/go ]; do sleep 0.1; done
    (exec 3<>/dev/tcp/\$MASTER_ADDR/\$MASTER_PORT) && echo \"store \$RANK\" && touch $shared/met.\$RANK || exit
    while [ \$(ls $shared/met.* | wc -l) -lt 4 ]; do sleep 0.1; done" # the store ends with rank 0
  says 4 "up [0-3]"
  later=$(on_ctl sbatch --parsable --hold --ddp -N1 -n1 -o "$shared/later" --wrap "srun sh -c '$facts'")

  package -i "$PACKAGES/next.deb"
  run srun --ddp -N1 -n1 sh -c "$facts"
  succeeded
  [[ $output == *"RANK=0"* ]]

  package -r slurm-plugin-ddp
  [ ! -e "$system/usr/lib/slurm/spank_ddp.so" ]
  run srun -N1 -n1 sh -c "$facts"
  [ "$output" = "FACTS RANK=none" ] # without a word about a plugin
  run srun --ddp -N1 -n1 true
  [ "$status" -ne 0 ] && [[ $output == *"unrecognized option '--ddp'"* ]]
  printf '#!/bin/sh\n#SBATCH --ddp\ntrue\n' >"$shared/script"
  run on_ctl sbatch "$shared/script"
  [ "$status" -ne 0 ] && [[ $output == *"unrecognized option '--ddp'"* ]]
  # A job that had asked for it before starts, and its steps get nothing.
  on_ctl scontrol release "$later"
  eventually 60 grep -q FACTS "$shared/later"
  grep -qx "FACTS RANK=none" "$shared/later"

  touch "$shared/go"
  finish
  succeeded
  [ "$(grep -c '^store [0-3]$' <<<"$output")" -eq 4 ]

  package -i "$PACKAGES/next.deb"
  run srun --ddp -N1 -n1 sh -c "$facts"
  [[ $output == *"RANK=0"* ]]
  package -P slurm-plugin-ddp
  [ -z "$(find "$system" -name '*ddp*')" ]
}

# docs/reference/admin.md has these words of Slurm's.
@test "a plugin that is gone, or of another release: two lines from srun, and the tasks run" {
  echo "optional $shared/spank_ddp.so" >"$settings"
  run srun -N1 -n1 echo ran
  succeeded
  [[ $output == *"error: plugin_load_from_file: dlopen($shared/spank_ddp.so): "*"cannot open shared object file"* ]]
  [[ $output == *"error: spank: $shared/spank_ddp.so: Dlopen of plugin file failed"*ran ]]
  [ "$(wc -l <<<"$output")" -eq 3 ]
  gcc -shared -fPIC -x c -o "$shared/spank_ddp.so" - <<'C'
const char plugin_name[] = "ddp", plugin_type[] = "spank";
const unsigned int plugin_version = 0x0a0100, spank_plugin_version = 1;
int slurm_spank_init(void* spank, int argc, char** argv) { return 0; }
C
  run srun -N1 -n1 echo ran
  succeeded
  [[ $output == *"Incompatible Slurm plugin $shared/spank_ddp.so version (10.01.0)"* ]]
  [[ $output == *"error: spank: $shared/spank_ddp.so: Incompatible plugin version"*ran ]]
  [ "$(wc -l <<<"$output")" -eq 3 ]
}
