# For bats files that start steps with `srun --ddp`: the plugin in the cluster's configuration, commands on the controller,
# and what must be gone afterwards.

load ../support/cluster_jobs

# The plugin stack is read by every srun and slurmstepd, so a file is all that it takes.
spank_jobs_setup_file() {
  [ -n "${DDP_CLUSTER_DIR:-}" ] || return 0
  local root bin
  root=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
  bin=${DDP_BIN_DIR:-$root/build/dev/bin}
  bin=$(without_blanks "${bin%/bin}")/bin
  export DDP_STEP="$bin/ddp-step" SPANK_PLUGIN="${bin%/bin}/lib/slurm/spank_ddp.so"
  [ -x "$DDP_STEP" ] && [ -e "$SPANK_PLUGIN" ] || { echo "no $DDP_STEP and $SPANK_PLUGIN; build first" >&2; return 1; }
  use_helper "$DDP_STEP"
}

spank_jobs_teardown_file() {
  [ -n "${DDP_CLUSTER_DIR:-}" ] || return 0
  rm -f "$(plugin_line)"
  # A step that Slurm ended keeps its nodes for a while, and the next file counts on all of them.
  eventually 60 nodes_are_idle || true
}
nodes_are_idle() { ! "$BATS_TEST_DIRNAME/slurm_cluster" run sinfo -h -N -o %T | grep -qvx idle; }

spank_jobs_setup() {
  cluster_jobs_setup
  LIMIT=60
  # Starts steps faster than PMIx. Tests of the choice itself unset it.
  export SLURM_MPI_TYPE=pmi2
}

setup_file() { spank_jobs_setup_file; }
teardown_file() { spank_jobs_teardown_file; }
setup() { spank_jobs_setup; }

plugin_line() { echo "$DDP_CLUSTER_DIR/etc/plugstack.conf.d/ddp.conf"; }

# use_helper PATH: what takes the place of ddp-step.
use_helper() { echo "optional $SPANK_PLUGIN helper=$1" >"$(plugin_line)"; }

# batch COMMANDS OPTION...: a batch script of these commands, run to its end; sets status and output. sbatch --wait looks
# only every ten seconds.
batch() {
  local id script="$shared/script"
  rm -f "$shared"/batch.*
  printf '#!/bin/bash\n%s\n' "$1" >"$script"
  shift
  id=$(on_ctl sbatch --parsable -o "$shared/batch.%a" "$@" "$script") || { echo "$id"; return 1; }
  eventually 60 batch_ended "$id" || { on_ctl scancel "$id"; cat "$shared"/batch.*; return 1; }
  status=0
  ! on_ctl scontrol show job -o "$id" | grep -vq 'JobState=COMPLETED' || status=1
  output=$(cat "$shared"/batch.*)
}
batch_ended() { ! on_ctl scontrol show job -o "$1" | grep -Eq 'JobState=(PENDING|RUNNING|CONFIGURING|COMPLETING)'; }

# Nodes' processes are in the controller's process namespace, too.
running() { "$cluster" run pgrep "$@" >/dev/null; }
not_running() { ! running "$@"; }
# store_ports [run | on NODE], port_is_free PORT [run | on NODE]: beside srun on the controller, or on a node.
store_ports() { "$cluster" "${@:-run}" ss -Hltnp | sed -n 's/.*:\([0-9]*\) .*"ddp-step".*/\1/p' | sort -u; }
port_is_free() { ! "$cluster" "${@:2}" ss -Hltn | grep -q ":$1 "; }

# Files in the folders that each node has for itself; the controller's are those of the host. Not those of Slurm's own PMIx,
# which it removes late after a SIGKILL.
left_files() {
  local node
  ls -A -I 'spmix_appdir_*' "$DDP_CLUSTER_DIR"/node/*/tmp
  for node in n0 n1 n2 n3; do "$cluster" on $node ls -A /dev/shm; done
}

nodes_in_service() { ! "$cluster" run sinfo -h -N -o '%N %T' | grep -Eq 'drain|down|fail'; }

# Nothing of steps with --ddp is left anywhere, and no node was taken out of service.
clean() {
  eventually 20 not_running -x ddp-step || { "$cluster" run ps axf; return 1; }
  nodes_in_service || { "$cluster" run sinfo -N -o '%N %T %E'; return 1; }
}

# The value of NAME in every task's line "FACTS <rank> NAME=VALUE ...", each once.
fact() { sed -nE "s/^FACTS (.* )?$1=([^ ]*).*/\2/p" <<<"$output" | sort -u; }
