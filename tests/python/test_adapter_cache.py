"""The folder of the compiled adapter: what another user may have put there is never loaded, and what is torn is made again.

A small C++ library stands for the adapter. Some cases need root, who gives files to another user.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "bindings" / "python" / "libddp"
OTHER = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user, which needs root")


def module(name):
    spec = importlib.util.spec_from_file_location(name, SOURCES / f"{name}.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


cache_module = module("_adapter_cache")
turn = module("_adapter_turn")


@pytest.fixture
def folder(tmp_path):
    tmp_path.chmod(0o755)
    return tmp_path / "caches" / "libddp"


@pytest.fixture
def kept(folder):
    """A cache that has a.so."""
    return keep(folder, b"\x7fELF library")


def keep(folder, content):
    cache = cache_module.AdapterCache(folder)
    made = folder / "made"
    made.write_bytes(content)
    cache.keep(made, "a.so")
    return cache


def refused(what):
    with pytest.raises(cache_module.Unusable) as caught:
        what()
    return f"{caught.value.cause}; {caught.value.hint}"


def is_there(cache, name="a.so"):
    file = cache.open_library(name)
    if file is not None:
        os.close(file)
    return file is not None


def test_what_was_kept_is_there_and_folders_are_made_for_the_user_alone(folder):
    before = os.umask(0)
    try:
        cache = keep(folder, b"x" * 1000)
    finally:
        os.umask(before)
    assert is_there(cache) and not is_there(cache, "b.so")
    assert [path.stat().st_mode & 0o777 for path in (folder.parent, folder)] == [0o700, 0o700]
    assert (folder / "a.so").stat().st_mode & 0o777 == 0o755
    assert (folder / "a.so").read_bytes().startswith(b"x" * 1000)


def test_a_torn_file_is_not_there(kept, folder):
    whole = (folder / "a.so").read_bytes()
    for torn in (b"", whole[:1], whole[:-1], whole[:-40], whole[1:], bytes(len(whole)), whole + b"\0",
                 whole[:3] + b"\0" + whole[4:]):
        (folder / "a.so").write_bytes(torn)
        assert not is_there(kept), torn
    (folder / "a.so").write_bytes(whole)
    assert is_there(kept)


def test_others_may_not_write_to_the_folder_and_the_hint_is_to_remove_what_is_there(kept, folder):
    for mode in (0o775, 0o757, 0o1777):
        folder.chmod(mode)
        said = refused(lambda: cache_module.AdapterCache(folder))
        assert "others may write to its folder" in said
        assert said.index("remove what is in it") < said.index("chmod go-w")
    folder.chmod(0o755)
    assert is_there(cache_module.AdapterCache(folder))


def test_others_may_not_write_to_a_folder_above_unless_it_is_sticky(kept, folder):
    folder.parent.chmod(0o775)
    said = refused(lambda: cache_module.AdapterCache(folder))
    assert f"others may write to {folder.parent}, so that its folder {folder} may be exchanged" in said
    folder.parent.chmod(0o1777)
    assert is_there(cache_module.AdapterCache(folder))


def test_links_on_the_way_are_judged_by_where_they_lead(kept, folder, tmp_path):
    (tmp_path / "link").symlink_to(folder.parent)
    assert is_there(cache_module.AdapterCache(tmp_path / "link" / "libddp"))
    folder.parent.chmod(0o777)
    assert "may be exchanged" in refused(lambda: cache_module.AdapterCache(tmp_path / "link" / "libddp"))


def test_a_file_that_others_can_change_or_that_has_two_names_is_refused(kept, folder):
    file = folder / "a.so"
    for mode in (0o775, 0o757):
        file.chmod(mode)
        assert "can be written by others" in refused(lambda: kept.open_library("a.so"))
    file.chmod(0o755)
    os.link(file, folder / "b.so")
    said = refused(lambda: kept.open_library("a.so"))
    assert "has 2 names" in said and "remove what is in" in said
    (folder / "b.so").unlink()
    (folder / "c.so").symlink_to(file)
    assert "cannot be opened" in refused(lambda: kept.open_library("c.so"))
    os.mkfifo(folder / "d.so")  # opening it would wait
    assert "is not a regular file" in refused(lambda: kept.open_library("d.so"))


@needs_root
def test_another_users_file_and_folders_are_refused(kept, folder):
    os.chown(folder / "a.so", OTHER, OTHER)
    said = refused(lambda: kept.open_library("a.so"))
    assert f"belongs to uid {OTHER}" in said and "chmod" not in said
    os.chown(folder / "a.so", 0, 0)
    os.chown(folder, OTHER, OTHER)
    assert f"uid {OTHER} owns its folder" in refused(lambda: cache_module.AdapterCache(folder))
    os.chown(folder, 0, 0)
    os.chown(folder.parent, OTHER, OTHER)
    assert f"uid {OTHER} owns {folder.parent}" in refused(lambda: cache_module.AdapterCache(folder))


@needs_root
def test_what_is_exchanged_while_it_is_looked_at_is_not_taken(kept, folder):
    """The folder that was judged stays the one that files are taken from."""
    planted = folder.parent / "planted"
    shutil.copytree(folder, planted)
    (planted / "a.so").write_bytes(b"planted")
    folder.rename(folder.parent / "away")
    planted.rename(folder)
    assert is_there(kept)
    assert not is_there(cache_module.AdapterCache(folder))


def test_a_cache_without_a_home_is_named(monkeypatch):
    for name in ("DDP_TORCH_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cache_module.os.path, "expanduser", lambda text: text)  # as without an entry in the user database
    assert "there is no home folder" in refused(cache_module.place) and not Path("~").exists()
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which the standard says to ignore
    assert "there is no home folder" in refused(cache_module.place)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_module.place() == Path("/somewhere/libddp")


@needs_root
def test_a_file_system_without_programs_is_named(folder):
    folder.mkdir(parents=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "noexec,mode=700", "none", str(folder)], capture_output=True).returncode != 0:
        pytest.skip("nothing can be mounted here")
    try:
        assert "mounted noexec" in refused(lambda: cache_module.AdapterCache(folder))
    finally:
        subprocess.run(["umount", str(folder)], check=True)


ASKERS = """
import fcntl, importlib.util, os, sys, time
spec = importlib.util.spec_from_file_location("turn", sys.argv[1])
turn = importlib.util.module_from_spec(spec)
spec.loader.exec_module(turn)
asked = [0]
real = fcntl.flock
def counted(lock, how):
    asked[0] += os.fstat(lock).st_ino == inode
    return real(lock, how)
fcntl.flock = counted
lock = os.open(sys.argv[2], os.O_RDWR)
inode = os.fstat(lock).st_ino
end = time.monotonic() + float(sys.argv[3])
with turn.on_this_node(sys.argv[4], end + 60):
    turn.wait_for(lock, lambda: time.monotonic() > end, end + 60)
print(asked[0])
"""


def test_one_process_of_a_node_asks_for_the_shared_lock_and_ever_more_seldom(tmp_path):
    import fcntl
    path = tmp_path / "shared.lock"
    with open(path, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        name = f"test-{os.getpid()}"
        askers = [subprocess.Popen([sys.executable, "-c", ASKERS, SOURCES / "_adapter_turn.py", path, "4", name],
                                   stdout=subprocess.PIPE, text=True) for _ in range(8)]
        counts = [int(asker.communicate(timeout=120)[0]) for asker in askers]
    # within 4 s at 0.1, 0.25, 0.48, 0.81 s ...; who comes after the end asks no more
    assert sum(counts) <= 10 and sum(count > 0 for count in counts) == 1, counts
    assert not Path(f"/dev/shm/libddp-{os.geteuid()}-{name}").exists()


def test_another_users_lock_of_the_node_holds_nobody_up(tmp_path):
    import fcntl
    name = f"test-squatted-{os.getpid()}"
    path = Path(f"/dev/shm/libddp-{os.geteuid()}-{name}")
    if os.geteuid() != 0:
        pytest.skip("needs root")
    with open(path, "w") as held:
        os.chown(path, OTHER, OTHER)
        fcntl.flock(held, fcntl.LOCK_EX)
        started = time.monotonic()
        with turn.on_this_node(name, started + 60):
            pass
        assert time.monotonic() - started < 30
    path.unlink(missing_ok=True)


def test_who_waits_long_says_so_once(capfd, monkeypatch):
    monkeypatch.setattr(turn, "_SILENCE", 0.05)
    with turn.told("libddp: compiling"):
        end = time.monotonic() + 30
        while not re.match("libddp: compiling\n$", said := capfd.readouterr().err) and time.monotonic() < end:
            time.sleep(0.05)
    assert said == "libddp: compiling\n"
    monkeypatch.setattr(turn, "_SILENCE", 30)
    with turn.told("libddp: compiling"):
        pass
    assert capfd.readouterr().err == ""
