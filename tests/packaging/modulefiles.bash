# For bats files about the modulefiles: installed trees of two versions, and shells in which a module system reads them. The
# trees hold stand-ins for what a build makes, so that no build is needed.
#
# DDP_LMOD_INIT: Lmod's init/bash. DDP_MODULECMD: modulecmd.tcl of Environment Modules. Both may lie in an unpacked package,
# because Debian's packages cannot be installed together; build/environment-modules is looked at too.

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
    g++ -x c++ -shared -fPIC -Wl,-soname,libddp.so.0.1 -o "$prefix/lib/libddp.so.$version" -
  ln -s "libddp.so.$version" "$prefix/lib/libddp.so.0.1"
  ln -s libddp.so.0.1 "$prefix/lib/libddp.so"
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

modulefiles_setup_file() {
  umask 022 # as root, Lmod passes over what not all may read
  unset DESTDIR "${!CMAKE_@}"
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

modulefiles_setup() {
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
