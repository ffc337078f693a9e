#!/usr/bin/env bats
# The modulefiles, as CMake installs them, under Lmod (which reads Lua and Tcl) and Environment Modules (Tcl): what loading
# sets, that unloading leaves nothing behind, and where the tree is found.

bats_require_minimum_version 1.5.0
load modulefiles

setup_file() { modulefiles_setup_file; }
setup() { modulefiles_setup; }

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
  [[ $text == *"loadinglibddp/0.1.0:lib/libddp.so.0.1.0isneitherinthetreearound$site/libddp/$file"* ]]
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
  # The package itself takes its own library, and not the one that the module has put on LD_LIBRARY_PATH, a stand-in here.
  [ -d "$ROOT/build/python/site/libddp" ] || return 0
  ln -s "$ROOT/build/python/site" "$one/lib/libddp/python"
  session '
    module load libddp || fail "not loaded"
    cd; "'"${DDP_TORCH_PYTHON:-$ROOT/build/venv/bin/python}"'" -B -c "import libddp; print(libddp.__file__); libddp.init().process_group().barrier().wait()"'
  [ "$status" -eq 0 ]
  [[ $output == *"$one/lib/libddp/python/libddp/__init__.py"* ]]
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
