# Waiting for what must come true, without relying on a sleep being long enough.

# eventually SECONDS COMMAND...
eventually() {
  local limit=$((SECONDS + $1))
  shift
  while [ $SECONDS -lt $limit ]; do
    if "$@"; then return 0; fi
    sleep 0.05
  done
  echo "never came true: $*" >&2
  return 1
}
