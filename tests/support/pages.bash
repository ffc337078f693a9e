# For bats files that run what pages show: the blocks of a page become files and a script in the current folder.

export PYTHONPATH=$BATS_TEST_DIRNAME/../support/whole_lines

# page_block PAGE LANGUAGE [FILE]: the text of the page's blocks of this language and, if given, this file's.
page_block() {
  awk -v head="\`\`\`$2${3:+ $3}" '$0 == head {inside = 1; next} /^```/ {inside = 0} inside' "$1"
}

# howto NAME [EXPRESSION]: runs docs/howto/NAME.md, as sed's EXPRESSION changes it.
howto() {
  sed -e "${2:-}" "$root/docs/howto/$1.md" >"$1.md"
  run_page "$1.md"
}

# run_page PAGE: runs its commands in the current folder, in this shell's environment and with its exported functions; then
# its outputs must be among what they printed.
run_page() {
  local status=0
  python3 "$root/tests/support/page.py" write "$1"
  timeout -k 5 "${LIMIT:-900}" bash commands.sh >log 2>&1 </dev/null || status=$?
  [ $status -eq 0 ] || { echo "commands of $1: status $status"; cat log; return 1; }
  python3 "$root/tests/support/page.py" check "$1" log
}

# use_torch: torch's interpreter and programs are the first in PATH.
use_torch() {
  local python=${DDP_TORCH_PYTHON:-$root/build/venv/bin/python}
  "$python" -c 'import importlib.util as i; exit(not i.find_spec("torch"))' 2>/dev/null || skip "needs PyTorch in build/venv (scripts/python-env)"
  export PATH="${python%/*}:$PATH" OMP_NUM_THREADS=1
}
