#!/usr/bin/env bats
# The wheel of scripts/wheel: what it is linked against, what its check refuses, and, where one has been made (DDP_WHEEL, else the
# newest in build/wheelhouse), an installation without root.

bats_require_minimum_version 1.5.0
load build_folder.bash

setup_file() {
  SOURCE=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
  export SOURCE TOOLS=$SOURCE/packaging/wheel
  WHEEL=${DDP_WHEEL:-$(ls -t "$SOURCE"/build/wheelhouse/*.whl 2>/dev/null | head -n 1)}
  export WHEEL
}

setup() {
  forget_other_installations
  cd "$BATS_TEST_TMPDIR"
}

teardown() { [ -z "${open:-}" ] || rm -rf "$open"; }

need_wheel() { [ -n "$WHEEL" ] || skip "no wheel in build/wheelhouse; scripts/wheel makes it"; }

# In a virtual environment of the user nobody.
install_as_nobody() {
  need_wheel
  [ "$(id -u)" = 0 ] || skip "needs root, to be another user"
  open=$(mktemp -d /tmp/ddp-wheel.XXXXXX) # TMPDIR may be closed to other users
  chmod 755 "$open"
  home=$open/home
  mkdir -m 755 "$home"
  chown nobody "$home"
  cp "$WHEEL" "$home"
  as_nobody "$1" -m venv "$home/venv"
  as_nobody "$home/venv/bin/pip" install -q --no-index --no-deps --disable-pip-version-check "$home"/*.whl
}
as_nobody() {
  setpriv --reuid=nobody --regid=nogroup --clear-groups env -i PATH=/usr/bin:/bin HOME="$home" PYTHONDONTWRITEBYTECODE=1 ${VARIABLES:-} "$@"
}

# without_pmix COMMAND...: where the loader finds no libpmix.
without_pmix() {
  unshare --mount sh -c 'for file in $(realpath /usr/lib/x86_64-linux-gnu/libpmix.so.2); do mount --bind /dev/null "$file"; done; exec "$@"' sh "$@"
}

@test "libraries to link against have no version newer than manylinux_2_28, and programs run with the system's" {
  mkdir old
  python3 "$TOOLS/old_libraries.py" old "$(gcc -print-file-name=libm.so.6)" "$(gcc -print-file-name=libstdc++.so.6)"
  echo 'INPUT(libm.so.6)' >old/libm.so
  echo 'INPUT(libstdc++.so.6)' >old/libstdc++.so
  printf '%s\n' '#include <cmath>' '#include <iostream>' 'int main(int n, char**) { std::cout << std::pow(2.0, n) << std::endl; }' >main.cpp
  g++ -O1 main.cpp -o plain -lm
  g++ -O1 main.cpp -o lowered -Lold -lm
  [ "$(./lowered)" = 2 ]
  [[ $(objdump -T plain) == *GLIBC_2.29*pow* ]] # what lowering is about
  [[ $(objdump -T lowered) == *GLIBC_2.2.5*pow* ]]
  run -0 readelf --wide --version-info old/libstdc++.so.6
  [[ $output == *GLIBCXX_3.4.22* && $output != *GLIBCXX_3.4.2[5-9]* && $output != *GLIBCXX_3.4.3* ]]
}

@test "functions of newer C libraries do what the C library's own do" {
  for define in UNUSED=1 'dlsym(where,name)=NULL'; do # with the system's, and as where it has none
    gcc -O1 -Wall -Werror -fvisibility=hidden "-D$define" -c "$TOOLS/newer.c"
    gcc -O1 -Wall -Werror "$SOURCE/tests/support/newer_functions.c" newer.o -o newer
    run -0 ./newer
    [ "$output" = "as the C library's" ]
  done
}

@test "what the Python module calls itself is in the stable ABI of 3.12" {
  include=$(ls -d "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[2-9].*/include/python3.1? /usr/include/python3.1[2-9] 2>/dev/null | head -n 1)
  [ -n "$include" ] || skip "no headers of Python 3.12 or newer"
  nanobind=$("${DDP_TORCH_PYTHON:-$SOURCE/build/venv/bin/python}" -m nanobind --include_dir) || skip "needs nanobind in build/venv (scripts/python-env)"
  compile() {
    g++ -std=gnu++20 -fsyntax-only -DPy_LIMITED_API=0x030C0000 -isystem "$include" -isystem "$nanobind" -I"$SOURCE/libddp/include" \
      -I"$SOURCE/bindings/python" "$@"
  }
  for file in $(grep -lE 'Py[A-Z][A-Za-z]*_[A-Za-z]+\(' "$SOURCE"/bindings/python/src/*.cpp); do compile "$file"; done
  printf '#include <Python.h>\nauto* call = &PyObject_CallMethodNoArgs;\n' >other.cpp
  run ! compile other.cpp
  [[ $output == *"PyObject_CallMethodNoArgs"* ]]
}

@test "a wheel that needs more than its tag says is refused, with a line for each fault" {
  mkdir -p libddp/lib
  echo 'int pthread_create(void*, void*, void*, void*); int f(void) { return pthread_create(0, 0, 0, 0); }' >new.c
  gcc -shared -fPIC -g new.c -o libddp/lib/new.so -Wl,-rpath,/opt/lib -Wl,--no-as-needed -l:libhwloc.so.15
  python3 -m zipfile -c bad.whl libddp
  run -1 --separate-stderr python3 "$TOOLS/check.py" bad.whl
  for fault in "needs libhwloc.so.15" "looks for libraries in /opt/lib" "needs GLIBC_2.34, newer than 2.28" "has .debug_info"; do
    [[ $stderr == *"libddp/lib/new.so $fault"* ]] || { echo "not said: $fault: $stderr"; return 1; }
  done
  gcc -shared -fPIC -nostdlib -x c /dev/null -o libddp/lib/new.so
  python3 -m zipfile -c good.whl libddp
  run -0 python3 "$TOOLS/check.py" good.whl
}

@test "the wheel is what its tag says" {
  need_wheel
  [[ ${WHEEL##*/} =~ ^libddp-[0-9.]+-py3-none-manylinux_2_28_x86_64\.whl$ ]]
  run -0 python3 "$TOOLS/check.py" "$WHEEL"
  run -0 unzip -Z1 "$WHEEL"
  for file in _core.cpython-310-x86_64-linux-gnu.so _core.cpython-311-x86_64-linux-gnu.so _core.abi3.so bin/{ddprun,ddp-info,ddp-selftest} \
    lib/libddp.so lib/libddp/libpmix.so.2 lib/slurm/spank_ddp.so lib/cmake/ddp/ddpConfig.cmake lib/pkgconfig/ddp.pc libexec/libddp/ddp-step \
    include/ddp/ddp.hpp share/libddp/scripts/ddp-plugin share/modulefiles/libddp/{0.1.0,0.1.0.lua}; do
    grep -qxF "libddp/$file" <<<"$output" || { echo "absent: $file"; return 1; }
  done
  [ "$(grep -cE '^libddp/adapter/ahead/torch-[0-9.]+-[0-9a-f]{10}\.cpython-31[0-4]-x86_64-linux-gnu\.so$' <<<"$output")" = 15 ]
}

@test "a user without root: all commands, two ranks over PMIx, whose library is inside where the system has none" {
  install_as_nobody /usr/bin/python3
  for program in ddprun ddp-info ddp-selftest; do as_nobody "$home/venv/bin/$program" --version; done
  [[ $(as_nobody "$home/venv/bin/ddp-plugin" --help) == *"ddp-plugin on"* ]]
  [ "$(as_nobody "$home/venv/bin/python" -m libddp --cmake-dir)" = "$(echo "$home"/venv/lib/python3*/site-packages/libddp/lib/cmake/ddp)" ]
  cat >"$home/rank.py" <<'END'
import array, libddp
world = libddp.init(launch="pmix")
numbers = array.array("f", [world.rank + 1.0] * 5)
world.process_group().all_reduce(numbers, "sum").wait()
maps = {line.split()[-1] for line in open("/proc/self/maps") if "pmix" in line}
print(f"rank {world.rank}: {numbers[0]:.0f} {sorted(maps)}", flush=True)
END
  run -0 without_pmix setpriv --reuid=nobody --regid=nogroup --clear-groups env -i PATH=/usr/bin:/bin HOME="$home" \
    "$home/venv/bin/ddprun" --nproc-per-node=2 "$home/rank.py"
  [[ $output == *"rank 0: 3 "*site-packages/libddp/lib/libddp/libpmix.so.2* && $output == *"rank 1: 3 "* ]]
  # The site's own goes first, also one in LD_LIBRARY_PATH; but not one of another release that lacks functions.
  run -0 as_nobody "$home/venv/bin/ddprun" --nproc-per-node=2 "$home/rank.py"
  [[ $output == *"rank 0: 3 "* && $output != *site-packages/libddp/lib/libddp/libpmix* ]]
  mkdir "$home/site" "$home/other"
  cp "$(gcc -print-file-name=libpmix.so.2)" "$home/site/libpmix.so.2"
  gcc -shared -fPIC "$SOURCE/tests/support/other_pmix/pmix.c" -o "$home/other/libpmix.so.2"
  VARIABLES="LD_LIBRARY_PATH=$home/site" run -0 as_nobody "$home/venv/bin/ddprun" --nproc-per-node=2 "$home/rank.py"
  [[ $output == *"rank 0: 3 "*"'$home/site/libpmix.so.2'"* && $output != *site-packages/libddp/lib/libddp/libpmix* ]]
  VARIABLES="LD_LIBRARY_PATH=$home/other" run -0 as_nobody "$home/venv/bin/ddprun" --nproc-per-node=2 "$home/rank.py"
  [[ $output == *"rank 0: 3 "*site-packages/libddp/lib/libddp/libpmix.so.2* ]]
}

@test "pip refuses the wheel where the C library is musl, or older, in a line" {
  need_wheel
  for platform in musllinux_1_2_x86_64 manylinux2014_x86_64; do
    run -1 python3 -m pip download -q --disable-pip-version-check --no-index --no-deps --only-binary :all: --platform $platform -d out "$WHEEL"
    [[ $output == *"${WHEEL##*/} is not a supported wheel on this platform"* ]]
  done
}

@test "PyTorch without a compiler: the adapter came with the wheel; one that does not load is as none" {
  need_wheel
  python=${DDP_TORCH_PYTHON:-$SOURCE/build/venv/bin/python}
  "$python" -c 'import torch' 2>/dev/null || skip "needs PyTorch in build/venv (scripts/python-env)"
  unzip -q "$WHEEL" -d site
  chmod -R u+rwX site
  adapter=$("$python" -c 'import sysconfig as s, torch; v = torch.version
print("torch-%s-%.10s.%s.so" % (torch.__version__.partition("+")[0], v.git_version, s.get_config_var("SOABI")))')
  [ -e "site/libddp/adapter/ahead/$adapter" ] || skip "the wheel has no $adapter"
  cat >train.py <<'END'
import torch, torch.distributed as dist, libddp.torch
dist.init_process_group("ddp")
torch.manual_seed(1)
model = libddp.torch.DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
model(torch.full((1, 1), float(dist.get_rank()))).sum().backward()
print(f"rank {dist.get_rank()}: {model.module.weight.grad.item()}\n", end="", flush=True)
dist.destroy_process_group()
END
  without_compiler() { env PYTHONPATH="$PWD/site" CXX=no-such-compiler DDP_TORCH_CACHE="$PWD/cache" "$@"; }
  run -0 without_compiler site/libddp/bin/ddprun --nproc-per-node=2 "$python" train.py
  [[ $output == *"rank 0: 0.5"* && $output == *"rank 1: 0.5"* && ! -e cache ]]
  run -0 without_compiler "$python" -m libddp.torch --check
  [[ $output == *"came with libddp: "*"/ahead/$adapter" ]]
  echo torn >"site/libddp/adapter/ahead/$adapter"
  run -1 without_compiler "$python" -m libddp.torch --check
  [[ $output == *"there is no compiler no-such-compiler"* ]]
}

@test "programs that find_package(ddp) and pkg-config find in the wheel" {
  need_wheel
  unzip -q "$WHEEL" -d site
  chmod -R u+rwX site
  cat >CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES CXX)
find_package(ddp REQUIRED)
add_executable(train train.cpp)
target_link_libraries(train ddp::ddp)
END
  readme_program >train.cpp
  cmake -B build -DCMAKE_BUILD_TYPE=Debug -Dddp_DIR="$PWD/site/libddp/lib/cmake/ddp" >log
  cmake --build build >>log
  run -0 ./build/train
  [ "$output" = "1 ranks: weights[0] = 0.000" ]
  PKG_CONFIG_PATH=$PWD/site/libddp/lib/pkgconfig
  export PKG_CONFIG_PATH
  # shellcheck disable=SC2046 # words
  g++ -std=c++20 train.cpp -o train $(pkg-config --cflags --libs ddp)
  LD_LIBRARY_PATH=$PWD/site/libddp/lib run -0 ./train
}

@test "two wheels on PYTHONPATH and LD_LIBRARY_PATH: each module has its own library" {
  need_wheel
  for name in one other; do unzip -q "$WHEEL" -d $name && chmod -R u+rwX $name; done
  run -0 env PYTHONPATH="$PWD/one:$PWD/other" LD_LIBRARY_PATH="$PWD/other/libddp/lib" python3 -c '
import libddp
print({line.split()[-1] for line in open("/proc/self/maps") if "libddp.so" in line})'
  [ "$output" = "{'$PWD/one/libddp/lib/libddp.so.0.1'}" ]
}

@test "read-only site-packages" {
  install_as_nobody /usr/bin/python3
  run -0 unshare --mount sh -c 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && shift && exec "$@"' sh "$home" \
    setpriv --reuid=nobody --regid=nogroup --clear-groups env -i PATH=/usr/bin:/bin HOME="$home" \
    "$home/venv/bin/ddprun" --nproc-per-node=2 -m libddp version
  [[ $output == *"ddp-info (libddp)"* ]]
}

@test "a home that root cannot read, on a Slurm cluster: ddprun, srun with PMIx and PMI-2, and the plugin from an admin's folder" {
  install_as_nobody /usr/bin/python3
  chmod 700 "$home"
  unzip -q "$WHEEL" -d "$open/admin"
  chmod -R u+rwX,go+rX "$open/admin"
  run -0 env -u TMPDIR DDP_CLUSTER_DIR="/run/ddp-wheel-$$" setpriv --bounding-set=-dac_override,-dac_read_search "$SOURCE/tests/cluster/slurm_cluster" \
    with --share "$home" --share "$open/admin" -- bash "$SOURCE/tests/support/wheel_on_slurm.sh" "$home" "$open/admin"
  for step in "ddprun 2" "pmix 4" "pmi2 4" "ddp 4"; do
    [ "$(grep -c "^${step% *}: sum of ${step#* }" <<<"$output")" = "${step#* }" ] || { echo "not right: $step: $output"; return 1; }
  done
  [[ $output == *"rank 2 on n"[0-3]" failed with exit code 3; the step ends"* ]]
}
