#!/usr/bin/env bats
# An installation that has been moved to another folder: its layout, its programs, and projects that find libddp in it by
# CMake and by pkg-config. DDP_BIN_DIR: see build_folder.bash.

bats_require_minimum_version 1.5.0
load build_folder.bash

setup_file() {
  find_build_folder
  forget_other_installations
  cmake --install "$BUILD" --prefix "$BATS_FILE_TMPDIR/first" >"$BATS_FILE_TMPDIR/install.log"
  mkdir "$BATS_FILE_TMPDIR/elsewhere"
  export MOVED=$BATS_FILE_TMPDIR/elsewhere/moved
  mv "$BATS_FILE_TMPDIR/first" "$MOVED"
  LIBDIR=$(sed -n 's/^CMAKE_INSTALL_LIBDIR:[A-Z]*=//p' "$BUILD/CMakeCache.txt")
  VERSION=$(sed -n 's/.*DDP_VERSION_STRING "\(.*\)"/\1/p' "$SOURCE/libddp/include/ddp/version.hpp")
  export LIBDIR VERSION
  [ -n "$LIBDIR" ]
  [ -n "$VERSION" ]
}

setup() {
  forget_other_installations
  cd "$BATS_TEST_TMPDIR"
}

# find_ddp PREFIX WORDS...: configures a project that has nothing but find_package(ddp WORDS...).
find_ddp() {
  local prefix=$1
  shift
  rm -rf project
  mkdir project
  cat >project/CMakeLists.txt <<END
cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES NONE)
find_package(ddp $*)
message(STATUS "ddp=\${ddp_FOUND} host=\${ddp_host_FOUND} nccl=\${ddp_nccl_FOUND} torch=\${ddp_torch_FOUND}")
if(TARGET ddp::ddp)
  get_target_property(file ddp::ddp LOCATION)
  get_target_property(folders ddp::ddp INTERFACE_INCLUDE_DIRECTORIES)
  get_target_property(libraries ddp::ddp INTERFACE_LINK_LIBRARIES)
  message(STATUS "file=\${file} folders=\${folders} libraries=\${libraries}")
endif()
END
  # CMake breaks the lines of messages.
  cmake -S project -B project/build "-DCMAKE_PREFIX_PATH=$prefix" 2>&1 | tr -s '\n ' ' '
  return "${PIPESTATUS[0]}"
}

@test "everything is where it belongs, and nothing else is there" {
  local file
  for file in bin/ddprun bin/ddp-info bin/ddp-selftest "$LIBDIR/libddp.so" "$LIBDIR/libddp.so.${VERSION%.*}" "$LIBDIR/libddp.so.$VERSION" \
    "$LIBDIR"/cmake/ddp/{ddpConfig,ddpConfigVersion,ddpTargets}.cmake "$LIBDIR/pkgconfig/ddp.pc" \
    share/man/man1/{ddprun,ddp-info,ddp-selftest}.1 share/bash-completion/completions/{ddprun,ddp-info,ddp-selftest} \
    share/zsh/site-functions/_{ddprun,ddp-info,ddp-selftest} share/fish/vendor_completions.d/{ddprun,ddp-info,ddp-selftest}.fish \
    share/libddp/examples/digits/{CMakeLists.txt,digits.csv} share/libddp/grafana/libddp.json share/libddp/prometheus/alerts.yml \
    share/doc/libddp/{LICENSE,README.md,CHANGELOG.md,SECURITY.md,SUPPORT.md} share/doc/libddp/docs/reference/{admin,slurm,versions,known-variables,rules}.md \
    share/doc/libddp/examples/digits/README.md share/doc/libddp/docs/{README.md,quickstart.md,howto/sbatch.md}; do
    [ -s "$MOVED/$file" ] || { echo "absent: $file"; return 1; }
  done
  diff <(cd "$SOURCE/libddp/include/ddp" && ls && echo torch) <(cd "$MOVED/include/ddp" && ls | grep -vx torch && echo torch)
  diff -r "$SOURCE/bindings/torch/include/ddp/torch" "$MOVED/include/ddp/torch"
  diff -r "$SOURCE/examples/digits" "$MOVED/share/libddp/examples/digits"
  diff -r "$SOURCE/examples/horovod_train" "$MOVED/share/libddp/examples/horovod_train"
  diff -r "$SOURCE/examples/libtorch" "$MOVED/share/libddp/examples/libtorch"
  diff -r "$SOURCE/examples/parameter_server" "$MOVED/share/libddp/examples/parameter_server"
  diff -r "$SOURCE/examples/pytorch" "$MOVED/share/libddp/examples/pytorch"
  cmp "$SOURCE/examples/p2p.py" "$MOVED/share/libddp/examples/p2p.py"
  cmp "$SOURCE/examples/elastic.py" "$MOVED/share/libddp/examples/elastic.py"
  cmp "$SOURCE/LICENSE" "$MOVED/share/libddp/LICENSE"

  run -0 bash -c "cd '$MOVED' && find . -mindepth 1 -maxdepth 1 ! -name bin ! -name lib ! -name '${LIBDIR%%/*}' \
    ! -name libexec ! -name include ! -name share ! -name etc"
  [ -z "$output" ]
  run -1 bash -c "cd '$MOVED' && find . -name '*.a' -o -name '*_test' -o -name '*fake*' -o -name train_digits | grep ."
}

@test "installed documents link to what is installed, except to the sources" {
  run -0 python3 - "$MOVED/share/doc/libddp" <<'END'
import pathlib, re, sys
root = pathlib.Path(sys.argv[1])
sources = ("CONTRIBUTING.md", "benchmarks/", "libddp/", "tests/", "scripts/", "contrib/", "packaging/")
pages = list(root.rglob("*.md"))
assert len(pages) > 20, pages
for page in pages:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)  # lambdas look like links
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        to = (page.parent / link).resolve()
        inside = str((page.parent / link)).replace(str(root) + "/", "").replace("docs/../", "").replace("decisions/../", "")
        assert "://" in link or to.exists() or any(part in inside for part in sources), f"{page}: {link}"
END
}

@test "the page for admins has at most 800 words" {
  [ "$(wc -w <"$SOURCE/docs/reference/admin.md")" -le 800 ]
}

@test "every install rule belongs to a component" {
  run -1 grep -rh --include=cmake_install.cmake 'STREQUAL "Unspecified"' "$BUILD"
  cmake --install "$BUILD" --component runtime --prefix "$PWD/runtime" >/dev/null
  cmake --install "$BUILD" --component development --prefix "$PWD/development" >/dev/null
  [ -x runtime/bin/ddprun ]
  local file
  for file in runtime/include "runtime/$LIBDIR/libddp.so" "runtime/$LIBDIR/cmake" development/bin \
    "development/$LIBDIR/libddp.so.$VERSION"; do
    if [ -e "$file" ]; then echo "in the wrong component: $file"; return 1; fi
  done
  [ -L "development/$LIBDIR/libddp.so" ]
  if has_slurm_plugin; then
    cmake --install "$BUILD" --component slurm_plugin --prefix "$PWD/plugin" >/dev/null
  fi
  # Together they are the whole.
  diff <(cd "$MOVED" && find . ! -type d | sort) \
    <(find runtime development $(if [ -d plugin ]; then echo plugin; fi) ! -type d -printf './%P\n' | sort)
}

@test "no library path is absolute, except to libraries of other packages that the loader does not find" {
  local file path
  while read -r file; do
    readelf -h "$file" >/dev/null 2>&1 || continue
    while read -r path; do
      if [[ -z $path || $path == '$ORIGIN'* ]]; then continue; fi
      if [[ $path != /* || $path == "$BUILD"* || $path == "$SOURCE"* || ! -d $path ]]; then
        echo "$file: $path"
        return 1
      fi
    done < <(readelf -d "$file" | sed -n 's/.*R\(UN\)\?PATH.*\[\(.*\)\]/\2/p' | tr : '\n')
  done < <(find "$MOVED" -type f \( -path '*/bin/*' -o -name '*.so*' -o -path '*/libexec/*' \))
  run -0 ldd "$MOVED/bin/ddp-selftest"
  [[ $output == *"libddp.so.${VERSION%.*} => $MOVED/bin/../$LIBDIR/"* && $output != *"not found"* ]]
}

@test "no installed text names the build or source folder" {
  run -1 grep -rIlF -e "$BUILD/" -e "$SOURCE/" "$MOVED"
  run -1 grep -rIlF "$BATS_FILE_TMPDIR" "$MOVED/$LIBDIR/cmake" "$MOVED/$LIBDIR/pkgconfig"
}

@test "the moved programs run" {
  run -0 "$MOVED/bin/ddp-info" topo
  run -0 "$MOVED/bin/ddprun" --nproc-per-node=2 "$MOVED/bin/ddp-selftest"
  run -0 "$MOVED/bin/ddprun" --nproc-per-node 2 sh -c 'echo "rank $RANK of $WORLD_SIZE"'
  [[ $output == *"rank 0 of 2"* && $output == *"rank 1 of 2"* ]]
  run -7 "$MOVED/bin/ddprun" --nproc-per-node 2 sh -c 'exit 7'
}

@test "pkg-config: a program compiles, links and runs" {
  export PKG_CONFIG_PATH=$MOVED/$LIBDIR/pkgconfig
  [ "$(pkg-config --modversion ddp)" = "$VERSION" ]
  [ "$(realpath "$(pkg-config --variable=libdir ddp)")" = "$MOVED/$LIBDIR" ]
  readme_program >train.cpp
  [ -s train.cpp ]
  # PMIx' and hwloc's headers are not asked for.
  [ -z "$(pkg-config --print-requires ddp)" ]
  run -1 g++ -std=c++17 -fsyntax-only -fmax-errors=1 train.cpp $(pkg-config --cflags ddp)
  [[ $output == *'#error "libddp needs -std=c++20"'* ]]
  g++ -std=c++20 train.cpp -o train $(pkg-config --cflags --libs ddp) "-Wl,-rpath,$MOVED/$LIBDIR"
  run -0 "$MOVED/bin/ddprun" --nproc-per-node 4 ./train
  [[ $output == *"4 ranks: weights[0] = 1.500"* ]]
}

@test "the CMake project of docs/howto/cpp.md compiles, links and runs" {
  mkdir project
  readme_program >project/train.cpp
  page_block "$SOURCE/docs/howto/cpp.md" cmake CMakeLists.txt >project/CMakeLists.txt
  [ "$(grep -c 'ddp::ddp' project/CMakeLists.txt)" -eq 1 ]
  cmake -G Ninja -S project -B build "-DCMAKE_PREFIX_PATH=$MOVED" >/dev/null
  cmake --build build
  run -0 "$MOVED/bin/ddprun" --nproc-per-node 4 build/train
  [[ $output == *"4 ranks: weights[0] = 1.500"* ]]
}

@test "a backend plugin compiles as docs/howto/backend.md says, and carries a group" {
  mkdir project plugins
  page_block "$SOURCE/docs/howto/backend.md" cmake CMakeLists.txt >project/CMakeLists.txt
  sed 's/\.name = "example"/.name = "mine"/' "$SOURCE/tests/support/example_backend.cpp" >project/my_backend.cpp
  cmake -G Ninja -S project -B build "-DCMAKE_PREFIX_PATH=$MOVED" >/dev/null
  cmake --build build
  run -1 "$MOVED/bin/ddprun" --nproc-per-node 2 --backend mine "$MOVED/bin/ddp-selftest"
  [[ $output == *"libddp_mine.so"*"DDP_BACKEND_PATH"* ]] || { echo "$output"; return 1; }
  mv build/libddp_mine.so plugins
  DDP_BACKEND_PATH=$PWD/plugins run -0 "$MOVED/bin/ddprun" --nproc-per-node 2 --backend mine "$MOVED/bin/ddp-selftest"
  [[ $output == *"1 of 1 nodes passed"* ]] || { echo "$output"; return 1; }
}

@test "find_package: the target needs nothing but the header folder" {
  run -0 find_ddp "$MOVED" "0.1 REQUIRED"
  [[ $output == *"ddp=1 "* ]]
  [[ $output == *"file=$MOVED/$LIBDIR/libddp.so.$VERSION folders=$MOVED/include libraries=libraries-NOTFOUND"* ]]
  run -1 find_ddp "$MOVED" "99.0 REQUIRED"
  [[ $output == *"$VERSION"* ]]
}

@test "find_package: components" {
  run -0 find_ddp "$MOVED" "REQUIRED COMPONENTS host cpu gloo OPTIONAL_COMPONENTS nccl torch"
  local plugin="$MOVED/$LIBDIR/libddp_nccl.so" nccl=FALSE
  [ ! -e "$plugin" ] || nccl=TRUE
  [[ $output == *"ddp=1 host=TRUE nccl=$nccl torch=FALSE"* ]]
  run -1 find_ddp "$MOVED" "REQUIRED COMPONENTS host torch"
  [[ $output == *"component torch: libtorch was not found, add its folder"* ]]
  run -0 find_ddp "$MOVED" "QUIET COMPONENTS torch"
  [[ $output == *"ddp=0 "* && $output != *"file="* ]]
  # as an administrator may take it away, and as it is without CUDA's headers
  [ $nccl = FALSE ] || mv "$plugin" "$plugin.away"
  run -1 find_ddp "$MOVED" "REQUIRED COMPONENTS host nccl"
  [ $nccl = FALSE ] || mv "$plugin.away" "$plugin"
  [[ $output == *"component nccl: this libddp $VERSION was built without it (DDP_WITH_NCCL"* ]]
  run -1 find_ddp "$MOVED" "REQUIRED COMPONENTS mpi"
  [[ $output == *"component mpi: there is no such component, known are host, nccl and torch"* ]]
}

@test "the installed example is a project of its own, and trains on four ranks" {
  cp -r "$MOVED/share/libddp/examples/digits" my_project
  cmake -G Ninja -S my_project -B build "-DCMAKE_PREFIX_PATH=$MOVED" -DCMAKE_CXX_COMPILER_LAUNCHER=
  cmake --build build --parallel "${DDP_JOBS:-2}"
  run -0 ldd build/train_digits
  [[ $output == *"=> $MOVED/$LIBDIR/libddp.so."* ]]
  run -0 "$MOVED/bin/ddprun" --nproc-per-node 4 build/train_digits --epochs 2
  echo "$output"
  [[ $output == *"4 ranks"* || $output == *"epoch"* ]]
}

@test "without Slurm's headers the end of configuring says so, and installing the plugin fails" {
  run -0 cmake -G Ninja -S "$SOURCE" -B build -DDDP_BUILD_TESTS=OFF -DSLURM_INCLUDE_DIR=OFF
  [[ $(tail -n 4 <<<"$output") == *"The plugin for srun (srun --ddp) will NOT be built: slurm/spank.h was not found"*libslurm-dev* ]]
  run -1 cmake --install build --component slurm_plugin --prefix "$PWD/installed"
  [[ ${output//[[:space:]]/} == *"Thereisnopluginforsrun(srun--ddp)toinstall."*"libslurm-dev"* ]]
  [ ! -e installed ]
  [[ $(grep CPACK_COMPONENTS_ALL build/CPackConfig.cmake) != *slurm_plugin* ]]
  # Where nobody wants it, configuring is silent; the rest is installed without it.
  run -0 cmake build -DDDP_BUILD_SLURM_PLUGIN=OFF
  [[ $output != *"plugin for srun"* ]]
  run -1 cmake --install build --component slurm_plugin --prefix "$PWD/installed"
  [[ $output == *"DDP_BUILD_SLURM_PLUGIN is OFF"* ]]
  run -1 grep -rl 'no plugin for srun' build/modulefiles build/scripts
}

@test "the build refuses a plugin that needs more than the C library" {
  has_slurm_plugin || skip "this build has no plugin for srun"
  local check=("-DREADELF=$(command -v readelf)" -P "$SOURCE/srun_plugin/check_needed.cmake")
  grep -q check_needed.cmake "$BUILD/build.ninja"
  run -0 cmake "-DPLUGIN=$MOVED/$LIBDIR/slurm/spank_ddp.so" "${check[@]}"
  cp "$MOVED/libexec/libddp/ddp-step" spank_ddp.so
  run -1 cmake "-DPLUGIN=$PWD/spank_ddp.so" "${check[@]}"
  [[ ${output//[[:space:]]/} == *"itneeds"*"libstdc++.so"*"onlytheClibraryisallowed"* ]]
  [ ! -e spank_ddp.so ] # or the next build would take it for made
}

@test "ddp-plugin writes the place of its tree, and takes it away" {
  has_slurm_plugin || skip "this build has no plugin for srun"
  local switch=$MOVED/share/libddp/scripts/ddp-plugin conf=$PWD/slurm/plugstack.conf.d
  run -1 "$switch" status "$conf"
  [[ $output == *"names no plugin"* ]]
  run -0 "$switch" on "$conf"
  [ "$(grep -v '^#' "$conf/ddp.conf")" = "optional $MOVED/$LIBDIR/slurm/spank_ddp.so" ]
  [[ $output == *"Add to $PWD/slurm/plugstack.conf the line: include $conf/*.conf"* ]]
  echo "include $conf/*.conf" >slurm/plugstack.conf
  run -0 "$switch" on "$conf"
  [[ $output != *Add* ]]
  run -0 "$switch" status "$conf"
  [[ $output == *"$MOVED"* ]]
  run -0 env "SLURM_CONF=$PWD/slurm/slurm.conf" "$switch" status # Slurm looks for plugstack.conf beside it
  [[ $output == "$conf/ddp.conf names $MOVED"* ]]
  echo "include $PWD/slurm/elsewhere/*.conf" >slurm/plugstack.conf # tests/commands/plugin_script.bats has more
  run -1 "$switch" status "$conf"
  [[ $output == *"does not include it"* ]]
  echo "include $conf/*.conf" >slurm/plugstack.conf
  # Another release of Slurm runs here.
  mkdir bin
  printf '#!/bin/sh\necho slurm 99.05.1\n' >bin/srun
  chmod +x bin/srun
  run -1 env "PATH=$PWD/bin:$PATH" "$switch" on "$conf"
  [[ $output == *"built for Slurm "*" and would not be loaded by 99.05"* ]]
  run -0 "$switch" off "$conf"
  [ ! -e "$conf/ddp.conf" ]
  # One that is gone is said.
  echo "optional /gone/spank_ddp.so" >"$conf/ddp.conf"
  run -1 "$switch" status "$conf"
  [[ $output == *"/gone/spank_ddp.so, which is not there"* ]]
  run -2 "$switch" away
}

@test "uninstall removes what was installed and nothing else, ddp.conf first" {
  mkdir -p shared/lib shared/bin
  echo other >shared/lib/other
  cmake --install "$BUILD" --prefix "$PWD/shared" >/dev/null
  cp "$BUILD/install_manifest.txt" .
  [ -x shared/bin/ddprun ]
  run -0 "$SOURCE/scripts/uninstall" "$PWD"
  [ -z "$(find shared -name '*ddp*')" ]
  [ -z "$(find shared -type f ! -name other)" ]
  [ -s shared/lib/other ]
  run -1 "$SOURCE/scripts/uninstall" "$PWD"
  [[ $output == *"has no install_manifest.txt"* ]]
  run -2 "$SOURCE/scripts/uninstall" --help-me
}
