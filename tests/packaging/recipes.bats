#!/usr/bin/env bats
# The recipes for other systems, run: the spec by rpmbuild, Spack's by stand-ins for Spack, EasyBuild's by EasyBuild.
# DDP_BIN_DIR: see build_folder.bash; what is there is installed, so that nothing is compiled. scripts/check-recipes sets
# DDP_COMPILE_RECIPES to compile as the recipes say, and DDP_EASYBUILD to a folder with EasyBuild.

bats_require_minimum_version 1.5.0
load build_folder.bash

setup_file() {
  find_build_folder
  export COMPILE=${DDP_COMPILE_RECIPES:-} EASY_FOLDER=${DDP_EASYBUILD:-} JOBS=${DDP_JOBS:-2}
  forget_other_installations
  VERSION=$(sed -n 's/.*DDP_VERSION_STRING "\(.*\)"/\1/p' "$SOURCE/libddp/include/ddp/version.hpp")
  export VERSION
}

setup() {
  forget_other_installations
  cd "$BATS_TEST_TMPDIR"
}

# What Fedora's rpm has of its own, as definitions for Debian's.
rpm_macros() {
  local folder configure=: build=: install="DESTDIR=%{buildroot} cmake --install $BUILD --prefix %{_prefix}"
  folder=$(sed -n 's/^CMAKE_INSTALL_LIBDIR:[A-Z]*=//p' "$BUILD/CMakeCache.txt")
  if [ -n "$COMPILE" ]; then
    configure="cmake -B build -DCMAKE_INSTALL_PREFIX=%{_prefix} -DCMAKE_INSTALL_LIBDIR=$folder"
    build="cmake --build build --parallel $JOBS"
    install="DESTDIR=%{buildroot} cmake --install build"
  fi
  printf '%s\n' "_topdir $PWD/rpm" "_libdir %{_prefix}/$folder" "_docdir %{_prefix}/share/doc" "debug_package %{nil}" \
    "cmake $configure" "cmake_build $build" "cmake_install $install"
}

@test "rpmbuild makes the packages of the spec; rpm installs them into a root and removes them" {
  local options=() line packages plugin
  has_slurm_plugin || skip "this build has no plugin for srun"
  git -C "$SOURCE" rev-parse --git-dir >/dev/null 2>&1 || skip "the sources are no git checkout, of which to make an archive"
  while read -r line; do options+=(--define "$line"); done < <(rpm_macros)
  [ ! -e "$BUILD/lib/libddp_nccl.so" ] || options+=(--with cuda)
  mkdir -p rpm/SOURCES root
  git -C "$SOURCE" archive "--prefix=libddp-$VERSION/" -o "$PWD/rpm/SOURCES/libddp-$VERSION.tar.gz" HEAD
  # --nodeps: Debian's packages are not in rpm's database. %check runs ddprun; a file in no package is an error.
  rpmbuild -bb --nodeps "${options[@]}" "$SOURCE/packaging/rpm/libddp.spec" >log 2>&1 || { tail -n 60 log; return 1; }
  mapfile -t packages < <(find rpm/RPMS -name '*.rpm' | sort)
  [ "${#packages[@]}" -eq 3 ]

  rpm --root "$PWD/root" --nodeps -i "${packages[@]}"
  run -0 rpm --root "$PWD/root" -qa --qf '%{name}\n'
  [ "$(sort <<<"$output" | tr '\n' ' ')" = "libddp libddp-devel slurm-plugin-ddp " ]
  plugin=$(sed -n 's/^optional //p' root/etc/slurm/plugstack.conf.d/ddp.conf)
  [[ $plugin == /usr/* && -e root$plugin ]]
  [ -s root/usr/share/doc/libddp/docs/reference/admin.md ]
  run -0 env LD_LIBRARY_PATH="$(dirname "$(find root -name 'libddp.so.0.1')")" root/usr/bin/ddprun --nproc-per-node 2 \
    sh -c 'echo "rank $RANK of $WORLD_SIZE"'
  [[ $output == *"rank 0 of 2"* && $output == *"rank 1 of 2"* ]]

  rpm --root "$PWD/root" --nodeps -e libddp libddp-devel slurm-plugin-ddp
  [ -z "$(find root -name '*ddp*')" ]
}

@test "Spack's recipe runs, and what it tells CMake builds what its variant says" {
  local words variant
  for variant in '~slurm_plugin' '+slurm_plugin'; do
    "$SOURCE/tests/support/spack_recipe.py" "$SOURCE/contrib/spack/package.py" "$VERSION" "$variant" >options
    mapfile -t words <options
    [ "${#words[@]}" -gt 2 ]
    run -0 cmake -G Ninja -S "$SOURCE" -B build -Werror=dev "-DCMAKE_INSTALL_PREFIX=$PWD/installed" "${words[@]}"
    [[ $output != *"not used by the project"* ]]
    grep -q '^DDP_BUILD_TESTS:BOOL=OFF' build/CMakeCache.txt
    if [ "$variant" = '+slurm_plugin' ]; then
      [[ $output == *"The plugin for srun (srun --ddp) will be built"* ]]
    else
      [[ $output != *"plugin for srun"* ]]
    fi
  done
  [ -n "$COMPILE" ] || return 0
  cmake --build build --parallel "$JOBS"
  cmake --install build
  run -0 installed/bin/ddprun --nproc-per-node 2 installed/bin/ddp-selftest
  [ -e installed/lib/slurm/spank_ddp.so ] || [ -e installed/lib64/slurm/spank_ddp.so ]
}

@test "EasyBuild finds all that its recipe depends on" {
  [ -n "$EASY_FOLDER" ] || skip "scripts/check-recipes brings EasyBuild"
  export LMOD_CMD=/usr/share/lmod/lmod/libexec/lmod PATH=$EASY_FOLDER/bin:$PATH
  cd "$SOURCE/contrib/easybuild"
  run -0 eb --allow-use-as-root-and-accept-consequences --dry-run "--robot=$PWD:$EASY_FOLDER/easybuild/easyconfigs" \
    "libddp-$VERSION-GCC-12.3.0.eb"
  [[ $output == *"module: libddp/$VERSION-GCC-12.3.0"* ]]
}
