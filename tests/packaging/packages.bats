#!/usr/bin/env bats
# What cpack makes of a build folder: the Debian packages' contents and control files, and the archive. And that recipes
# for other systems are well formed. DDP_BIN_DIR: see build_folder.bash.

bats_require_minimum_version 1.5.0
load build_folder.bash

setup_file() {
  find_build_folder
  forget_other_installations
  find_wheel
  export PACKAGES=$BATS_FILE_TMPDIR/packages
  # Who makes packages may have any umask.
  (umask 077 && cpack --config "$BUILD/CPackConfig.cmake" -D CPACK_DDP_WHEEL="$WHEEL" -B "$PACKAGES" >"$BATS_FILE_TMPDIR/log" 2>&1) ||
    { cat "$BATS_FILE_TMPDIR/log" >&2; return 1; }
  VERSION=$(sed -n 's/.*DDP_VERSION_STRING "\(.*\)"/\1/p' "$SOURCE/libddp/include/ddp/version.hpp")
  ARCHITECTURE=$(dpkg --print-architecture)
  export VERSION ARCHITECTURE
}

setup() {
  forget_other_installations
  cd "$BATS_TEST_TMPDIR"
}

deb() { echo "$PACKAGES/$1_${VERSION}_$ARCHITECTURE.deb"; }
field() { dpkg-deb -f "$(deb "$1")" "$2"; }
unpack() { dpkg-deb -x "$(deb "$1")" "$1"; }

# The packages that there must be.
names() {
  echo libddp libddp-dev $(if has_slurm_plugin; then echo slurm-plugin-ddp; fi) $(if [ -n "$WHEEL" ]; then echo python3-libddp; fi)
}

@test "cpack makes all packages without a warning" {
  run -1 grep -i -A 3 warning "$BATS_FILE_TMPDIR/log"
  diff <(for name in $(names); do basename "$(deb "$name")"; done | sort) <(cd "$PACKAGES" && ls ./*.deb | sed 's|./||' | sort)
  [ "$(find "$PACKAGES" -maxdepth 1 -name '*.tar.gz' | wc -l)" -eq 1 ]
}

@test "control fields" {
  local name value synopses=
  for name in $(names); do
    [ "$(field "$name" Package)" = "$name" ]
    [ "$(field "$name" Version)" = "$VERSION" ]
    [[ $(field "$name" Maintainer) =~ ^[^\<]+\ \<[^@]+@[^\>]+\>$ ]]
    # One line of synopsis, which no other package has, and lines that fit a terminal.
    value=$(field "$name" Description | head -n 1)
    [[ $value == *"data-parallel training"* || $name == python3-libddp ]]
    [[ $synopses != *"|$value|"* ]]
    synopses+="|$value|"
    [ "$(field "$name" Description | awk 'length > 80' | wc -l)" -eq 0 ]
    [ "$(field "$name" Description | wc -l)" -gt 2 ]
  done
  # By dpkg-shlibdeps, from what the programs and libraries load.
  value=$(field libddp Depends)
  for name in libc6 libstdc++6 libpmix2 libhwloc15 libsodium23 libfmt; do
    if [[ $value != *$name* ]]; then echo "libddp does not depend on $name: $value"; return 1; fi
  done
  [[ $value != *-dev* ]]
  [ "$(field libddp-dev Depends)" = "libddp (= $VERSION)" ]
  [ "$(dpkg-deb -I "$(deb libddp)" shlibs)" = "libddp ${VERSION%.*} libddp (>= $VERSION), libddp (<< 0.$((${VERSION:2:1} + 1)))" ]
  [[ $(dpkg-deb -I "$(deb libddp)" triggers) == *ldconfig* ]]
}

@test "files: owners, permissions, stripped, pages compressed, a copyright, no paths of the build" {
  local name file
  for name in $(names); do
    unpack "$name"
    run -1 grep -v -E '^([d-]rw[-x]r-[-x]r-[-x]|lrwxrwxrwx) root/root ' <(dpkg-deb -c "$(deb "$name")")
    run -1 grep -E '^d(..|.....|........)[^x]' <(dpkg-deb -c "$(deb "$name")")
    [ -s "$name/usr/share/doc/$name/copyright" ]
    run -1 grep -rIlF -e "$BUILD" -e "$SOURCE" -e _CPack_Packages -e "$BATS_FILE_TMPDIR" "$name"
    while read -r file; do
      readelf -h "$file" >/dev/null 2>&1 || continue
      if [[ $(readelf -SW "$file") == *.debug_* ]]; then echo "not stripped: $file"; return 1; fi
      if readelf -d "$file" | grep -E 'R(UN)?PATH' | grep -v -F '[$ORIGIN'; then echo "has a path: $file"; return 1; fi
    done < <(find "$name" -type f)
    run -1 grep -v '\.gz$' <(find "$name/usr/share/man" -type f 2>/dev/null)
    # Nothing of an installation beside the system's.
    run -1 grep -E '^\./(usr/(etc|local)|opt)' <(cd "$name" && find . -mindepth 1)
  done
  [ -x libddp/usr/bin/ddprun ]
  [ -s libddp/usr/share/man/man1/ddprun.1.gz ]
  [ -s libddp/usr/share/zsh/vendor-completions/_ddprun ]
  # One file, one package.
  run -0 bash -c "for name in $(names | tr '\n' ' '); do (cd \$name && find . ! -type d); done | sort | uniq -d"
  [ -z "$output" ]
}

@test "the Python package: for the wheel's Python, over the library of the other package" {
  [ -n "$WHEEL" ] || skip "there is no wheel (scripts/python-env)"
  local minor modules value link
  minor=$(sed 's/.*-cp3\([0-9]*\)-.*/\1/' <<<"$WHEEL")
  value=$(field python3-libddp Depends)
  echo "$value"
  [[ $value == *"libddp (= $VERSION)"* && $value == *"python3 (>= 3.$minor)"* && $value == *"libc6 (>= "* ]]
  if [[ $WHEEL == *-abi3-* ]]; then [[ $value != *"python3 (<<"* ]]; else [[ $value == *"python3 (<< 3.$((minor + 1))~)"* ]]; fi
  unpack libddp
  unpack python3-libddp
  modules=python3-libddp/usr/lib/python3/dist-packages
  [ "$(ls $modules)" = "libddp
libddp-$VERSION.dist-info
libddp_as.pth
libddp_autoload" ]
  [ "$(ls $modules/libddp-*.dist-info | tr '\n' ' ')" = "INSTALLER METADATA WHEEL entry_points.txt licenses " ]
  # Nothing of the library is there twice.
  while read -r link; do
    value=$(realpath -m "$link")
    [ -e "libddp${value#"$PWD/python3-libddp"}" ] || { echo "$link leads nowhere"; return 1; }
  done < <(find $modules -type l)
  [ "$(find $modules -type l | sort)" = "$modules/libddp/bin/ddp-info
$modules/libddp/bin/ddprun
$(find $modules/libddp/lib -mindepth 1 | sort)" ]
  [ -L $modules/libddp/lib/libddp.so.0.1 ]
  cp "$WHEEL" "libddp-9.9.9-cp311-cp311-linux_x86_64.whl"
  run ! cpack --config "$BUILD/CPackConfig.cmake" -G DEB -D CPACK_DDP_WHEEL="$PWD/libddp-9.9.9-cp311-cp311-linux_x86_64.whl" -B refused
  [[ $output == *"is no wheel of libddp $VERSION"* ]]
}

@test "the plugin's package: the release of Slurm that it is for, its settings as conffiles" {
  has_slurm_plugin || skip "this build has no plugin for srun"
  local header release value plugin
  header=$(sed -n 's/^DDP_SLURM_VERSION_HEADER:[A-Z]*=//p' "$BUILD/CMakeCache.txt")
  release=$(printf '#include "%s"\nint release = SLURM_VERSION_NUMBER;\n' "$header" | gcc -E -P - |
    sed -n 's/.*= \(0x[0-9a-f]*\);/\1/p')
  printf -v release '%02d.%02d' $((release >> 16)) $((release >> 8 & 255))
  value=$(field slurm-plugin-ddp Depends)
  echo "$value"
  [[ $value == *"slurm-wlm-basic-plugins (>= $release) | slurm-smd (>= $release)"* ]]
  [[ $value =~ "slurm-wlm-basic-plugins (<< "([0-9.]+)~\) ]]
  # The installed Slurm, which this build is for, satisfies both.
  value=$(dpkg-query -W -f '${Version}' slurm-wlm-basic-plugins)
  dpkg --compare-versions "$value" ge "$release"
  dpkg --compare-versions "$value" lt "${BASH_REMATCH[1]}~"

  unpack slurm-plugin-ddp
  (cd slurm-plugin-ddp && find etc -type f -printf '/%p\n' | sort) >settings
  [ -s settings ]
  diff settings <(dpkg-deb -I "$(deb slurm-plugin-ddp)" conffiles | sort)
  # What the settings name is in the package.
  plugin=$(sed -n 's/^ *\(optional\|required\) *\([^ ]*\).*/\2/p' slurm-plugin-ddp/etc/slurm/plugstack.conf.d/ddp.conf)
  [[ $plugin == /usr/* ]]
  [ -e "slurm-plugin-ddp$plugin" ]
}

@test "the archive has everything, works where it is unpacked, and is stripped" {
  local folder
  tar xzf "$PACKAGES"/*.tar.gz
  folder=$(echo "libddp-$VERSION"-*)
  [ -d "$folder" ]
  cmake --install "$BUILD" --prefix "$PWD/installed" >/dev/null
  diff <(cd installed && find . | sort) <(cd "$folder" && find . | sort)
  [[ $(readelf -SW "$folder/bin/ddprun") != *.debug_* ]]
  run -1 grep -rIlF -e _CPack_Packages -e "$BUILD" "$folder"
  run -1 grep -E '^d(..|.....|........)[^x]' <(tar tzvf "$PACKAGES"/*.tar.gz)
  if has_slurm_plugin; then
    # Where it will lie is not known, so its ddp.conf names nothing until ddp-plugin writes the place.
    run -1 grep -E '^ *(optional|required)' "$folder/etc/slurm/plugstack.conf.d/ddp.conf"
    grep -q 'ddp-plugin on' "$folder/etc/slurm/plugstack.conf.d/ddp.conf"
    "$folder/share/libddp/scripts/ddp-plugin" on "$PWD/conf"
    run -0 sed -n 's/^optional //p' conf/ddp.conf
    [[ $output == "$PWD/$folder/"*/spank_ddp.so && -e $output ]]
  fi
  run -0 "$folder/bin/ddprun" --nproc-per-node 2 sh -c 'echo "rank $RANK of $WORLD_SIZE"'
  [[ $output == *"rank 0 of 2"* && $output == *"rank 1 of 2"* ]]
}

@test "the rpm spec parses, with and without the plugin, and has this version" {
  local spec=$SOURCE/packaging/rpm/libddp.spec
  run -0 rpmspec -P "$spec"
  [[ $output == *DDP_BUILD_SLURM_PLUGIN=ON* ]]
  run -0 rpmspec -P --without slurm "$spec"
  [[ $output == *DDP_BUILD_SLURM_PLUGIN=OFF* ]]
  run -0 rpmspec -P --define 'rhel 9' "$spec"
  [[ $output == *gcc-toolset-12* ]]
  run -0 rpmspec -q --qf '%{name} %{version}\n' "$spec"
  [ "$(sort <<<"$output")" = "libddp $VERSION
libddp-devel $VERSION
slurm-plugin-ddp $VERSION" ]
  run -0 rpmspec -q --without slurm --qf '%{name}\n' "$spec"
  [[ $output != *slurm-plugin* ]]
  # It does find mistakes.
  sed '/^Version:/d' "$spec" >broken.spec
  run ! rpmspec -q broken.spec
}

@test "Spack's recipe is a class with this version, and passes options that the project has" {
  python3 - "$SOURCE" "$VERSION" <<'END'
import ast, pathlib, re, sys
root, version = pathlib.Path(sys.argv[1]), sys.argv[2]
tree = ast.parse((root / "contrib/spack/package.py").read_text())
(package,) = [node for node in tree.body if isinstance(node, ast.ClassDef)]
assert package.name == "Libddp" and [base.id for base in package.bases] == ["CMakePackage"]
calls = {}
for node in package.body:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        calls.setdefault(node.value.func.id, []).append(node.value.args[0].value)
assert version in calls["version"], calls["version"]
assert calls["variant"] == ["slurm_plugin"]
for name in ("pmix", "hwloc", "fmt", "libsodium"):
    assert any(re.match(name + r"(@|$)", spec) for spec in calls["depends_on"]), name
options = [node.value for node in ast.walk(package) if isinstance(node, ast.Constant) and str(node.value).startswith("DDP_")]
known = re.findall(r"option\((DDP_\w+)", (root / "CMakeLists.txt").read_text())
assert options and set(options) <= set(known), (options, known)
END
}

@test "EasyBuild's recipe has what is mandatory, and passes options that the project has" {
  python3 - "$SOURCE" "$VERSION" <<'END'
import ast, pathlib, re, sys
root, version = pathlib.Path(sys.argv[1]), sys.argv[2]
(recipe,) = (root / "contrib/easybuild").glob("libddp-*.eb")
values = {node.targets[0].id: node.value for node in ast.parse(recipe.read_text()).body if isinstance(node, ast.Assign)}
for key in ("easyblock", "name", "version", "homepage", "description", "toolchain", "sources", "moduleclass"):
    assert key in values, key
literal = {key: ast.literal_eval(values[key]) for key in values if key != "sanity_check_paths"}
assert literal["easyblock"] == "CMakeMake" and literal["version"] == version
chain = literal["toolchain"]
assert recipe.name == f"{literal['name']}-{version}-{chain['name']}-{chain['version']}.eb", recipe.name
options = re.findall(r"-D(DDP_\w+)=", literal["configopts"])
known = re.findall(r"option\((DDP_\w+)", (root / "CMakeLists.txt").read_text())
assert options and set(options) <= set(known), (options, known)
END
}
