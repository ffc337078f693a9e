#!/usr/bin/env python3
"""Runs a program for which system calls fail, as on an older kernel (ENOSYS) or under a container's seccomp filter (EPERM).

    without_calls.py ENOSYS|EPERM CALL[,CALL...] PROGRAM [ARGUMENT...]
"""

import ctypes
import errno
import os
import platform
import struct
import sys

NUMBERS = {  # of x86-64, and of the others, which share a table
    "memfd_create": (319, 279), "pidfd_open": (434, 434), "close_range": (436, 436), "openat2": (437, 437)}
PR_SET_SECCOMP, SECCOMP_MODE_FILTER, PR_SET_NO_NEW_PRIVS = 22, 2, 38
LOAD, EQUAL, RETURN, ALLOW, ERRNO = 0x20, 0x15, 0x06, 0x7FFF0000, 0x00050000


def main() -> None:
    number, calls = getattr(errno, sys.argv[1]), sys.argv[2].split(",")
    filters = struct.pack("HBBI", LOAD, 0, 0, 0)  # the call's number
    for call in calls:
        filters += struct.pack("HBBI", EQUAL, 0, 1, NUMBERS[call][platform.machine() != "x86_64"])
        filters += struct.pack("HBBI", RETURN, 0, 0, ERRNO | number)
    filters += struct.pack("HBBI", RETURN, 0, 0, ALLOW)
    memory = ctypes.create_string_buffer(filters)
    program = struct.pack("HP", len(filters) // 8, ctypes.addressof(memory))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0):
        sys.exit(f"without_calls.py: prctl: {os.strerror(ctypes.get_errno())}")
    os.execvp(sys.argv[3], sys.argv[3:])


main()
