#!/usr/bin/env bats
# The task pages in docs/howto whose commands need no Slurm, run as they stand; tests/cluster/howto.bats runs the others. Every page is
# run by one of the two, is short, and shows no command that neither runs.
# DDP_TORCH_PYTHON: a Python that has torch (default: build/venv's), which some pages need.

load ../support/ddprun_jobs
load ../support/pages

setup() {
  ddprun_jobs_setup
  root=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
  export PATH="${DDPRUN%/*}:$PATH"
  mkdir "$BATS_TEST_TMPDIR/page"
  cd "$BATS_TEST_TMPDIR/page"
  # "train.py", as far as pages do not show one.
  cat >train.py <<'PROGRAM'
import os
print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}", flush=True)
PROGRAM
}

@test "howto: each page is short, begins with what to do, and is run by one test" {
  local page name
  for page in "$root"/docs/howto/*.md; do
    name=$(basename "$page" .md)
    [ "$(wc -l <"$page")" -le 60 ] || { echo "$page is longer than 60 lines"; return 1; }
    [ "$(cat "$root"/tests/{commands,cluster}/howto.bats | grep -cE "^ *howto $name( |\$)")" -eq 1 ] || { echo "$page is not run"; return 1; }
    grep -qF "(howto/$name.md)" "$root/docs/README.md" || { echo "docs/README.md does not list $page"; return 1; }
  done
}

@test "howto: links of the pages that users begin with lead to a page, and to a heading there" {
  cd "$root"
  python3 tests/support/page.py links README.md SUPPORT.md SECURITY.md docs/README.md docs/quickstart.md docs/howto/*.md
  cd "$BATS_TEST_TMPDIR"
  printf '# A b\n\n[c](#a-b) [d](https://d/e) `[f](g)`\n' >right.md
  python3 "$root/tests/support/page.py" links right.md
  printf '[c](right.md#a-c)\n' >wrong.md
  run -1 python3 "$root/tests/support/page.py" links right.md wrong.md
  [[ $output == *"wrong.md: right.md#a-c: no such heading"* ]]
  printf '[c](left.md)\n' >wrong.md
  run -1 python3 "$root/tests/support/page.py" links wrong.md
  [[ $output == *"wrong.md: left.md: no such file"* ]]
}

@test "howto: a page that has gone stale fails" {
  printf '```sh\nddprun --nproc-per-node=2 train.py\n```\n\n```text\nrank 1 of 7\nrank 0 ... 2\n```\n' >good.md
  run_page good.md
  sed 's/rank 1/rang 1/' good.md >output.md
  run ! run_page output.md
  [[ $output == *"not printed: rang 1 of 7"* ]]
  sed 's/--nproc-per/--ranks-per/' good.md >option.md
  run ! run_page option.md
  [[ $output == *"failed: ddprun --ranks-per-node=2 train.py"* ]]
  sed '1s/^/<!-- fails -->\n/' good.md >failure.md
  run ! run_page failure.md
  [[ $output == *"must fail, but did not"* ]]
}

@test "howto: a log for each rank" {
  howto logs
}

@test "howto: which GPU, NIC and cores" {
  howto placement
}

@test "howto: my job crashed" {
  cat >train.py <<'PROGRAM'
import os, time
if os.environ["RANK"] == "2":
    raise ValueError("bad sample 1184")
time.sleep(100)
PROGRAM
  howto crash
}

@test "howto: restart and resume from a checkpoint" {
  use_torch
  howto resume
  [ "$(grep -c "resumes at step 10$" log)" -eq 2 ]
}

# use_library: what the modulefile does for compilers; CMake's package is the build folder's.
use_library() {
  local build=${DDPRUN%/bin/ddprun}
  export CPLUS_INCLUDE_PATH=$root/libddp/include LIBRARY_PATH=$build/lib LD_LIBRARY_PATH=$build/lib ddp_DIR=$build/package
  page_block "$root/README.md" cpp >train.cpp
}

@test "howto: nodes that join and leave during a job" {
  export XDG_CONFIG_HOME=$BATS_TEST_TMPDIR/config DDP_MUNGE_SOCKET=$BATS_TEST_TMPDIR/no-munge
  ENDPOINT=localhost:$(python3 -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])')
  export ENDPOINT
  howto elastic
}

@test "howto: C++ and libtorch" {
  use_library
  howto cpp
}

@test "howto: your own gradient hook" {
  use_library
  howto hook
  grep -qx "gradient 0.50" log
}

@test "howto: your own backend" {
  use_library
  g++ -std=c++20 train.cpp -o train -lddp
  sed 's/\.name = "example"/.name = "mine"/' "$root/tests/support/example_backend.cpp" >my_backend.cpp
  howto backend
}

# use_package: the Python package as pip installs it: its folder is one in which Python reads .pth files, its commands are in PATH.
use_package() {
  local site=$root/build/python/site made=0
  use_torch
  "$root/scripts/python-package" || made=$?
  [ $made != 77 ] || skip "needs the Python package (scripts/python-package)"
  [ $made = 0 ]
  mkdir bin
  printf '#!/bin/sh\nexec "%s" -c "import sys; from libddp._horovodrun import main; main()" "$@"\n' "$(command -v python)" >bin/ddp-horovodrun
  cp "$root/tests/support/whole_lines/sitecustomize.py" . # Python imports only the first
  printf 'import site; site.addsitedir("%s")\n' "$site" >>sitecustomize.py
  chmod +x bin/ddp-horovodrun
  export PATH="$PWD/bin:$PATH" PYTHONPATH="$PWD:$site" DDP_TORCH_CACHE="$root/build/python/cache"
  cp "$root/examples/horovod_train/train.py" .
}

@test "howto: a script of Horovod" {
  use_package
  howto horovod
  [ "$(grep -c "^rank [0-3] of 4: weights" log)" -eq 8 ]
}

@test "howto: a script of mpi4py" {
  use_package
  printf 'from mpi4py import MPI\nprint("SUM", MPI.COMM_WORLD.allreduce(1), flush=True)\n' >train.py
  howto mpi4py 's/^mpirun .*$//'
  [ "$(grep -cx "SUM 4" log)" -eq 4 ]
}

@test "howto: MPI launchers, and other engines" {
  command -v mpiexec.hydra >/dev/null || skip "needs mpiexec.hydra (scripts/dependencies test)"
  mv train.py ranks.py
  use_package
  mv ranks.py train.py
  printf '#!/bin/bash\nshift 4\nexec "$@"\n' >bin/kubectl # exec -i HOST -- COMMAND
  chmod +x bin/kubectl
  howto engines
  [ "$(grep -c "^rank [01]$" log)" -eq 2 ]
  [ "$(grep -c "^rank [01] of 2$" log)" -eq 4 ]
}

@test "howto: the times of training steps, and a parameter server" {
  use_package
  cp "$root/examples/parameter_server/train.py" .
  howto training
  [ "$(grep -c "^rank [01]: 200 steps, [6-9].% right, weights \|^the server averaged 400 buckets" log)" -eq 3 ]
  [ "$(grep "^rank [01]: 200" log | sed 's/.*weights//' | sort -u | wc -l)" -eq 1 ]
}

@test "howto: parameters on servers" {
  use_package
  cp "$root/examples/parameter_server/key_values.py" .
  howto key-values
  [ "$(grep -c "^rank [01]: [6-9].% right, weights" log)" -eq 4 ]
  [ "$(grep "^rank [01]: " log | head -n 2 | sed 's/.*weights//' | sort -u | wc -l)" -eq 1 ]
}

@test "howto: the same bits on any number of ranks" {
  use_package
  howto exact
  [ "$(grep -c "^[124] ranks: weights" log)" -eq 3 ]
  [ "$(grep "^[124] ranks: " log | sed 's/.*weights//' | sort -u | wc -l)" -eq 1 ]
}

@test "howto: why a step is slow, and what would help" {
  use_package
  cp "$root/tests/support/advise_job.py" job.py
  echo 'import runpy, sys; sys.argv = ["job.py", "ddp", "400"]; runpy.run_path("job.py")' >train.py
  howto advise
  [ "$(grep -c "^BATCH" log)" -eq 400 ]
}

# DDP_FRAMEWORKS_PYTHON: as in tests/python/test_frameworks.py.
@test "howto: Lightning, Accelerate and the HF Trainer" {
  local python=${DDP_FRAMEWORKS_PYTHON:-${DDP_TORCH_PYTHON:-$root/build/venv/bin/python}}
  "$python" -c 'import lightning, accelerate, transformers' 2>/dev/null || skip "needs Lightning, Accelerate and transformers"
  export PATH="${python%/*}:$PATH" OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES=
  cp "$root/tests/support/accelerate_job.py" accelerate_train.py
  cp "$root/tests/support/trainer_job.py" trainer_train.py
  howto frameworks
  [ "$(grep -c "^TRAINED [01] 2 " log)" -eq 4 ]
}
