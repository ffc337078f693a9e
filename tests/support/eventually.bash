# Waiting for what must come true, without relying on a sleep being long enough.

# eventually SECONDS COMMAND...      SECONDS: more than it takes; a machine that is three times slower has three times as many
eventually() {
  local limit=$((SECONDS + 3 * $1))
  shift
  while [ $SECONDS -lt $limit ]; do
    if "$@"; then return 0; fi
    sleep 0.05
  done
  echo "never came true: $*" >&2
  return 1
}
