"""Stops the threads of a process that are inside a library, as if the library hung, until the standard input ends.

    hold_threads.py PID LIBRARY      prints "held N"; exit status 77: this user may not
"""

import ctypes
import os
import re
import struct
import sys

PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT = 17, 0x4206, 0x4207
WAIT_FOR_ALL = 0x40000000
STACK_BYTES = 16384
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long] * 4


def ptrace(request, thread):
    if libc.ptrace(request, thread, 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def code_of(process, library):
    with open(f"/proc/{process}/maps", encoding="utf-8") as maps:
        found = re.findall(rf"^([0-9a-f]+)-([0-9a-f]+) ..x. .*/{re.escape(library)}[^/]*$", maps.read(), re.MULTILINE)
    return [(int(begin, 16), int(end, 16)) for begin, end in found]


def is_inside(process, thread, code):
    """Whether a frame of the thread, which waits in a system call, is the library's."""
    with open(f"/proc/{process}/task/{thread}/syscall", encoding="utf-8") as file:
        fields = file.read().split()
    if len(fields) < 2:
        return False  # it runs
    with open(f"/proc/{process}/mem", "rb", 0) as memory:
        memory.seek(int(fields[-2], 16))
        try:
            stack = memory.read(STACK_BYTES)
        except OSError:
            return False
    words = struct.unpack(f"={len(stack) // 8}Q", stack[: len(stack) // 8 * 8])
    return any(begin <= word < end for word in words for begin, end in code)


def main():
    process, library = int(sys.argv[1]), sys.argv[2]
    try:
        code = code_of(process, library)
        threads = [int(name) for name in os.listdir(f"/proc/{process}/task") if int(name) != process]
        held = [thread for thread in threads if is_inside(process, thread, code)]
        for thread in held:
            ptrace(PTRACE_SEIZE, thread)
            ptrace(PTRACE_INTERRUPT, thread)
            os.waitpid(thread, WAIT_FOR_ALL)
    except PermissionError as error:
        print(error, flush=True)
        sys.exit(77)
    print("held", len(held), flush=True)
    sys.stdin.read()
    for thread in held:
        try:
            ptrace(PTRACE_DETACH, thread)
        except OSError:
            pass  # the process has ended


main()
