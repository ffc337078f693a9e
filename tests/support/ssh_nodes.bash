# A real sshd on nodes of the Slurm cluster, with keys, configuration and port of its own.

readonly kSshPort=10022

# ssh_nodes_setup NODE...: starts one on each, and sets ssh_command. Needs cluster and shared (cluster_jobs.bash).
ssh_nodes_setup() {
  local node
  sshd=$(PATH=$PATH:/usr/sbin command -v sshd) || skip "needs sshd (openssh-server)"
  ssh_home=$shared/ssh
  mkdir -p "$ssh_home"
  chmod 700 "$ssh_home"
  ssh-keygen -q -t ed25519 -N '' -f "$ssh_home/host_key"
  ssh-keygen -q -t ed25519 -N '' -f "$ssh_home/user_key"
  cp "$ssh_home/user_key.pub" "$ssh_home/authorized_keys"
  # The user's own keys, agent and configuration have no part in it.
  cat >"$ssh_home/config" <<CONFIG
IdentityFile $ssh_home/user_key
IdentitiesOnly yes
IdentityAgent none
UserKnownHostsFile $ssh_home/known_hosts
GlobalKnownHostsFile /dev/null
StrictHostKeyChecking yes
CONFIG
  for node in "$@"; do
    echo "[$node]:$kSshPort $(cut -d ' ' -f 1,2 "$ssh_home/host_key.pub")" >>"$ssh_home/known_hosts"
    start_sshd "$node" "$ssh_home/authorized_keys"
  done
  ssh_command="ssh -F $ssh_home/config"
}

# start_sshd NODE KEYS [LINE]: one that knows the keys in the file KEYS, with a further line of configuration.
start_sshd() {
  cat >"$ssh_home/sshd.$1" <<CONFIG
Port $kSshPort
HostKey $ssh_home/host_key
AuthorizedKeysFile $2
PidFile $ssh_home/pid.$1
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
PasswordAuthentication yes
KbdInteractiveAuthentication no
${3:-}
CONFIG
  # Its privilege separation folder is the host's; sshd checks that it is there.
  "$cluster" on "$1" sh -c 'mkdir -p /run/sshd && chmod 755 /run/sshd && exec "$@"' sh "$sshd" -f "$ssh_home/sshd.$1" \
    -E "$ssh_home/log.$1"
  eventually 20 test -s "$ssh_home/pid.$1"
}

# stop_sshd NODE: it has closed its port afterwards.
stop_sshd() {
  local pid
  pid=$(cat "$ssh_home/pid.$1" 2>/dev/null) || return 0
  "$cluster" on "$1" kill "$pid" 2>/dev/null || true
  eventually 20 is_stopped "$1"
}
is_stopped() { [ ! -e "$ssh_home/pid.$1" ]; } # sshd removes the file

ssh_nodes_teardown() {
  local node
  [ -n "${ssh_home:-}" ] || return 0
  for node in n0 n1 n2 n3; do stop_sshd "$node"; done
}
