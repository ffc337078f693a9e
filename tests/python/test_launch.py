"""libddp.launch() and libddp.horovod.run(): functions as ranks of jobs, from a program, a session, and as other hosts' ranks."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("torch", reason="torch is not installed")
from jobs import SITE, environment, run  # noqa: E402

FUNCTIONS = r"""
import os, sys, threading, time

def product(one, other=1):
    return int(os.environ["RANK"]), one * other

def fails(lasts=0):
    if os.environ["RANK"] == "1":
        raise KeyError("nothing of that name")
    time.sleep(lasts)
    return "done"

def unpicklable():
    return threading.Lock()

class Odd(Exception):
    def __init__(self, one, other):
        super().__init__(one)

def raises_odd():
    raise Odd("both", "are needed")

def leaves(status):
    sys.exit(status)

def dies():
    os.kill(os.getpid(), 9)

def speaks():
    sys.stdout.write(f"said by {os.environ['RANK']}\n")  # at once, as both ranks write
    sys.stdin.read()

def waits(path):
    with open(path + os.environ["RANK"], "w") as file:
        file.write(str(os.getpid()))
    time.sleep(600)
"""


@pytest.fixture
def program(tmp_path):
    """Runs a program beside a module `functions`."""
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    (tmp_path / "scratch").mkdir()

    def start(text, *arguments, **variables):
        (tmp_path / "program.py").write_text("import libddp, functions, os, sys\n" + text)
        done = run(sys.executable, tmp_path / "program.py", *arguments,
                   **{"TMPDIR": str(tmp_path / "scratch"), "DDP_BIND": "none", **variables})
        assert not [each for each in os.listdir(tmp_path / "scratch") if each.startswith(".ddp-launch")], "files are left"
        return done

    start.folder = tmp_path
    return start


def test_results_come_by_rank(program):
    done = program("""
def own(word):
    return word, os.environ["WORLD_SIZE"]
if __name__ == "__main__":
    assert libddp.launch(functions.product, nproc_per_node=3)(4, other=5) == [(0, 20), (1, 20), (2, 20)]
    assert libddp.launch(own, nproc=2)("a") == [("a", "2")] * 2
    assert libddp.launch(functions.product, 1, env={"RANK_": "1"}, options=["--role", "one"])("x") == [(0, "x")]
    assert libddp.launch(functions.leaves, 2)(0) == [None, None]
    print("PASSED", sys.argv)
""", "an argument")
    assert done.returncode == 0 and "PASSED" in done.stdout, done.stdout + done.stderr


def test_what_a_rank_raises_is_raised_with_its_rank(program):
    done = program("""
def failure(call):
    try:
        call()
    except libddp.LaunchFailed as error:
        return error
    raise AssertionError("nothing failed")
if __name__ == "__main__":
    error = failure(lambda: libddp.launch(functions.fails, 3)(lasts=600))
    assert "rank 1 raised KeyError: 'nothing of that name'" in str(error) and "in fails" in str(error), error
    assert error.ranks == (1,) and isinstance(error.exceptions[1], KeyError) and error.__cause__ is error.exceptions[1]
    assert error.status == 1 and error.results == {} and isinstance(error, libddp.Error)
    error = failure(libddp.launch(functions.unpicklable, 2))
    assert isinstance(error.exceptions[0], TypeError) and "returned cannot be pickled" in str(error), error
    error = failure(libddp.launch(functions.raises_odd, 1))
    assert "rank 0 raised RuntimeError: Odd: both" in str(error), error
    error = failure(lambda: libddp.launch(functions.leaves, 1)(5))
    assert error.status == 5 and "SystemExit: 5" in str(error), error
    error = failure(libddp.launch(functions.dies, 1))
    assert error.status == 137 and "no rank returned anything" in str(error) and not error.exceptions, error
    error = failure(lambda: libddp.launch(functions.fails, 1, options=["--no-such-option"])())
    assert error.status == 2, error
    print("PASSED")
""")
    assert done.returncode == 0 and "PASSED" in done.stdout, done.stdout + done.stderr


def test_what_cannot_start_is_refused(program):
    done = program("""
def refused(call, words):
    try:
        call()
    except libddp.InvalidArgument as error:
        assert words in str(error), error
    else:
        raise AssertionError(words)
if __name__ == "__main__":
    refused(lambda: libddp.launch(3), "not a function")
    refused(libddp.launch(lambda: 3, 1), "cannot be pickled")
    refused(lambda: libddp.launch(functions.product, 1)(lambda: 3), "install cloudpickle")
    print("PASSED")
""", PYTHONPATH=f"{hidden(program.folder, 'cloudpickle')}:{SITE}")
    assert done.returncode == 0 and "PASSED" in done.stdout, done.stdout + done.stderr
    unguarded = program("def own(): return 1\nprint(libddp.launch(own, 1)())\n",
                        PYTHONPATH=f"{hidden(program.folder, 'cloudpickle')}:{SITE}")
    assert unguarded.returncode == 1 and "launch below if __name__ == '__main__'" in unguarded.stderr, unguarded.stderr


def hidden(folder, module):
    """A folder for PYTHONPATH in which the module cannot be imported."""
    (folder / "hidden").mkdir(exist_ok=True)
    (folder / "hidden" / f"{module}.py").write_text(f"raise ImportError('no {module}')\n")
    return folder / "hidden"


SESSION = "import libddp, os\ndef own(x): return x + int(os.environ['RANK'])\nprint(libddp.launch(own, 2)(5))\n"


def test_a_session_needs_cloudpickle(tmp_path):
    done = run(sys.executable, "-c", SESSION, PYTHONPATH=f"{hidden(tmp_path, 'cloudpickle')}:{SITE}")
    assert done.returncode == 1 and "install cloudpickle, or put the function into a module" in done.stderr, done.stderr
    pytest.importorskip("cloudpickle", reason="cloudpickle is not installed")
    done = run(sys.executable, "-c", SESSION)
    assert done.stdout == "[5, 6]\n", done.stdout + done.stderr


def test_output_goes_where_pythons_does(program):
    done = program("""
import contextlib, io
if __name__ == "__main__":
    with contextlib.redirect_stdout(io.StringIO()) as written:
        libddp.launch(functions.speaks, 2)()
    assert sorted(written.getvalue().splitlines()) == ["said by 0", "said by 1"], written.getvalue()
    libddp.launch(functions.speaks, 2)()
""")
    assert done.returncode == 0 and sorted(done.stdout.splitlines()) == ["said by 0", "said by 1"], done.stdout + done.stderr


def test_an_interrupt_ends_the_ranks(program):
    (program.folder / "program.py").write_text("import libddp, functions\nif __name__ == '__main__':\n"
                                               f"    libddp.launch(functions.waits, 2)({str(program.folder / 'pid')!r})\n")
    running = subprocess.Popen([sys.executable, str(program.folder / "program.py")], env=environment(DDP_BIND="none"), stderr=subprocess.PIPE,
                               text=True)
    files = [program.folder / f"pid{rank}" for rank in (0, 1)]
    limit = time.monotonic() + 120
    while not all(each.exists() and each.read_text() for each in files):
        assert time.monotonic() < limit and running.poll() is None
        time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=120)
    assert "KeyboardInterrupt" in err, err
    for each in files:
        with pytest.raises(ProcessLookupError):
            os.kill(int(each.read_text()), 0)


def test_horovods_run(program):
    done = program("""
import horovod_names
if __name__ == "__main__":
    import libddp.horovod as hvd
    assert hvd.run(horovod_names.own, args=(3,), kwargs={"other": 4}, num_proc=2, verbose=0, use_gloo=True) == [(0, 2, 7), (1, 2, 7)]
    for wrong, kind in (({"min_num_proc": 1}, NotImplementedError), ({"start_timeout": "soon"}, ValueError), ({"num_proc": "x"}, ValueError)):
        try:
            hvd.run(horovod_names.own, args=(3,), **wrong)
        except kind:
            continue
        raise AssertionError(wrong)
    try:
        hvd.run(functions.fails, np=2)
    except libddp.LaunchFailed as error:
        assert "rank 1 raised KeyError" in str(error), error
    print("PASSED")
""" if (program.folder / "horovod_names.py").write_text(
        "import os\ndef own(one, other):\n    assert os.environ['DDP_AS'] == 'horovod,mpi4py'\n"
        "    return int(os.environ['HOROVOD_RANK']), int(os.environ['HOROVOD_SIZE']), one + other\n") else "")
    assert done.returncode == 0 and "PASSED" in done.stdout, done.stdout + done.stderr
    assert not re.search(r"^usage", done.stdout, re.MULTILINE)
