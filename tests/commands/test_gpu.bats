#!/usr/bin/env bats
# scripts/test-gpu on the double of CUDA's driver: that it is ready for a machine with a GPU.

bats_require_minimum_version 1.5.0

setup() {
  root=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
  export DDP_BIN_DIR=${DDP_BIN_DIR:-$root/build/dev/bin}
}

@test "scripts/test-gpu runs on the doubles, and says what it did" {
  [ -e "$DDP_BIN_DIR/../lib/fake_cuda/libcuda.so.1" ] || skip "this build has no CUDA"
  cat >"$BATS_TEST_TMPDIR/python" <<'END'
#!/bin/bash
python3 "$@" || exit
[[ $* != *time_kernels.py* ]] || echo '{"what": "a slow kernel", "share_of_bandwidth": 0.1, "target": 0.85, "missed": true}'
END
  chmod +x "$BATS_TEST_TMPDIR/python"
  DDP_TORCH_PYTHON=$BATS_TEST_TMPDIR/python run "$root/scripts/test-gpu" --doubles
  echo "$output"
  [ "$status" -eq 0 ]
  [[ "$output" == *"passed: "*$'\nmissed its target: a slow kernel'* ]]
  [[ "$output" == *"kernels on Fake CUDA device"* ]]
  [[ "$output" == *"ok   select 3000 of 300000"* ]]
  [[ "$output" == *'"what": "libddp flatten f32_f16"'* ]]
  [[ "$output" == *"passed: "*" kernels bandwidth library_kernels"* ]]
  if [ -e "$DDP_BIN_DIR/nccl_on_device" ]; then
    [[ "$output" == *"have the same GPU, GPU-"* ]]
    [[ "$output" == *" nccl_shared_gpu nccl_two_ranks"* ]]
    [[ "$output" == *"skipped: digits: the doubles run none of PyTorch's kernels"* ]]
  fi
}

@test "without a device, scripts/test-gpu says so" {
  DDP_CUDA_LIBRARY=/nonexistent/libcuda.so.1 run "$root/scripts/test-gpu"
  echo "$output"
  [ "$status" -eq 2 ]
  [[ "$output" == *"/nonexistent/libcuda.so.1"* ]]
  [[ "$output" == *"no CUDA device can be used"* ]]
}

@test "figures of a GPU are compared with PyTorch's and nccl-tests'" {
  echo '{"what": "libddp issue all_reduce", "ranks": 1, "us": 4.00}' >"$BATS_TEST_TMPDIR/nccl.log"
  echo '{"what": "torch issue all_reduce (with Python'"'"'s cost)", "ranks": 1, "us": 16.0}' >"$BATS_TEST_TMPDIR/issue_cost_of_torch.log"
  echo '{"what": "libddp all_reduce of 25 MiB", "ranks": 2, "busbw_gb_per_s": 99.0}' >"$BATS_TEST_TMPDIR/nccl_two_ranks.log"
  run "$root/tests/gpu/compare.py" "$BATS_TEST_TMPDIR"
  [[ "$output" == *'ProcessGroupNCCL", "ratio": 0.25, "target": "at most 0.5"'* ]]
  [[ "$output" == *"SKIPPED all_reduce of 25 MiB"* ]]
  echo '# Avg bus bandwidth    : 100.0 ' >"$BATS_TEST_TMPDIR/nccl_tests.log"
  run "$root/tests/gpu/compare.py" "$BATS_TEST_TMPDIR"
  [[ "$output" == *'busbw", "ratio": 0.99, "target": "at least 0.98"}'* ]]
  [[ "$output" != *missed* ]]
  echo '# Avg bus bandwidth    : 200.0 ' >"$BATS_TEST_TMPDIR/nccl_tests.log"
  echo '{"what": "libddp issue all_reduce", "ranks": 1, "us": 9.00}' >"$BATS_TEST_TMPDIR/nccl.log"
  run "$root/tests/gpu/compare.py" "$BATS_TEST_TMPDIR"
  [[ "$output" == *'"ratio": 0.562, "target": "at most 0.5", "missed": true}'*'"ratio": 0.495, "target": "at least 0.98", "missed": true}'* ]]
}

@test "a kernel that misses its share of the bandwidth says so" {
  run -0 python3 - "$root/tests/gpu" <<'END'
import sys
sys.path.insert(0, sys.argv[1])
import time_kernels
time_kernels.report("libddp flatten", [1.0], 8_000_000, 1e10, False)
time_kernels.report("libddp flatten", [1.0], 9_000_000, 1e10, False)
time_kernels.report("torch _foreach_copy_", [1.0], 1_000_000, 1e10, False)
END
  [[ "${lines[0]}" == *'"share_of_copy": 0.8, "target": 0.85, "missed": true}' ]]
  [[ "$output" != *missed*missed* ]]
}

@test "the device code that is built in has all architectures, and its PTX assembles for later ones" {
  nvcc=$(sed -n 's/^DDP_NVCC:[A-Z]*=//p' "$DDP_BIN_DIR/../CMakeCache.txt")
  [ -x "$nvcc" ] || skip "this build has no nvcc"
  mapfile -t codes < <("$nvcc" --list-gpu-code | sed -n 's/^sm_\([0-9]*\)$/\1/p' | sort -n)
  last=90
  [[ " ${codes[*]} " != *" 100 "* ]] || last=100
  for cuobjdump in "$(dirname "$nvcc")/cuobjdump" "$root"/build/venv/lib/python3*/site-packages/nvidia/cu13/bin/cuobjdump; do
    [ ! -x "$cuobjdump" ] || break
  done
  [ -x "$cuobjdump" ] || skip "there is no cuobjdump beside $nvcc or in build/venv (scripts/python-env)"
  cd "$BATS_TEST_TMPDIR"
  found=0
  for image in "$DDP_BIN_DIR"/../device/*.fatbin; do
    [ "$(stat -c %s "$image")" -lt $((10 << 20)) ]
    cp "$image" . && image=${image##*/} # cuobjdump cuts its path at a blank
    run -0 "$cuobjdump" --list-elf --list-ptx "$image"
    echo "$output"
    for architecture in 80 90 "$last"; do [[ "$output" == *".sm_$architecture.cubin"* ]]; done
    [[ "$output" == *".sm_$last.ptx"* ]]
    name=$(sed -n 's/^PTX file .*: //p' <<<"$output")
    "$cuobjdump" --extract-ptx "$name" "$image" >/dev/null
    grep -q '\.entry' "$name"
    for code in "${codes[@]}"; do
      [ "$code" -ge "$last" ] || continue
      "$(dirname "$nvcc")/ptxas" -arch="sm_$code" -o code.cubin "$name"
      [ -s code.cubin ]
      found=$((found + 1))
    done
  done
  echo "$found times assembled"
  [ $found -ge 1 ]
}

@test "the archive for GPU machines has what a build needs, and finds it where it lies" {
  command -v dpkg-query >/dev/null || skip "this is no Debian system"
  run "$root/scripts/test-gpu" --bundle "$BATS_TEST_TMPDIR/gpu.tar.gz"
  echo "$output"
  [ "$status" -eq 0 ]
  [[ "$output" == *"the other machine needs a C library of 2."* ]]
  tar -C "$BATS_TEST_TMPDIR" -xf "$BATS_TEST_TMPDIR/gpu.tar.gz"
  cd "$BATS_TEST_TMPDIR/libddp"
  [ -x scripts/test-gpu ] && [ -e libddp/src/kernels/device/kernels.cu ] && [ ! -e build/dev ]
  bundle=$PWD/build/bundle
  lib=$(echo "$bundle"/lib/*-linux-gnu*)
  for module in pmix hwloc libsodium; do
    run -0 env LD_LIBRARY_PATH="$lib" PKG_CONFIG_PATH="$lib/pkgconfig" "$bundle/bin/pkgconf" --cflags --libs "$module"
    echo "$module: $output"
    [[ "$output" == *"$bundle"/* && "$output" != *" -I/usr"* && "$output" != *" -L/usr"* ]]
  done
  # Debian's compilers find these by themselves, others must be told
  [ -e "$bundle/include/hwloc/autogen/config.h" ]
  for package in fmt spdlog pugixml GTest; do [ -d "$lib/cmake/$package" ]; done
}
