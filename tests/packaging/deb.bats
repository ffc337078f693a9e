#!/usr/bin/env bats
# The Debian packages on a clean Debian, which is made for this file by mmdebstrap from the archives that the host's apt
# knows: they install with what they depend on and nothing else, work, and can be removed. Needs root, namespaces and the
# archives; says so otherwise. DDP_BIN_DIR: see build_folder.bash.

bats_require_minimum_version 1.5.0
load build_folder.bash

# why_not: what keeps this file from making a clean Debian; nothing if it can try.
why_not() {
  if [ "$(id -u)" != 0 ]; then echo "needs root"; return; fi
  command -v mmdebstrap >/dev/null || { echo "there is no mmdebstrap"; return; }
  unshare --mount --pid --fork --mount-proc true 2>/dev/null || { echo "namespaces are not permitted"; return; }
  [ -s "$BATS_FILE_TMPDIR/sources.list" ] || { echo "the host's apt has no lists of a Debian archive (apt-get update)"; return; }
}

# The Debian archives that the host's apt has lists of, without those of other makers.
debian_archives() {
  local key=/usr/share/keyrings/debian-archive-keyring.gpg
  apt-get indextargets --format "deb $(if [ -e $key ]; then echo "[signed-by=$key]"; fi) \$(REPO_URI) \$(RELEASE) \$(COMPONENT)" \
    'Identifier: Packages' 'Origin: Debian' 2>/dev/null | sort -u
}

setup_file() {
  find_build_folder
  forget_other_installations
  export CLEAN=$BATS_FILE_TMPDIR/clean
  debian_archives >"$BATS_FILE_TMPDIR/sources.list"
  WHY_NOT=$(why_not)
  export WHY_NOT
  [ -z "$WHY_NOT" ] || return 0

  find_wheel
  (cd "$BATS_FILE_TMPDIR" && cpack --config "$BUILD/CPackConfig.cmake" -G DEB -D CPACK_DDP_WHEEL="$WHEEL" -B "$BATS_FILE_TMPDIR/packages") \
    >"$BATS_FILE_TMPDIR/log" 2>&1 || { cat "$BATS_FILE_TMPDIR/log" >&2; return 1; }
  # How the host reaches the archives; the rest of its settings is its own.
  apt-config dump | grep -iE '^Acquire::[^ ]*(Proxy|Check-Valid-Until|Check-Date|Verify-)[^ ]* "[^"]+";' \
    >"$BATS_FILE_TMPDIR/apt.conf" || true
  # Lists and packages are kept until the end, so that the tests need not fetch them again.
  timeout 300 mmdebstrap --mode=root --format=directory --variant=apt --skip=cleanup/apt --dpkgopt=force-unsafe-io \
    --aptopt="$BATS_FILE_TMPDIR/apt.conf" --aptopt='APT::Install-Recommends "false"' \
    "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$CLEAN" "$BATS_FILE_TMPDIR/sources.list" \
    >"$BATS_FILE_TMPDIR/log" 2>&1 || { tail -n 30 "$BATS_FILE_TMPDIR/log" >&2; return 1; }
  local file
  for file in resolv.conf hosts; do cp -L "/etc/$file" "$CLEAN/etc/$file"; done
  mkdir "$CLEAN/packages"
  cp "$BATS_FILE_TMPDIR"/packages/*.deb "$CLEAN/packages"
  [ ! -e "$CLEAN/usr/bin/ddprun" ]
  clean sh -c "apt-get install -y -q ./packages/libddp_*.deb"
}

teardown_file() {
  rm -rf "$CLEAN"
}

setup() {
  [ -z "$WHY_NOT" ] || skip "$WHY_NOT"
}

# clean COMMAND...: runs it in the clean Debian, in namespaces of its own, so that no mount and no process is left.
clean() {
  timeout 200 unshare --mount --pid --fork --kill-child --propagation private sh -c '
    root=$1
    shift
    mount -t proc proc "$root/proc" && mount -t sysfs -o ro sysfs "$root/sys" && mount --rbind /dev "$root/dev" || exit 125
    cd "$root" && exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 \
      ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} chroot . "$@"' sh "$CLEAN" "$@" </dev/null 3>&-
}

@test "libddp installs with its dependencies alone" {
  run -0 clean dpkg-query -W -f '${Package} ${db:Status-Status}\n' libddp libpmix2
  [[ $output == *"libddp installed"* ]]
  # No headers, compilers or Slurm came with it.
  run -0 clean sh -c "dpkg-query -W -f '\${Package}\n' | grep -E -- '-dev(:|$)|^(g[+][+]|gcc)(-[0-9]+)?$|slurm' || true"
  echo "$output"
  [ -z "$output" ]
  run -0 clean ldconfig -p
  [[ $output == *libddp.so.0.1* ]]
  run -0 clean sh -c 'ldd /usr/bin/ddprun /usr/bin/ddp-info /usr/bin/ddp-selftest'
  [[ $output != *"not found"* ]]
}

@test "ddprun and ddp-info work" {
  run -0 clean ddp-info topo
  [ -n "$output" ]
  run -0 clean ddprun --nproc-per-node 2 sh -c 'echo "rank $RANK of $WORLD_SIZE"'
  [[ $output == *"rank 0 of 2"* && $output == *"rank 1 of 2"* ]]
  run -7 clean ddprun --nproc-per-node 2 sh -c 'exit 7'
}

@test "a program that was linked elsewhere trains" {
  readme_program >"$BATS_TEST_TMPDIR/train.cpp"
  g++ -std=c++20 "$BATS_TEST_TMPDIR/train.cpp" -o "$CLEAN/root/train" -I"$SOURCE/libddp/include" -L"$CLEAN/usr/lib" -l:libddp.so.0.1 \
    -Wl,--allow-shlib-undefined
  run -0 clean ddprun --nproc-per-node 4 /root/train
  [[ $output == *"4 ranks: weights[0] = 1.500"* ]]
}

@test "python3-libddp: a program of Debian's Python, and what pip says of it" {
  [ -n "$WHEEL" ] || skip "there is no wheel (scripts/python-env)"
  local minor
  minor=$(sed 's/.*-cp3\([0-9]*\)-.*/\1/' <<<"$WHEEL")
  run -0 clean sh -c 'apt-cache madison python3 | head -n 1'
  [[ $output == *" 3.$minor."* ]] || skip "the wheel is for Python 3.$minor, and Debian has ${output#*|}"
  run -0 clean sh -c "apt-get install -y -q ./packages/python3-libddp_*.deb"
  cat >"$CLEAN/root/train.py" <<'END'
import array, libddp
with libddp.init() as world:
    numbers = array.array("f", [1 << world.rank])
    world.process_group().all_reduce(numbers).wait()
    print(f"rank {world.rank}: {numbers[0]:g}, {libddp.__file__}\n", end="")
END
  run -0 clean ddprun --nproc-per-node 2 python3 /root/train.py
  [[ $output == *"rank 0: 3, /usr/lib/python3/dist-packages/libddp/__init__.py"* && $output == *"rank 1: 3, "* ]]
  run -0 clean sh -c 'python3 -m libddp version && ddp-info version'
  [ "${lines[0]}" = "${lines[$((${#lines[@]} / 2))]}" ]
  run -0 clean sh -c "python3 -c \"import importlib.metadata as m; print(m.version('libddp'), m.entry_points(group='torch.backends')['libddp'].value)\""
  [[ $output == 0.*" libddp_autoload:load" ]]
  # Not with a library of another version, and without a trace when it is removed.
  run ! clean dpkg --remove libddp
  run -0 clean sh -c 'dpkg --purge python3-libddp && find /usr/lib/python3 -name "*ddp*"'
  [[ $output != *dist-packages* ]]
}

@test "libddp-dev installs beside it, and is refused without it" {
  run -0 clean sh -c "apt-get install -y -q ./packages/libddp-dev_*.deb"
  [ -e "$CLEAN/usr/lib/cmake/ddp/ddpConfig.cmake" ]
  [ "$(readlink "$CLEAN/usr/lib/libddp.so")" = libddp.so.0.1 ]
  run ! clean dpkg --remove libddp
}

@test "slurm-plugin-ddp installs, keeps its settings, switches the plugin off when it is removed and on again" {
  has_slurm_plugin || skip "this build has no plugin for srun"
  local conf=$CLEAN/etc/slurm/plugstack.conf.d/ddp.conf version
  run -0 clean sh -c "apt-get install -y -q ./packages/slurm-plugin-ddp_*.deb"
  run -0 clean dpkg-query -W -f '${db:Status-Status}' slurm-wlm-basic-plugins
  [ "$output" = installed ]
  [ "$(sed -n 's/^optional //p' "$conf")" = /usr/lib/slurm/spank_ddp.so ]
  run -0 clean ldd /usr/lib/slurm/spank_ddp.so /usr/libexec/libddp/ddp-step
  [[ $output != *"not found"* ]]

  # An upgrade keeps what the admin has written.
  dpkg-deb -R "$CLEAN"/packages/slurm-plugin-ddp_*.deb "$BATS_TEST_TMPDIR/next"
  version=$(sed -n 's/^Version: //p' "$BATS_TEST_TMPDIR/next/DEBIAN/control").1
  sed -i "s/^Version: .*/Version: $version/" "$BATS_TEST_TMPDIR/next/DEBIAN/control"
  dpkg-deb -b "$BATS_TEST_TMPDIR/next" "$CLEAN/packages/next.deb"
  echo "# ours" >>"$conf"
  run -0 clean apt-get install -y -q ./packages/next.deb
  run -0 clean dpkg-query -W -f '${Version}' slurm-plugin-ddp
  [ "$output" = "$version" ]
  grep -q '^# ours' "$conf"

  # A removed package's settings would name a plugin that is not there.
  run -0 clean apt-get remove -y -q slurm-plugin-ddp
  [ ! -e "$conf" ]
  run -0 clean apt-get install -y -q ./packages/next.deb
  grep -q '^# ours' "$conf"
  run -0 clean apt-get remove -y -q slurm-plugin-ddp
  run -0 clean apt-get purge -y -q slurm-plugin-ddp
  [ ! -e "$conf.removed" ]
}

@test "a job that runs while libddp is installed again and removed ends well; removal leaves nothing" {
  cat >"$CLEAN/root/while_packages_change" <<'END'
ddprun --nproc-per-node 2 --max-restarts 1 sh -c '
  touch "/root/up.$RANK.$TORCHELASTIC_RESTART_COUNT"
  until [ -e "/root/go.$TORCHELASTIC_RESTART_COUNT" ]; do sleep 0.1; done
  [ "$TORCHELASTIC_RESTART_COUNT" = 1 ] && echo "rank $RANK done"' >/root/out 2>&1 &
job=$!
# up ATTEMPT: both ranks of it have started.
up() {
  for _ in $(seq 600); do
    if [ -e "/root/up.0.$1" ] && [ -e "/root/up.1.$1" ]; then return; fi
    sleep 0.1
  done
  cat /root/out
  exit 1
}
up 0
apt-get install -y -q --reinstall /packages/libddp_*.deb || exit 1
touch /root/go.0 # and fail
up 1
apt-get purge -y -q libddp libddp-dev || exit 1
touch /root/go.1
wait $job
status=$?
cat /root/out
exit $status
END
  run -0 clean sh /root/while_packages_change
  [[ $output == *"rank 0 done"* && $output == *"rank 1 done"* ]]
  run -0 find "$CLEAN/usr" "$CLEAN/etc" -name '*ddp*' ! -name 'addpart*' ! -path '*/dpkg/*'
  echo "$output"
  [ -z "$output" ]
  run -0 clean ldconfig -p
  [[ $output != *libddp* ]]
}
