"""Runs in an interpreter that ddprun starts for a rank of the job's next generation, beside the ranks of this one
(--warm-workers). Imports modules, waits on standard input, a socket, for variables and streams, and then runs the
program as `python PROGRAM` does.

sys.argv: "-c", the modules, the position of the program among the words that follow: the command line of the rank.
FIRST_FOLDER, a variable of this code: what the interpreter had first in sys.path for -c, "", or None for nothing.
"""

import array
import importlib
import importlib.machinery
import io
import os
import pkgutil
import signal
import socket
import struct
import sys


def main():
    modules, position, words = sys.argv[1].split(","), int(sys.argv[2]), sys.argv[3:]
    channel = socket.fromfd(0, socket.AF_UNIX, socket.SOCK_SEQPACKET)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # a module that reads finds the end of its input
    os.close(nothing)
    run = become_main(words, position)
    # Slurm signals all processes of a step; the ranks handle what would end this one. None: a handler that Python cannot restore.
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in (
        signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
        if signal.getsignal(number) is not None}
    failures = [failure for failure in map(import_failure, modules) if failure]
    foreign = initialized_mpi()
    try:
        channel.send("\n".join(["ready"] + failures + foreign).encode("utf-8", "replace"))
    except OSError:  # ddprun is gone
        pass
    files = None if foreign else wait(channel)
    if files is None:
        os._exit(1)
    channel.close()
    ignored = ignored_signals()
    for number, handler in handlers.items():
        if ignored >> (number - 1) & 1:  # else a module, maybe in C, has set its own
            signal.signal(number, handler)
    variables = os.pread(files[3], os.fstat(files[3]).st_size, 0)
    for number, file in enumerate(files):
        if number < 3:
            os.dup2(file, number)
        os.close(file)
    for variable in variables.split(b"\0")[:-1]:  # the others are the same
        name, _, value = variable.partition(b"=")
        os.environb[name] = value
    show(words)
    sys.stdin, sys.stdout, sys.stderr = [stream(number) for number in range(3)]
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    try:
        run()
    except SystemExit:
        raise
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == main.__code__.co_filename:
            trace = trace.tb_next
        show_without_own_frames(trace)
        raise


def import_failure(name):
    try:
        importlib.import_module(name)
    except BaseException as error:  # a module may do anything
        return "%s: %s: %s" % (name, type(error).__name__, " ".join(str(error).split()))


def initialized_mpi():
    """A library that took this process for a job of one rank: it cannot become another."""
    module = sys.modules.get("mpi4py.MPI")
    if module is None or module.__name__.startswith("libddp") or not module.Is_initialized():
        return []
    return ["mpi4py.MPI: MPI is initialized before the rank has its place; all ranks start anew"]


def ignored_signals():
    """A bit for each, from signal 1 on: also where a library in C has changed what Python knows."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1], 16) for line in file if line.startswith("SigIgn:"))


def wait(channel):
    """Descriptors for the standard streams, and one of a file with variables; None when ddprun has ended."""
    try:
        data, messages, _, _ = channel.recvmsg(1, socket.CMSG_SPACE(16))
    except OSError:
        return None
    if not data or not messages:
        return None
    files = array.array("i")
    files.frombytes(messages[0][2][:16])
    return files


def show(words):
    """ps and ddp-info read words and variables from where they were at exec; Linux lets a process name another place."""
    words = b"".join(os.fsencode(word) + b"\0" for word in words)
    variables = b"".join(name + b"=" + value + b"\0" for name, value in os.environb.items())
    try:
        import ctypes
        with open("/proc/self/stat", "rb") as file:
            fields = [0, 0, 0] + file.read().rpartition(b")")[2].split()  # numbered as in proc(5)
        libc = ctypes.PyDLL(None)
        libc.malloc.restype = libc.sbrk.restype = ctypes.c_void_p
        libc.malloc.argtypes = [ctypes.c_size_t]
        place = libc.malloc(len(words) + len(variables))  # never freed: it is read until the process ends
        ctypes.memmove(place, words + variables, len(words) + len(variables))
        code, data, heap, stack = fields[26:28], fields[45:47], int(fields[47]), int(fields[28])
        middle, end = place + len(words), place + len(words) + len(variables)
        places = struct.pack("@12QII", *map(int, code + data), heap, libc.sbrk(0), stack, place, middle, middle, end, 0, 0,
                             0xFFFFFFFF)
        libc.prctl(35, 14, places, ctypes.c_ulong(len(places)), ctypes.c_ulong(0))  # PR_SET_MM, PR_SET_MM_MAP
    except Exception:
        pass


def stream(number):
    """As Python makes sys.stdin, sys.stdout and sys.stderr when it starts."""
    old = (sys.stdin, sys.stdout, sys.stderr)[number]
    raw = io.FileIO(number, "r" if number == 0 else "w", closefd=False)
    raw.name = ("<stdin>", "<stdout>", "<stderr>")[number]
    unbuffered = old.write_through
    lines = not unbuffered and (number == 2 or raw.isatty())
    binary = io.BufferedReader(raw) if number == 0 else raw if unbuffered else io.BufferedWriter(raw)
    text = io.TextIOWrapper(binary, old.encoding, old.errors, "\n", lines, unbuffered)
    text.mode = "r" if number == 0 else "w"
    return text


def show_without_own_frames(trace):
    hook = sys.excepthook

    def shown(kind, error, _):
        hook(kind, error.with_traceback(trace), trace)

    sys.excepthook = shown


def become_main(words, position):
    """A module __main__, sys.argv and sys.path as for these words. Returns what runs the program."""
    word, rest = words[position], words[position + 1:]
    first = vars(sys.modules["__main__"])
    module = type(sys)("__main__")
    space = vars(module)
    space.clear()
    space.update((name, value) for name, value in first.items()
                 if name.startswith("__") and name != "__warningregistry__")
    sys.modules["__main__"] = module
    if hasattr(sys, "orig_argv"):
        words[0] = sys.orig_argv[0]  # where a script starts the interpreter, that is another one
        sys.orig_argv = words
    if word == "-m":
        sys.argv = ["-m"] + rest[1:]
        set_first_folder(os.getcwd())
        return lambda: run_module(rest[0], True)
    if word == "-c":
        sys.argv = ["-c"] + rest[1:]
        set_first_folder("")
        return lambda: exec(compile(rest[0], "<string>", "exec", dont_inherit=True), space)
    sys.argv = [word] + rest
    path = word
    if sys.version_info >= (3, 9) and not os.path.isabs(word):
        path = os.path.join(os.getcwd(), word)
    if pkgutil.get_importer(path) is not None:  # a folder or an archive
        set_first_folder(path)
        return lambda: run_module("__main__", False)
    set_first_folder(os.path.dirname(os.path.realpath(word)))
    return lambda: run_script(path, space)


def set_first_folder(folder):
    if globals()["FIRST_FOLDER"] is not None:
        sys.path.insert(0, folder)


def run_module(name, alter):
    import runpy
    runpy._run_module_as_main(name, alter)


def run_script(path, space):
    space["__file__"] = path
    space["__loader__"] = importlib.machinery.SourceFileLoader("__main__", path)
    if sys.version_info < (3, 15):
        space["__cached__"] = None
    try:
        with io.open_code(path) if hasattr(io, "open_code") else open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        sys.stderr.write("%s: can't open file %r: [Errno %d] %s\n" % (sys.executable, path, error.errno, error.strerror))
        raise SystemExit(2)
    exec(compile(source, path, "exec", dont_inherit=True), space)


main()
