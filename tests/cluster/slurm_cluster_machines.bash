# The machines of slurm_cluster, which sources this: what the controller and each node do in their new namespaces, from their
# process 1 until their end. Uses slurm_cluster's $self, die and kSlurmctldPort; the state folder comes as an argument.

# Process 1 of the controller, in new namespaces.
be_controller() {
  local i pid slurmctld name nodes=()
  dir=${1#--state=} cpus=$2
  shift 2
  IFS=, read -ra node_cpus <<<"$cpus"
  read -r pid _ </proc/self/stat # still the caller's /proc: the number by which the host knows this process
  mount -t proc proc /proc
  readlink /proc/self/ns/pid >"$dir/controller.ns"
  echo "$pid" >"$dir/controller.pid"
  hostname ctl
  mount --bind "$dir/etc/hosts" /etc/hosts
  # libpmix tries for two seconds to reach the host's munged, if that has left its socket behind.
  [ ! -d /run/munge ] || mount -t tmpfs tmpfs /run/munge
  munged --force --socket="$dir/munge/socket" --key-file="$dir/munge/key" --pid-file="$dir/munge/pid" \
    --log-file="$dir/log/munged.log" --seed-file="$dir/munge/seed" &
  pid=$!
  {
    echo "link set lo up"
    echo "link add cluster0 type bridge"
    echo "address add 10.78.0.254/24 dev cluster0"
    echo "link set cluster0 up"
  } | ip -batch -
  wait $pid
  slurmctld -D -f "$dir/etc/slurm.conf" &
  slurmctld=$!
  for ((i = 0; i < ${#node_cpus[@]}; i++)); do
    name=n$i
    mkdir -p "$dir/node/$name"/{tmp,spool}
    chmod 1777 "$dir/node/$name/tmp"
    : >"$dir/netns/$name"
    unshare --net="$dir/netns/$name" true
    echo "link add $name type veth peer name eth0 netns $dir/netns/$name"
    echo "link set $name master cluster0 up"
  done >"$dir/links"
  ip -batch "$dir/links"
  # A slurmd whose first registration fails tries again only seconds later.
  until (exec 3<>"/dev/tcp/10.78.0.254/$kSlurmctldPort") 2>/dev/null; do
    kill -0 "$slurmctld" 2>/dev/null || die "slurmctld ended while starting; its log is $dir/log/slurmctld.log"
    sleep 0.02
  done
  for ((i = 0; i < ${#node_cpus[@]}; i++)); do
    nsenter --net="$dir/netns/n$i" unshare --mount --uts --ipc --pid --fork --kill-child=KILL \
      bash "$self" be_node "$dir" "$i" "$@" >"$dir/log/n$i.log" 2>&1 &
    nodes+=($!)
  done
  # The caller has the deadline; this loop ends with it.
  until sinfo_says_idle; do
    for pid in "${nodes[@]}"; do
      kill -0 "$pid" 2>/dev/null || die "a node ended while starting; its log is in $dir/log"
    done
    sleep 0.05
  done
  : >"$dir/ready"
  # As process 1 it inherits orphans; bash reaps them while it waits.
  sleep infinity &
  wait $!
}

sinfo_says_idle() {
  local count
  count=$(SLURM_CONF=$dir/etc/slurm.conf sinfo -h -N -o %T 2>/dev/null | grep -cx idle) || true
  [ "$count" = ${#node_cpus[@]} ]
}

# Process 1 of node $2.
be_node() {
  local name=n$2 number=$2 pid share
  dir=$1
  shift 2
  read -r pid _ </proc/self/stat # still the controller's /proc
  mount -t proc proc /proc
  hostname "$name"
  ip -batch - <<LINKS
link set lo up
address add 10.78.0.$((number + 1))/24 dev eth0
link set eth0 up
LINKS
  for share in "$@" "$dir"; do
    case $share in
      /tmp/*) # goes to the same place in the node's own /tmp, before that covers the shared one
        mkdir -p "$dir/node/$name$share"
        mount --bind "$share" "$dir/node/$name$share"
        ;;
    esac
  done
  mount --rbind "$dir/node/$name/tmp" /tmp
  mount -t tmpfs -o mode=1777 tmpfs /dev/shm
  mount -t sysfs sysfs /sys # the inherited one shows the network interfaces of the host
  echo "$pid" >"$dir/node/$name/pid"
  # A node ends with its slurmd, as a machine does that loses its power; but while the file `keep` is there, the node waits
  # for the end of the file and starts slurmd again.
  while :; do
    env --default-signal=INT,QUIT slurmd -D -N "$name" -f "$dir/etc/slurm.conf" & # bash has & ignore those two
    wait $! || true
    [ -e "$dir/node/$name/keep" ] || break
    while [ -e "$dir/node/$name/keep" ]; do sleep 0.1; done
  done
}
