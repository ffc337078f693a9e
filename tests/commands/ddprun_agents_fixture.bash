# For bats files about several ddpruns that meet at a host and port, all on this host: the port, and jobs for their ranks.

load ../support/ddprun_jobs

setup() {
  ddprun_jobs_setup
  cd "$BATS_TEST_TMPDIR"
  port=$(free_port)
  meet=(--rdzv-backend c10d --rdzv-endpoint "localhost:$port" --rdzv-id meeting)
}

facts='echo "$ROLE_NAME: $GROUP_RANK/$GROUP_WORLD_SIZE $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $ROLE_RANK/$ROLE_WORLD_SIZE"'

# A rank that notes its process id and waits for the file go.
waiting='echo $$$$ >"$NOTES/pid.$RANK"; while ! [ -e "$NOTES/go" ]; do sleep 0.02; done'

listening() { grep -Eqi ":$(printf '%04X' "$port") 0+:0000 0A" /proc/net/tcp /proc/net/tcp6; }

# Ends the waiting agent a by the one that it waits for.
completes() {
  start_agent b --nnodes 2 "${meet[@]}" "$@" sh -c "$facts"
  for name in a b; do
    finish_agent $name
    [ "$status" -eq 0 ]
    [[ $output == *"default: "?"/2 "* ]]
  done
}
