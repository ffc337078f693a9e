"""Programs of Python that need torch, in processes forked from one that has imported it: seconds earlier than by an interpreter of
their own. python() is for subprocess.run([sys.executable, ...]).

Not for what asks for the interpreter itself, or for what must be set before torch is imported.
"""

import atexit
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

PRELOADED = "torch", "torch.distributed.run", "torch.nn.parallel", "torch._dynamo", "numpy", "pytest"


class Process:
    def __init__(self, arguments, environment, folder="/"):
        self.arguments = [str(word) for word in arguments]
        self.files = [tempfile.NamedTemporaryFile(prefix="ddp-forked-") for _ in range(2)]  # standard output, error
        self.pid = _server().ask({"start": self.arguments, "environment": environment, "folder": str(folder),
                                  "files": [file.name for file in self.files]})

    def wait(self, timeout):
        """subprocess.CompletedProcess, as of subprocess.run(capture_output=True, text=True). Killed when its time is over."""
        status = _server().ask({"wait": self.pid, "seconds": timeout})
        outputs = [Path(file.name).read_text() for file in self.files]
        for file in self.files:
            file.close()
        if status is None:
            raise subprocess.TimeoutExpired(self.arguments, timeout, *outputs)
        return subprocess.CompletedProcess(self.arguments, os.waitstatus_to_exitcode(status), *outputs)


def python(*arguments, environment, timeout, folder="/"):
    """arguments: FILE, -m MODULE or -c PROGRAM, and its own; environment may have PYTHONPATH."""
    return Process(arguments, environment, folder).wait(timeout)


class _Server:
    def __init__(self):
        quiet = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"}
        quiet.pop("PYTHONPATH", None)
        self.process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env=quiet)
        atexit.register(self.end)

    def ask(self, what):
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        self.process.wait(60)


_running = None


def _server():
    global _running
    _running = _running or _Server()
    return _running


# ---- the process that has imported torch -----------------------------------------------------------------------------


def serve():
    for name in PRELOADED:
        __import__(name)
    for line in sys.stdin:
        asked = json.loads(line)
        if "start" in asked:
            sys.stdout.flush()
            answer = os.fork() or become(asked)
        else:
            answer = status_of(asked["wait"], asked["seconds"])
        print(json.dumps(answer), flush=True)


def status_of(pid, seconds):
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def become(asked):
    """As an interpreter that begins with these arguments."""
    code = 1
    try:
        for number, name in enumerate(("/dev/null", *asked["files"])):
            file = os.open(name, os.O_RDWR)
            os.dup2(file, number)
            os.close(file)
        sys.stdin, sys.stdout, sys.stderr = (open(number, mode, closefd=False) for number, mode in enumerate("rww"))
        os.environ.clear()
        os.environ.update(asked["environment"])
        os.chdir(asked["folder"])
        paths = [path for path in os.environ.get("PYTHONPATH", "").split(":") if path]
        sys.path[:] = ["", *paths, *sys.path[1:]]
        del sys.modules["__main__"]
        run(asked["start"])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # what the server has set up is not this one's to end


def run(arguments):
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        program = type(sys)("__main__")
        sys.modules["__main__"] = program
        exec(compile(arguments[1], "<string>", "exec"), program.__dict__)
    else:
        sys.argv = arguments
        sys.path[0] = str(Path(arguments[0]).resolve().parent)
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    serve()
