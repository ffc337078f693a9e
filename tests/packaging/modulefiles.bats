#!/usr/bin/env bats
# The modulefiles, as CMake installs them, under Lmod (which reads Lua and Tcl) and Environment Modules (Tcl): what loading
# sets, that unloading leaves nothing behind, and where the tree is found. The trees hold stand-ins for what a build
# makes, so that no build is needed.
#
# DDP_LMOD_INIT: Lmod's init/bash. DDP_MODULECMD: modulecmd.tcl of Environment Modules. Both may lie in an unpacked package,
# because Debian's packages cannot be installed together; build/environment-modules is looked at too.

bats_require_minimum_version 1.5.0

# make_tree VERSION PREFIX: an installation, with the program, library, header, manual page and ddp.pc.
make_tree() {
  local version=$1 prefix=$2
  configure "$version" "$TREES/build-$version" -DCMAKE_INSTALL_LIBDIR=lib
  cmake --install "$TREES/build-$version" --component runtime --prefix "$prefix"
  mkdir -p "$prefix"/{bin,include/ddp,lib/pkgconfig,share/man/man1}
  printf '#!/bin/sh\necho %s\n' "$version" >"$prefix/bin/ddprun"
  chmod +x "$prefix/bin/ddprun"
  echo '.TH DDPRUN 1' >"$prefix/share/man/man1/ddprun.1"
  echo 'const char* ddp_version();' >"$prefix/include/ddp/stand_in.hpp"
  printf 'Name: ddp\nDescription: stand-in\nVersion: %s\n' "$version" >"$prefix/lib/pkgconfig/ddp.pc"
  echo "const char* ddp_version() { return \"$version\"; }" |
    g++ -x c++ -shared -fPIC -Wl,-soname,libddp.so.0 -o "$prefix/lib/libddp.so.$version" -
  ln -s "libddp.so.$version" "$prefix/lib/libddp.so.0"
  ln -s libddp.so.0 "$prefix/lib/libddp.so"
}

# configure VERSION BUILD OPTION...: a project that has nothing but the modulefiles.
configure() {
  local version=$1 build=$2
  shift 2
  mkdir -p "$TREES/project-$version"
  cat >"$TREES/project-$version/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.25)
project(libddp VERSION $version LANGUAGES NONE)
include(GNUInstallDirs)
add_subdirectory($ROOT/modulefiles modulefiles)
END
  cmake -S "$TREES/project-$version" -B "$build" -DCMAKE_INSTALL_PREFIX=/nowhere "$@"
}

setup_file() {
  umask 022 # as root, Lmod passes over what not all may read
  ROOT=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
  TREES=$BATS_FILE_TMPDIR
  export ROOT TREES
  local version file
  for version in 0.1.0 0.2.0; do
    make_tree "$version" "$TREES/lua/$version"
    make_tree "$version" "$TREES/tcl/$version"
    rm "$TREES/tcl/$version/share/modulefiles/libddp/$version.lua"
  done
  for file in "${DDP_LMOD_INIT:-}" /usr/share/lmod/lmod/init/bash; do
    if [ -r "$file" ]; then
      export LMOD_INIT=$file
      break
    fi
  done
  for file in "${DDP_MODULECMD:-}" /usr/lib/*/modulecmd.tcl /usr/share/Modules/libexec/modulecmd.tcl \
    "$ROOT"/build/environment-modules/usr/lib/*/modulecmd.tcl; do
    if [ -r "$file" ]; then
      export MODULECMD=$file
      break
    fi
  done
}

setup() {
  umask 022
  site=$BATS_TEST_TMPDIR/site
  mkdir -p "$site/libddp" "$BATS_TEST_TMPDIR/home"
  cat >"$BATS_TEST_TMPDIR/prelude" <<'END'
fail() { echo "$*"; exit 1; }
expect() { [ "${!1-(not set)}" = "$2" ] || fail "$1 is '${!1-(not set)}' and not '$2'"; }
expect_unset() { [ -z "${!1+set}" ] || fail "$1 is '${!1}' and should not be set"; }
# What the module systems keep for themselves is no part of the user's environment.
environment() {
  env -0 | grep -zvE '^(_|_ModuleTable.*|__LMOD_(REF_COUNT|STACK)_.*|__MODULES_.*|LOADEDMODULES|_LMFILES_|.*_modshare)=' |
    sort -z | tr '\0' '\n'
}
keep() { environment >"$HOME/kept"; }
expect_kept() { environment | diff "$HOME/kept" - || fail "the environment is not as it was"; }
END
}

# using lmod lua | lmod tcl | modules tcl: which module system reads which file. Sets $one and $two, two versions' trees.
using() {
  case $1 in
    lmod)
      [ -n "${LMOD_INIT:-}" ] || skip "Lmod is not installed; DDP_LMOD_INIT names its init/bash"
      init=". '$LMOD_INIT'"
      ;;
    modules)
      [ -n "${MODULECMD:-}" ] || skip "Environment Modules is not installed; DDP_MODULECMD names its modulecmd.tcl"
      init="eval \"\$(tclsh '$MODULECMD' bash autoinit)\""
      ;;
  esac
  system=$1 language=$2
  one=$TREES/$2/0.1.0 two=$TREES/$2/0.2.0
  file=$([ "$2" = lua ] && echo 0.1.0.lua || echo 0.1.0)
  # Environment Modules finds both files and must take its own.
  if [ "$1" = modules ]; then one=$TREES/lua/0.1.0 two=$TREES/lua/0.2.0; fi
  modulepath=$one/share/modulefiles:$two/share/modulefiles
}

# session COMMANDS: runs them in a bash that has the module command and next to nothing else in its environment.
session() {
  run timeout 120 env -i HOME="$BATS_TEST_TMPDIR/home" PATH=/usr/local/bin:/usr/bin:/bin LC_ALL=C.UTF-8 \
    one="$one" two="$two" bash --noprofile --norc -c "
      $init
      export MODULEPATH='$modulepath'
      . '$BATS_TEST_TMPDIR/prelude'
      $1" 2>&1
  echo "$output"
  # For the one reading: which modulefile was asked.
  echo "$system read $language from $modulepath"
}

loading_sets_the_variables() {
  session '
    module load libddp/0.1.0 || fail "not loaded"
    expect LIBDDP_ROOT "$one"
    expect PATH "$one/bin:/usr/local/bin:/usr/bin:/bin"
    expect PKG_CONFIG_PATH "$one/lib/pkgconfig"
    expect CMAKE_PREFIX_PATH "$one"
    expect CPLUS_INCLUDE_PATH "$one/include"
    expect LIBRARY_PATH "$one/lib"
    expect LD_LIBRARY_PATH "$one/lib"
    expect SLURM_MPI_TYPE pmix
    expect_unset PYTHONPATH
    expect_unset MANPATH
    [ "$(command -v ddprun)" = "$one/bin/ddprun" ] || fail "ddprun is $(command -v ddprun)"
    [ "$(pkg-config --modversion ddp)" = 0.1.0 ] || fail "pkg-config does not find ddp.pc"'
  [ "$status" -eq 0 ]
}
@test "Lmod, Lua: loading sets the variables" { using lmod lua && loading_sets_the_variables; }
@test "Lmod, Tcl: loading sets the variables" { using lmod tcl && loading_sets_the_variables; }
@test "Environment Modules: loading sets the variables" { using modules tcl && loading_sets_the_variables; }

unloading_restores_the_environment() {
  session '
    keep
    module load libddp/0.1.0 || fail "not loaded"
    environment | diff -q "$HOME/kept" - >/dev/null && fail "loading changed nothing"
    module unload libddp/0.1.0 || fail "not unloaded"
    expect_kept'
  [ "$status" -eq 0 ]
}
@test "Lmod, Lua: unloading leaves nothing behind" { using lmod lua && unloading_restores_the_environment; }
@test "Lmod, Tcl: unloading leaves nothing behind" { using lmod tcl && unloading_restores_the_environment; }
@test "Environment Modules: unloading leaves nothing behind" { using modules tcl && unloading_restores_the_environment; }

the_users_own_values_come_back() {
  session '
    export SLURM_MPI_TYPE=pmi2 LIBDDP_ROOT=/mine PATH=/mine/bin:$PATH LD_LIBRARY_PATH=/mine/lib:/other/lib
    export LIBRARY_PATH=/mine/lib CPLUS_INCLUDE_PATH=/mine/include PKG_CONFIG_PATH=/mine/pc CMAKE_PREFIX_PATH=/mine
    export PYTHONPATH=/mine/python
    for MANPATH in /mine/man /mine/man:/other/man : /mine/man: :/mine/man /mine/man::/other/man; do
      export MANPATH
      keep
      module load libddp/0.1.0 || fail "not loaded"
      expect SLURM_MPI_TYPE pmi2
      expect LIBDDP_ROOT "$one"
      expect LD_LIBRARY_PATH "$one/lib:/mine/lib:/other/lib"
      expect CMAKE_PREFIX_PATH "$one:/mine"
      case :$MANPATH: in
        *::*) ;; # the default, to which man-db adds the folder beside bin
        *":$one/share/man:"*) ;;
        *) fail "MANPATH is $MANPATH";;
      esac
      module unload libddp || fail "not unloaded"
      expect_kept
    done
    # The value that the module set, but the user says it himself; and one that he gives later.
    export SLURM_MPI_TYPE=pmix
    keep
    module load libddp/0.1.0
    module unload libddp
    expect_kept
    unset SLURM_MPI_TYPE
    module load libddp/0.1.0
    expect SLURM_MPI_TYPE pmix
    export SLURM_MPI_TYPE=cray_shasta
    module unload libddp
    expect SLURM_MPI_TYPE cray_shasta'
  [ "$status" -eq 0 ]
}
@test "Lmod, Lua: the user's own values come back" { using lmod lua && the_users_own_values_come_back; }
@test "Lmod, Tcl: the user's own values come back" { using lmod tcl && the_users_own_values_come_back; }
@test "Environment Modules: the user's own values come back" { using modules tcl && the_users_own_values_come_back; }

switching_replaces_everything() {
  session '
    for root in "" /mine; do
      if [ -n "$root" ]; then export LIBDDP_ROOT=$root MANPATH=/mine/man; fi
      keep
      module load libddp/0.1.0 || fail "not loaded"
      module switch libddp/0.1.0 libddp/0.2.0 || fail "not switched"
      [ "$(ddprun)" = 0.2.0 ] || fail "ddprun is $(ddprun)"
      expect LIBDDP_ROOT "$two"
      expect LD_LIBRARY_PATH "$two/lib"
      expect SLURM_MPI_TYPE pmix
      environment | grep -vE "^(MODULEPATH|one)=" | grep "0\.1\.0" && fail "that is left of 0.1.0"
      module unload libddp/0.2.0 || fail "not unloaded"
      expect_kept
    done'
  [ "$status" -eq 0 ]
}
@test "Lmod, Lua: switching versions replaces everything" { using lmod lua && switching_replaces_everything; }
@test "Lmod, Tcl: switching versions replaces everything" { using lmod tcl && switching_replaces_everything; }
@test "Environment Modules: switching versions replaces everything" { using modules tcl && switching_replaces_everything; }

# Lmod swaps them, Environment Modules refuses the second.
two_versions_exclude_each_other() {
  session "
    module load libddp/0.1.0 || fail 'not loaded'
    module load libddp/0.2.0 && echo swapped || echo refused
    echo \"loaded: \$LOADEDMODULES\"
    echo \"path: \$PATH\"
    echo \"root: \$LIBDDP_ROOT\""
  [ "$status" -eq 0 ]
  if [ "$system" = lmod ]; then
    [[ $output == *swapped* && $output == *$'\nloaded: libddp/0.2.0\n'* ]]
    [[ $output == *$'\n'"path: $two/bin:/usr/local/bin:/usr/bin:/bin"$'\n'"root: $two"* ]]
  else
    [[ $output == *conflict* && $output == *refused* && $output == *$'\nloaded: libddp/0.1.0\n'* ]]
    [[ $output == *$'\n'"path: $one/bin:/usr/local/bin:/usr/bin:/bin"$'\n'"root: $one"* ]]
  fi
}
@test "Lmod, Lua: two versions exclude each other" { using lmod lua && two_versions_exclude_each_other; }
@test "Lmod, Tcl: two versions exclude each other" { using lmod tcl && two_versions_exclude_each_other; }
@test "Environment Modules: two versions exclude each other" { using modules tcl && two_versions_exclude_each_other; }

# In one folder; of several, Environment Modules takes the first that has any version.
versions_are_offered() {
  ln -s "$one"/share/modulefiles/libddp/* "$two"/share/modulefiles/libddp/* "$site/libddp/"
  modulepath=$site
  session '
    module -t avail libddp
    module load libddp || fail "not loaded"
    echo "newest: $(ddprun)"'
  [ "$status" -eq 0 ]
  [ "$(grep -c '^libddp/0\.1\.0' <<<"$output")" -eq 1 ]
  [ "$(grep -c '^libddp/0\.2\.0' <<<"$output")" -eq 1 ]
  [[ $output != *.lua* ]]
  [[ $output == *"newest: 0.2.0"* ]]
}
@test "Lmod, Lua: both versions are offered, the newest by default" { using lmod lua && versions_are_offered; }
@test "Lmod, Tcl: both versions are offered, the newest by default" { using lmod tcl && versions_are_offered; }
@test "Environment Modules: both versions are offered, the newest by default" { using modules tcl && versions_are_offered; }

a_moved_tree_is_found() {
  make_tree 0.1.0 "$BATS_TEST_TMPDIR/before"
  mkdir "$BATS_TEST_TMPDIR/now"
  mv "$BATS_TEST_TMPDIR/before" "$BATS_TEST_TMPDIR/now/here"
  one="$BATS_TEST_TMPDIR/now/here"
  [ "$language" = lua ] || rm "$one/share/modulefiles/libddp/0.1.0.lua"
  modulepath=$one/share/modulefiles
  loading_sets_the_variables
  unloading_restores_the_environment
  # The site's tree has a link to it.
  ln -s "$one/share/modulefiles/libddp/$file" "$site/libddp/$file"
  modulepath=$site
  loading_sets_the_variables
  # Without its library it is no tree, and the place of the installation is empty.
  rm "$one/lib/libddp.so.0.1.0"
  session '
    keep
    module load libddp/0.1.0 && fail "loaded"
    expect_kept'
  [ "$status" -eq 0 ]
  local text=${output//[[:space:]]/} # which Lmod breaks into lines
  [[ $text == *"loadinglibddp/0.1.0:thereisnolib/libddp.so.0.1.0inthetreearound$site/libddp/$file"* ]]
  [[ $text == *"norin$BATS_TEST_TMPDIR/before,"* ]]
}
@test "Lmod, Lua: a moved tree is found, a missing one refused" { using lmod lua && a_moved_tree_is_found; }
@test "Lmod, Tcl: a moved tree is found, a missing one refused" { using lmod tcl && a_moved_tree_is_found; }
@test "Environment Modules: a moved tree is found, a missing one refused" { using modules tcl && a_moved_tree_is_found; }

a_copy_knows_its_tree() {
  cp "$one/share/modulefiles/libddp/$file" "$site/libddp/"
  modulepath=$site
  loading_sets_the_variables
  # In another version's tree, too.
  cp -a "$two" "$BATS_TEST_TMPDIR/other"
  cp "$one/share/modulefiles/libddp/$file" "$BATS_TEST_TMPDIR/other/share/modulefiles/libddp/"
  modulepath=$BATS_TEST_TMPDIR/other/share/modulefiles
  loading_sets_the_variables
}
@test "Lmod, Lua: a copy elsewhere knows its tree" { using lmod lua && a_copy_knows_its_tree; }
@test "Lmod, Tcl: a copy elsewhere knows its tree" { using lmod tcl && a_copy_knows_its_tree; }
@test "Environment Modules: a copy elsewhere knows its tree" { using modules tcl && a_copy_knows_its_tree; }

it_describes_itself() {
  session 'module help libddp/0.1.0; echo "help: $?"; module whatis libddp/0.1.0; echo "whatis: $?"'
  [[ $output == *"libddp 0.1.0: launcher and library"*"man ddprun"*"$one/share/bash-completion/completions/ddprun"*"help: 0"* ]]
  [[ $output == *"help: 0"*"Name: libddp"*"Version: 0.1.0"*"Category: "*"Description: "*"whatis: 0"* ]]
}
@test "Lmod, Lua: the module describes itself" { using lmod lua && it_describes_itself; }
@test "Lmod, Tcl: the module describes itself" { using lmod tcl && it_describes_itself; }
@test "Environment Modules: the module describes itself" { using modules tcl && it_describes_itself; }

the_python_package_is_found() {
  cp -a "$one" "$BATS_TEST_TMPDIR/tree"
  one=$BATS_TEST_TMPDIR/tree modulepath=$BATS_TEST_TMPDIR/tree/share/modulefiles
  mkdir -p "$one/lib/libddp/python"
  session '
    module load libddp || fail "not loaded"
    expect PYTHONPATH "$one/lib/libddp/python"
    rmdir "$PYTHONPATH"
    module unload libddp || fail "not unloaded"
    expect_unset PYTHONPATH'
  [ "$status" -eq 0 ]
}
@test "Lmod, Lua: a Python package is found" { using lmod lua && the_python_package_is_found; }
@test "Lmod, Tcl: a Python package is found" { using lmod tcl && the_python_package_is_found; }
@test "Environment Modules: a Python package is found" { using modules tcl && the_python_package_is_found; }

manual_pages_are_found() {
  type manpath man >/dev/null || skip "needs man-db"
  session '
    for MANPATH in "" : /mine: /mine; do
      if [ -n "$MANPATH" ]; then export MANPATH; else unset MANPATH; fi
      before=$(manpath -q)
      man -w ddprun >/dev/null 2>&1 && fail "the page is found before loading"
      module load libddp/0.1.0 || fail "not loaded"
      [ "$(man -w ddprun)" = "$one/share/man/man1/ddprun.1" ] || fail "the page is not found with MANPATH ${MANPATH-unset}"
      # Every folder of before is still searched.
      for folder in ${before//:/ }; do
        [[ :$(manpath -q): == *":$folder:"* ]] || fail "$folder is lost: $(manpath -q)"
      done
      module unload libddp/0.1.0
    done'
  [ "$status" -eq 0 ]
}
@test "Lmod, Lua: manual pages are found" { using lmod lua && manual_pages_are_found; }
@test "Lmod, Tcl: manual pages are found" { using lmod tcl && manual_pages_are_found; }
@test "Environment Modules: manual pages are found" { using modules tcl && manual_pages_are_found; }

gcc_links_what_runs() {
  printf '%s\n' '#include <ddp/stand_in.hpp>' '#include <cstdio>' 'int main() { std::puts(ddp_version()); }' \
    >"$BATS_TEST_TMPDIR/home/main.cpp"
  session '
    cd
    g++ main.cpp -o main -lddp 2>/dev/null && fail "it links before loading"
    module load libddp/0.1.0
    g++ -Wall -Werror main.cpp -o main -lddp || fail "it does not link"
    [ "$(./main)" = 0.1.0 ] || fail "it does not run"
    module switch libddp/0.1.0 libddp/0.2.0
    [ "$(./main)" = 0.2.0 ] || fail "it does not take the version that is loaded"'
  [ "$status" -eq 0 ]
}
@test "Lmod, Lua: g++ -lddp links a program that runs" { using lmod lua && gcc_links_what_runs; }
@test "Lmod, Tcl: g++ -lddp links a program that runs" { using lmod tcl && gcc_links_what_runs; }
@test "Environment Modules: g++ -lddp links a program that runs" { using modules tcl && gcc_links_what_runs; }

# With the prefix /usr nothing may come before what the user has in front of /usr/bin.
system_folders_stay() {
  DESTDIR=$BATS_TEST_TMPDIR/root cmake --install "$TREES/build-0.1.0" --prefix /usr
  cp "$BATS_TEST_TMPDIR/root/usr/share/modulefiles/libddp/$file" "$site/libddp/"
  modulepath=$site
  session 'module show libddp/0.1.0'
  [[ $output == *SLURM_MPI_TYPE*pmix* ]]
  [ "$(grep -cE 'PATH[ \t",{]+/usr' <<<"$output")" -eq 0 ]
  # The same file with another prefix shows them.
  sed -i -E '/^(local|set) recorded /s,/usr,/opt/usr,' "$site/libddp/$file"
  session 'module show libddp/0.1.0'
  [ "$(grep -cE 'PATH[ \t",{]+/opt/usr' <<<"$output")" -ge 6 ]
}
@test "Lmod, Lua: the system's folders are left where they are" { using lmod lua && system_folders_stay; }
@test "Lmod, Tcl: the system's folders are left where they are" { using lmod tcl && system_folders_stay; }
@test "Environment Modules: the system's folders are left where they are" { using modules tcl && system_folders_stay; }

# ---- Installing ------------------------------------------------------------------------------------------------------

# recorded PREFIX FOLDER: FOLDER has both modulefiles, and their prefix is PREFIX.
recorded() {
  grep -qxF "local recorded = [==[$1]==]" "$2/libddp/0.1.0.lua"
  grep -qxF "set recorded {$1}" "$2/libddp/0.1.0"
}

@test "the prefix is that of cmake --install, without DESTDIR" {
  cd "$BATS_TEST_TMPDIR"
  cmake --install "$TREES/build-0.1.0" --prefix "$PWD/a b"
  recorded "$PWD/a b" "a b/share/modulefiles"
  cmake --install "$TREES/build-0.1.0" --prefix relative
  recorded "$PWD/relative" relative/share/modulefiles
  DESTDIR=$PWD/stage cmake --install "$TREES/build-0.1.0" --prefix /opt/libddp
  recorded /opt/libddp stage/opt/libddp/share/modulefiles
  DESTDIR=$PWD/stage cmake --install "$TREES/build-0.1.0"
  recorded /nowhere stage/nowhere/share/modulefiles
  DESTDIR=$PWD/root cmake --install "$TREES/build-0.1.0" --prefix /
  recorded / root/share/modulefiles
}

@test "the modulefiles belong to the component runtime" {
  cmake --install "$TREES/build-0.1.0" --component development --prefix "$BATS_TEST_TMPDIR/tree"
  [ ! -e "$BATS_TEST_TMPDIR/tree" ]
  cmake --install "$TREES/build-0.1.0" --component runtime --prefix "$BATS_TEST_TMPDIR/tree"
  recorded "$BATS_TEST_TMPDIR/tree" "$BATS_TEST_TMPDIR/tree/share/modulefiles"
}

@test "folders as the installation chose them" {
  using lmod lua
  configure 0.1.0 "$BATS_TEST_TMPDIR/build" -DCMAKE_INSTALL_LIBDIR=lib/x86_64-linux-gnu -DCMAKE_INSTALL_DATADIR=data \
    -DCMAKE_INSTALL_BINDIR=programs
  one=$BATS_TEST_TMPDIR/before modulepath=$BATS_TEST_TMPDIR/tree/data/modulefiles
  cmake --install "$BATS_TEST_TMPDIR/build" --prefix "$one"
  mv "$one" "$BATS_TEST_TMPDIR/tree"
  one=$BATS_TEST_TMPDIR/tree
  mkdir -p "$one/lib/x86_64-linux-gnu"
  touch "$one/lib/x86_64-linux-gnu/libddp.so.0.1.0"
  session '
    module load libddp || fail "not loaded"
    expect LIBDDP_ROOT "$one"
    expect PATH "$one/programs:/usr/local/bin:/usr/bin:/bin"
    expect LD_LIBRARY_PATH "$one/lib/x86_64-linux-gnu"'
  [ "$status" -eq 0 ]
}

@test "a folder outside the prefix is warned of, and no modulefile installed" {
  run configure 0.1.0 "$BATS_TEST_TMPDIR/build" -DCMAKE_INSTALL_LIBDIR=/usr/lib64
  [ "$status" -eq 0 ]
  [[ ${output//[[:space:]]/} == *"modulefilesarenotinstalled:CMAKE_INSTALL_LIBDIRistheabsolute/usr/lib64"* ]]
  cmake --install "$BATS_TEST_TMPDIR/build" --prefix "$BATS_TEST_TMPDIR/tree"
  [ ! -e "$BATS_TEST_TMPDIR/tree" ]
}
