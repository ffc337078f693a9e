#!/bin/bash
# What tests/packaging/upgrade.bats runs on the controller of a Slurm cluster: BOTH has two versions of the package, own and next.
#
#   upgrade_on_slurm.sh BOTH
set -euo pipefail
both=$1
cd /tmp
export PYTHONDONTWRITEBYTECODE=1
plugin() { echo "optional $both/$1/libddp/lib/slurm/spank_ddp.so helper=$both/$2/libddp/libexec/libddp/ddp-step"; }
etc=$(dirname "$SLURM_CONF")
for pair in "own next" "next own"; do
  read -r one other <<<"$pair"
  plugin "$one" "$other" >"$etc/plugstack.conf.d/ddp.conf"
  echo "== plugin of $one, helper of $other"
  PYTHONPATH=$both/$one timeout 60 srun --ddp -w n0,n1 -N2 --ntasks-per-node=2 python3 "$both/rank.py" 2>&1
  plugin "$one" "$one" >"$etc/plugstack.conf.d/ddp.conf"
  mkdir -p "$both/srun-$one"
  plugin "$other" "$other" >"$both/srun-$one/plugstack.conf"
  sed "s|^PlugStackConfig=.*|PlugStackConfig=$both/srun-$one/plugstack.conf|" "$SLURM_CONF" >"$both/srun-$one/slurm.conf"
  cp "$etc/cgroup.conf" "$both/srun-$one"
  echo "== srun's host has $other, the nodes have $one"
  SLURM_CONF=$both/srun-$one/slurm.conf PYTHONPATH=$both/$one timeout 60 srun --ddp -w n0,n1 -N2 --ntasks-per-node=2 python3 "$both/rank.py" 2>&1
done
echo "== ranks of both"
timeout 60 srun --mpi=pmix -w n0,n1 -N2 --ntasks-per-node=2 bash -c '[ $SLURM_NODEID = 0 ] && v=own || v=next; PYTHONPATH=$0/$v exec python3 $0/rank.py' "$both" 2>&1 ||
  [ $? != 124 ]
