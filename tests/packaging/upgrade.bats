#!/usr/bin/env bats
# Two really built versions beside each other: the wheel (DDP_WHEEL, else that of build/wheelhouse) and the next version's, which
# DDP_NEXT_WHEEL names. What works across versions works; the rest ends in an error that names both. tests/commands/upgrades.bats
# has the same of patched copies, in CI.

load ../support/ddprun_jobs

setup_file() {
  export SOURCE
  SOURCE=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
  WHEEL=${DDP_WHEEL:-$(ls -t "$SOURCE"/build/wheelhouse/*.whl 2>/dev/null | head -n 1)}
  [ -n "${DDP_NEXT_WHEEL:-}" ] && [ -n "$WHEEL" ] || return 0
  WHEEL=$(realpath "$WHEEL") NEXT_WHEEL=$(realpath "$DDP_NEXT_WHEEL")
  export WHEEL NEXT_WHEEL BOTH
  BOTH=$(mktemp -d /tmp/ddp-upgrade.XXXXXX) # other users' steps read it, too
  chmod 755 "$BOTH"
  unzip -q "$WHEEL" -d "$BOTH/own"
  unzip -q "$NEXT_WHEEL" -d "$BOTH/next"
  chmod -R u+rwX,go+rX "$BOTH"
  cat >"$BOTH/rank.py" <<'PROGRAM'
import array, libddp
world = libddp.init()
numbers = array.array("f", [1.0])
world.process_group().all_reduce(numbers, "sum").wait()
print(f"rank {world.rank}: libddp {libddp.__version__}: sum of {numbers[0]:.0f}\n", end="", flush=True)
PROGRAM
}

teardown_file() { [ -z "${BOTH:-}" ] || rm -r "$BOTH"; }

setup() {
  [ -n "${BOTH:-}" ] || skip "needs DDP_NEXT_WHEEL, and a wheel in build/wheelhouse; scripts/wheel makes both"
  ddprun_jobs_setup
  cd "$BATS_TEST_TMPDIR"
  own=$(version own) next=$(version next)
  [ "$own" != "$next" ]
}

version() { "$BOTH/$1/libddp/bin/ddprun" --version | sed 's/.* //'; }

# of NAME COMMAND...: in a job where Python finds this one's package.
of() { env PYTHONPATH="$BOTH/$1" PYTHONDONTWRITEBYTECODE=1 timeout 60 "${@:2}"; }
expect() { [[ $output == *"$1"* ]] || { echo "status $status, not said: $1"; echo "$output"; return 1; }; }

@test "ranks of one version under ddprun of the other work, over PMIx" {
  for pair in "own next" "next own"; do
    read -r launcher_of ranks_of <<<"$pair"
    run -0 of "$ranks_of" "$BOTH/$launcher_of/libddp/bin/ddprun" --nproc-per-node 2 "$BOTH/rank.py"
    for rank in 0 1; do expect "rank $rank: libddp $(version "$ranks_of"): sum of 2"; done
  done
}

@test "ranks of both versions in a job: all name both" {
  run of own "$BOTH/own/libddp/bin/ddprun" --nproc-per-node 2 --no-python \
    bash -c '[ $RANK = 0 ] || export PYTHONPATH=$0/next; exec python3 "$0/rank.py"' "$BOTH"
  [ "$status" -ne 0 ] && [ "$status" -ne 124 ]
  expect "rank 0: libddp $own; rank 1: libddp $next"
  expect "install the same version on all nodes"
}

@test "agents of one version by ssh of a frontend of the other: an error that names both, and no rank starts" {
  for pair in "own next" "next own"; do
    read -r frontend agents <<<"$pair"
    printf '#!/bin/bash\ncommand=${*: -1}\nexec sh -c "${command//%s/%s}"\n' "${BOTH//\//\\/}\\/$frontend" "${BOTH//\//\\/}\\/$agents" >ssh
    chmod +x ssh
    run of own "$BOTH/$frontend/libddp/bin/ddprun" --ssh-command "$PWD/ssh" -H a,b touch started
    [ "$status" -ne 0 ] && [ "$status" -ne 124 ]
    expect "the frontend is version $(version "$frontend"), but ddprun on"
    expect "is version $(version "$agents"); install the same version on all hosts"
    [ ! -e started ]
  done
}

@test "an agent of one version at the other's coordinator is refused in words that name both, and the job goes on" {
  for pair in "own next" "next own"; do
    read -r first second <<<"$pair"
    job=(--nnodes 2 --master-port "$(free_port)" sh -c 'echo "RANK $RANK"')
    DDPRUN=$BOTH/$first/libddp/bin/ddprun
    start_agent a --node-rank 0 "${job[@]}"
    DDPRUN=$BOTH/$second/libddp/bin/ddprun start_agent b --node-rank 1 "${job[@]}"
    ended "${agents[b]}"
    [ "$status" -ne 0 ]
    output=$(cat agent.b)
    [[ $output =~ "it speaks version "[0-9]+" of ddprun's protocol; this is version "[0-9]+"; all nodes need the same version of libddp" ]] ||
      expect "is version $(version "$second"), but the coordinator's is $(version "$first")"
    start_agent c --node-rank 1 "${job[@]}"
    for name in a c; do ended "${agents[$name]}" && [ "$status" -eq 0 ]; done
    grep -hx 'RANK [01]' agent.[ac] | sort | diff - <(printf 'RANK %s\n' 0 1)
  done
}

@test "pip install -U under a running job: it ends, and restarts, with the launcher that began and the ranks that are installed" {
  python3 -m venv venv
  venv/bin/pip install -q --no-index --no-deps --disable-pip-version-check "$WHEEL"
  printf '#!/bin/bash\nexec sh -c "${*: -1}"\n' >ssh
  chmod +x ssh
  cat >program.py <<'PROGRAM'
import os, pathlib, time
again = os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
exec(open(os.environ["BOTH"] + "/rank.py").read())
if not again:
    pathlib.Path("started." + os.environ["RANK"]).touch()
    while not os.path.exists("upgraded"):
        time.sleep(0.05)
    numbers[0] = 2.0
    world.process_group().all_reduce(numbers, "sum").wait() # by the library that is mapped
    print(f"upgraded: sum of {numbers[0]:.0f}", flush=True)
    raise SystemExit(3)
PROGRAM
  venv/bin/ddprun --ssh-command "$PWD/ssh" -H a:1,b:1 --max-restarts 1 program.py >out 2>&1 3>&- &
  launcher=$!
  eventually 60 test -e started.0 -a -e started.1
  venv/bin/pip install -q -U --no-index --no-deps --disable-pip-version-check "$NEXT_WHEEL"
  [ "$(venv/bin/ddprun --version)" = "ddprun (libddp) $next" ]
  touch upgraded
  ended $launcher
  launcher=
  output=$(cat out)
  [ "$status" -eq 0 ] || { echo "$output"; return 1; }
  expect "libddp $own: sum of 2"
  expect "upgraded: sum of 4"
  for rank in 0 1; do expect "rank $rank: libddp $next: sum of 2"; done
}

@test "ddp-info of one version looks at a job of the other" {
  for pair in "own next" "next own"; do
    read -r job looks <<<"$pair"
    rm -f started.*
    env PYTHONPATH="$BOTH/$job" "$BOTH/$job/libddp/bin/ddprun" --nproc-per-node 2 --no-python python3 -c '
import os, pathlib, time
exec(open(os.environ["BOTH"] + "/rank.py").read())
pathlib.Path("started." + os.environ["RANK"]).touch()
time.sleep(100)' >out 2>&1 3>&- &
    launcher=$!
    eventually 60 test -e started.0 -a -e started.1
    run of own "$BOTH/$looks/libddp/bin/ddp-info" status --pid $launcher
    kill -TERM $launcher
    ended $launcher
    launcher=
    [ "$(grep -c 'all_reduce' <<<"$output")" -gt 0 ] || { echo "$output"; return 1; }
  done
}

@test "on Slurm: srun's plugin of one version with the helper of the other, and ranks of both over PMIx" {
  [ "$(id -u)" = 0 ] || skip "needs root, for a cluster"
  run -0 env -u TMPDIR DDP_CLUSTER_DIR="/run/ddp-upgrade-$$" "$SOURCE/tests/cluster/slurm_cluster" with --share "$BOTH" -- \
    bash "$SOURCE/tests/support/upgrade_on_slurm.sh" "$BOTH"
  for pair in "$own $next" "$next $own"; do
    read -r plugin helper <<<"$pair"
    expect "ddp-step is of libddp $helper, the plugin here of $plugin; install them from one package"
    expect "libddp's plugin here is of version $plugin, that of srun's host of $helper; install one on all"
  done
  [ "$(grep -c 'sum of 4' <<<"$output")" = 16 ] || { echo "$output"; return 1; }
  expect "ranks 0, 1: libddp $own; ranks 2, 3: libddp $next"
}
