# For bats files about installing and packing: which build folder they are about, and what must not leak into their children.

load ../support/pages

# Sets BUILD and SOURCE. DDP_BIN_DIR names the folder with the programs, which lies in the build folder; default: build/dev/bin.
find_build_folder() {
  SOURCE=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
  BUILD=$(realpath "${DDP_BIN_DIR:-$SOURCE/build/dev/bin}/..")
  export SOURCE BUILD
  [ -f "$BUILD/cmake_install.cmake" ] && [ -x "$BUILD/bin/ddprun" ] ||
    { echo "$BUILD is no complete build; set DDP_BIN_DIR" >&2; return 1; }
}

# What a user outside the test has loaded or set must not be found in place of what is tested.
forget_other_installations() {
  local name
  for name in $(compgen -e | grep -E '^(PMIX?_|OMPI_|SLURM_|PET_|DDP_|RANK$|WORLD_SIZE$|LOCAL_RANK$|MASTER_|PKG_CONFIG|CMAKE_)'); do
    unset "$name"
  done
  unset LD_LIBRARY_PATH LIBRARY_PATH CPATH CXXFLAGS CFLAGS LDFLAGS DESTDIR
}

# README.md's whole program, which prints the mean of the targets 0 to 3.
readme_program() { page_block "$SOURCE/README.md" cpp; }

# True when the build folder has the plugin for srun. (What an earlier configuration had may still lie there.)
has_slurm_plugin() {
  grep -qs srun_plugin/cmake_install.cmake "$BUILD/cmake_install.cmake" &&
    grep -qs 'STREQUAL "slurm_plugin"' "$BUILD/srun_plugin/cmake_install.cmake"
}

# Sets WHEEL to the Python package of the build folder, made by scripts/python-package; nothing where there are no tools for it.
find_wheel() {
  local status=0
  "$SOURCE/scripts/python-package" >&2 || status=$?
  case $status in
    0) WHEEL=$(echo "$SOURCE"/build/python/wheel/*.whl) ;;
    77) WHEEL= ;;
    *) return 1 ;;
  esac
  export WHEEL
}
