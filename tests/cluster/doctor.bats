#!/usr/bin/env bats
# ddp-info doctor on a real Slurm cluster: nothing on healthy nodes; faults made on purpose, one at a time: that one is
# found, nothing else, and the fix that it proposes makes the finding go.

load ../support/cluster_jobs

setup() {
  cluster_jobs_setup
  # What a container that the cluster runs in has itself: a quota of processors, little locked memory, one core.
  local cache="$BATS_FILE_TMPDIR/of_outside"
  [ -e "$cache" ] || srun -N1 "$bin/ddp-info" doctor --no-job --rule cpu-quota,memlock,one-core |
    sed -nE 's/^warning ([a-z-]+): .*/\1/p' >"$cache"
  export PATH="$bin:$PATH"
  doctor="ddp-info doctor$(sed 's/^/ --skip /' "$cache" | tr -d '\n')"
  repairs=()
}

# Without srun's own words about resources that it waits for: the last step's may just be coming free.
srun() { on_ctl srun --quiet "$@"; }

teardown() {
  [ -n "${cluster:-}" ] || return 0
  local repair
  for repair in ${repairs[@]+"${repairs[@]}"}; do eval "$repair" || true; done
  cluster_jobs_teardown
}

# examine [OPTION_OF_SRUN]...: runs the doctor on four nodes.
examine() { run srun --mpi=pmix -N4 "$@" $doctor; }

# doctor_for RULE: with this one, too, whatever the container has.
doctor_for() { sed -E "s/ --skip $1( |$)/\\1/" <<<"$doctor"; }

# finds STATUS [RULE]...: what the last run found, and nothing else.
finds() {
  local expected=$1
  shift
  [ "$status" -eq "$expected" ] || { echo "status $status instead of $expected"; echo "$output"; return 1; }
  local found
  found=$(sed -nE 's/^(error|warning|info) ([a-z0-9-]+): .*/\2/p' <<<"$output" | sort -u | paste -sd' ')
  [ "$found" = "$(printf '%s\n' "$@" | sort -u | paste -sd' ')" ] || { echo "found '$found' instead of '$*'"; echo "$output"; return 1; }
}

says_line() { grep -qE -- "$1" <<<"$output" || { echo "no line like: $1"; echo "$output"; return 1; }; }

# The command or setting that the last run proposed.
fix() { sed -nE 's/^    fix: (.*)/\1/p' <<<"$output" | head -n 1; }

# set_up NODE INTERFACE: until the kernel says that it runs, which it does later.
set_up() {
  "$cluster" on "$1" ip link set "$2" up
  eventually 60 "$cluster" on "$1" grep -qx up "/sys/class/net/$2/operstate"
}

# A second network over which all nodes reach each other: net1, 10.99.0.0/24. Links are listed by number, so late.
second_network() {
  local i
  repairs+=('"$cluster" run ip link del second0')
  "$cluster" run ip link add second0 type bridge
  "$cluster" run ip link set second0 up
  for i in 0 1 2 3; do
    repairs+=("'$cluster' run ip link del second-n$i")
    "$cluster" run ip link add second-n$i type veth peer name net1 index 50 netns "$DDP_CLUSTER_DIR/netns/n$i"
    "$cluster" run ip link set second-n$i master second0 up
    "$cluster" on n$i ip addr add 10.99.0.$((i + 1))/24 dev net1
    set_up n$i net1
  done
}

@test "doctor: healthy nodes have no finding, under srun, in an allocation, under ddprun and alone" {
  for ranks in 1 2; do
    examine --ntasks-per-node=$ranks
    finds 0
    [[ ${lines[0]} =~ ^"ok: 4 nodes, $((4 * ranks)) ranks, "[0-9]+" rules, "[0-9.]+" s"$ ]]
  done
  run srun --mpi=pmi2 -N4 $doctor
  finds 0
  run allocation -N4 $doctor
  finds 0
  [[ $output == *"ok: 4 nodes, 4 ranks"* ]]
  run allocation -N2 "$bin/ddprun" --nproc-per-node 1 $doctor
  finds 0
  [[ $output == *"ok: 2 nodes, 2 ranks"* ]]
  run srun -N1 $doctor --no-job --json
  python3 -c 'import json, sys; d = json.load(sys.stdin); assert d["schema"] == "ddp-info-doctor/1" and d["findings"] == [], d' <<<"$output"
}

@test "doctor: what is wrong with a network is found, and fixed as it says" {
  second_network
  use_net1=--export=ALL,NCCL_SOCKET_IFNAME=net1
  examine $use_net1
  finds 0

  "$cluster" on n2 ip link set net1 down
  examine $use_net1
  finds 2 interface-missing
  says_line "^  n2, rank 2: NCCL_SOCKET_IFNAME=net1 matches no usable interface: there are lo, eth0, net1 \(down\)"
  set_up n2 net1
  examine $use_net1
  finds 0

  # A switch that takes less than the interfaces.
  "$cluster" run ip link set second-n1 mtu 1400
  examine $use_net1
  finds 2 mtu-lost
  says_line "^  n1, rank 1: packets of 1500 bytes to net1 are lost, small ones are not"
  "$cluster" run ip link set second-n1 mtu 1500
  examine $use_net1
  finds 0

  "$cluster" on n1 ip link set net1 mtu 9000
  examine $use_net1
  finds 1 mtu-differs
  says_line "^  n1, rank 1: net1 has MTU 9000, others in 10.99.0.0/24 have 1500"
  "$cluster" on n1 $(fix)
  examine $use_net1
  finds 0

  # Exclusions replace NCCL's own, and docker0 comes first.
  for i in 0 1 2 3; do
    repairs+=("'$cluster' on n$i ip link del docker0" "'$cluster' on n$i ip link del container")
    "$cluster" on n$i ip link add docker0 index 40 type bridge
    "$cluster" on n$i ip link add container type veth peer name inside
    "$cluster" on n$i ip link set inside up addrgenmode none
    "$cluster" on n$i ip link set container master docker0 up addrgenmode none
    "$cluster" on n$i ip addr add 172.17.0.1/16 dev docker0
    set_up n$i docker0
  done
  run on_ctl env NCCL_SOCKET_IFNAME=^lo,eth srun --mpi=pmix -N4 $doctor
  finds 2 interface-local
  says_line "^  all 4 nodes, ranks 0-3: NCCL would use docker0 \(172.17.0.1\), which reaches only this host"
  [ "$(fix)" = NCCL_SOCKET_IFNAME==net1 ]
  examine --export=ALL,"$(fix)"
  finds 0
}

@test "doctor: a second network that leads nowhere is found, and the name that it proposes avoids it" {
  for i in 0 1 2 3; do
    repairs+=("'$cluster' on n$i ip link del second")
    "$cluster" on n$i ip link add second type veth peer name nowhere
    "$cluster" on n$i ip addr add 10.98.0.$((i + 1))/24 dev second
    "$cluster" on n$i ip link set nowhere up addrgenmode none
    set_up n$i second
  done
  examine
  finds 2 interface-unreachable
  says_line "^  all 4 nodes, ranks 0-3: NCCL would use second \(10.98.0.0/24\), which is not reached from any other node: no answer"
  echo "$output"
  [[ $output =~ ,\ ([0-9]+)\.[0-9]+" s"($|$'\n') ]]
  [ "${BASH_REMATCH[1]}" -le 60 ] # long before connections would give up
  [ "$(fix)" = NCCL_SOCKET_IFNAME==eth0 ]
  examine --export=ALL,"$(fix)"
  finds 0
}

@test "doctor: limits, /dev/shm, cores, names: each is found alone, and fixed as it says" {
  # Root may lock what it wants, and is told nothing.
  run on_ctl bash -c "ulimit -l 64; srun --mpi=pmix -N4 setpriv --bounding-set=-ipc_lock $(doctor_for memlock)"
  finds 1 memlock
  says_line "^  all 4 nodes, ranks 0-3: max locked memory is 64 KiB"
  run on_ctl bash -c "ulimit -l 64; srun --mpi=pmix -N2 $doctor"
  finds 0
  run srun --mpi=pmix -N4 setpriv --bounding-set=-ipc_lock $doctor
  finds 0

  run on_ctl bash -c "ulimit -n 256; srun --mpi=pmix -N4 $doctor"
  finds 1 open-files
  enough=$(fix)
  [[ $enough == "ulimit -n 544 "* ]]
  run on_ctl bash -c "ulimit -n 256 -S; ${enough%% before*}; srun --mpi=pmix -N4 $doctor"
  finds 0

  repairs+=('"$cluster" on n2 mount -o remount,size=50% /dev/shm')
  "$cluster" on n2 mount -o remount,size=64M /dev/shm
  examine
  finds 2 shm-size
  says_line "^  n2, rank 2: /dev/shm has 64 MiB, but 128 MiB are needed"
  enough=$(fix)
  "$cluster" on n2 ${enough%%;*}
  examine
  finds 0

  first_cpu=$(python3 -c 'import os; print(min(os.sched_getaffinity(0)))')
  run srun --mpi=pmix -N4 taskset -c "$first_cpu" $(doctor_for one-core)
  finds 1 one-core
  says_line "^  all 4 nodes, ranks 0-3: it may run on one core only"
  examine
  finds 0

  sed 's/.*n1$/127.0.1.1 n1/' "$DDP_CLUSTER_DIR/etc/hosts" >"$shared/hosts"
  repairs+=('"$cluster" on n1 umount /etc/hosts')
  "$cluster" on n1 mount --bind "$shared/hosts" /etc/hosts
  examine
  finds 1 own-name
  says_line "^  n1, rank 1: n1 resolves to 127.0.1.1 on itself"
  "$cluster" on n1 umount /etc/hosts
  repairs=()
  examine
  finds 0

  # A name that two ranks have wrong.
  run srun --mpi=pmix -N4 bash -c '[ $SLURM_PROCID -lt 2 ] || export NCCL_SOCKET_INFAME=eth0; exec "$@"' bash $doctor
  finds 1 env-misspelt
  says_line "^  n\[2-3\], ranks 2-3: unrecognized variable NCCL_SOCKET_INFAME; did you mean NCCL_SOCKET_IFNAME"
  [ "$(fix)" = "rename it to NCCL_SOCKET_IFNAME" ]
  run srun --mpi=pmix -N4 --export=ALL,NCCL_SOCKET_IFNAME=eth0 $doctor
  finds 0

  examine --export=ALL,MASTER_ADDR=localhost
  finds 2 master-address
  "$cluster" on n0 python3 -m http.server 29500 >/dev/null 2>&1 3>&- &
  job=$!
  eventually 60 "$cluster" on n0 bash -c 'exec 5<>/dev/tcp/127.0.0.1/29500' 2>/dev/null
  examine --export=ALL,MASTER_ADDR=n0,MASTER_PORT=29500
  finds 2 master-port
  says_line "^  n0, rank 0: MASTER_PORT=29500: another program listens there"
  examine --export=ALL,MASTER_ADDR=n0,MASTER_PORT=29501
  finds 0

  run srun --mpi=pmix -N2 env PMIX_VERSION=6.1.0 $doctor
  finds 2 slurm-pmix
  says_line "^  all 2 nodes, ranks 0-1: Slurm [0-9]+\.[0-9.]+ with PMIx 6.1.0: programs hang in PMIx_Init"

  run on_ctl env http_proxy=http://me:hunter2@proxy srun --mpi=pmix -N4 $doctor
  finds 0 env-proxy
  says_line "^  all 4 nodes, ranks 0-3: http_proxy is set"
  [[ $output != *hunter2* ]]
  run on_ctl env http_proxy=http://me:hunter2@proxy no_proxy=n0,n1,n2,n3 srun --mpi=pmix -N4 $doctor
  finds 0

  run srun --mpi=pmix -N2 --ntasks-per-node=2 bash -c \
    '[ $SLURM_PROCID != 3 ] || exec unshare --mount bash -c "mount -t tmpfs tmpfs /dev/shm; exec \"\$@\"" bash "$@"; exec "$@"' bash $doctor
  finds 1 shm-private
  says_line "^  n1, ranks 2-3: its ranks have different file systems at /dev/shm"
  examine -N2 --ntasks-per-node=2
  finds 0
}

@test "doctor: files nccl.conf that differ between nodes are found, and equal ones are none" {
  with_file=--export=ALL,NCCL_CONF_FILE=/tmp/nccl.conf
  for i in 0 1 2 3; do
    repairs+=("'$cluster' on n$i rm -f /tmp/nccl.conf")
    "$cluster" on n$i bash -c 'echo NCCL_SOCKET_IFNAME=eth0 >/tmp/nccl.conf'
  done
  examine $with_file
  finds 0
  "$cluster" on n3 bash -c 'echo NCCL_SOCKET_IFNAME==eth0 >/tmp/nccl.conf'
  examine $with_file
  finds 1 env-conf
  says_line "^  all 4 nodes, ranks 0-3: /tmp/nccl.conf differs: [0-9a-f]+ on ranks 0-2, [0-9a-f]+ on rank 3"
  "$cluster" on n3 bash -c 'echo NCCL_CROSS_NIC=1 >/tmp/nccl.conf'
  examine $with_file
  finds 2 env-differs
  says_line "NCCL_CROSS_NIC must be equal on all ranks, but is '1' on rank 3, unset on ranks 0-2"
  [[ $(fix) == *"nccl.conf of all nodes equal"* ]]
}

@test "doctor: two NCCL versions in LD_LIBRARY_PATH are found, and one for all is none" {
  for version in 2.27.5 2.28.5 2.30.7; do
    mkdir "$shared/$version"
    printf 'const char nccl_text[] = "NCCL version %s+cuda13.0\\0NCCL_DEBUG\\0NCCL_ALGO";\n' $version |
      gcc -shared -Wl,-soname,libnccl.so.2 -o "$shared/$version/libnccl.so.2" -xc -
  done
  run srun --mpi=pmix -N4 bash -c \
    'version=2.30.7; [ $SLURM_PROCID -lt 2 ] || version=2.27.5; export LD_LIBRARY_PATH=$0/$version; exec "$@"' "$shared" $doctor
  finds 2 env-nccl-version
  says_line "2\.27\.5\+cuda13\.0 on ranks 2, 3, 2\.30\.7\+cuda13\.0 on ranks 0, 1"
  [[ $(fix) == *"LD_LIBRARY_PATH"* ]]
  run srun --mpi=pmix -N4 --export=ALL,LD_LIBRARY_PATH="$shared/2.30.7" $doctor
  finds 0
  run srun --mpi=pmix -N4 --export=ALL,LD_LIBRARY_PATH="$shared/2.28.5" $doctor
  finds 1 nccl-bad-version
  says_line "^  all 4 nodes, ranks 0-3: NCCL 2\.28\.5\+cuda13\.0: "
}

@test "doctor: rules are chosen by name, and --fail-on sets what counts" {
  run srun --mpi=pmix -N2 --export=ALL,MASTER_ADDR=localhost $doctor --skip master-address
  finds 0
  run srun --mpi=pmix -N2 --export=ALL,MASTER_ADDR=localhost $doctor --rule shm-size,one-core
  finds 0
  [[ ${lines[0]} == *" 2 rules, "* ]]
  run srun --mpi=pmix -N2 --export=ALL,MASTER_ADDR=localhost $doctor --fail-on never
  finds 0 master-address
  run srun --mpi=pmix -N2 --export=ALL,MASTER_ADDR=localhost --output="$shared/found.json" $doctor --json
  [ "$status" -eq 2 ]
  python3 -c '
import json, sys
document = json.load(sys.stdin)
assert (document["errors"], document["warnings"], document["nodes"], document["ranks"]) == (1, 0, 2, 2), document
[found] = document["findings"]
assert (found["rule"], found["severity"], found["ranks"]) == ("master-address", "error", [0, 1]), found
assert found["hosts"] == ["n0", "n1"] and "MASTER_ADDR=localhost" in found["evidence"] and "scontrol" in found["fix"], found' <"$shared/found.json"
}
