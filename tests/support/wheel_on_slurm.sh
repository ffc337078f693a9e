#!/bin/bash
# What tests/packaging/wheel.bats runs on the controller of a Slurm cluster: the wheel in HOME/venv, used by the user nobody, and
# the plugin of the same wheel in root's folder ADMIN. Root cannot read HOME, as one on NFS with root_squash.
#
#   wheel_on_slurm.sh HOME ADMIN
set -euo pipefail
home=$1 admin=$2
as_nobody() {
  setpriv --reuid=nobody --regid=nogroup --clear-groups env -i -C "$home" HOME="$home" PATH="$home/venv/bin:/usr/bin:/bin" SLURM_CONF="$SLURM_CONF" \
    PYTHONDONTWRITEBYTECODE=1 timeout 60 "$@"
}
! ls "$home" 2>/dev/null || { echo "root can read $home"; exit 1; }
as_nobody tee rank.py >/dev/null <<'END'
import array, sys, libddp
world = libddp.init()
numbers = array.array("f", [1.0])
world.process_group().all_reduce(numbers, "sum").wait()
print(f"{sys.argv[1]}: sum of {numbers[0]:.0f}\n", end="", flush=True)
END
as_nobody salloc -Q -N2 ddprun --nproc-per-node=1 rank.py ddprun
as_nobody srun --mpi=pmix -N2 -n4 python rank.py pmix
as_nobody srun --mpi=pmi2 -N2 -n4 python rank.py pmi2
"$admin/libddp/share/libddp/scripts/ddp-plugin" on
as_nobody srun --ddp -N2 -n4 python rank.py ddp
as_nobody srun --ddp -N2 -n4 sh -c '[ $RANK != 2 ] || exit 3; sleep 60' || true
