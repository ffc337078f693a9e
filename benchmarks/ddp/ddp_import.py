#!/usr/bin/env python3
"""Measures what an installed libddp costs a program that imports torch and does not use it. Prints Markdown.

    ddp_import.py BIN [--rounds N]      BIN: not used; the package: scripts/python-package

Importing torch takes a thousand times longer than what libddp adds, so the step in which torch loads its extensions is measured by
itself, with and without the package.
"""

import sys

from jobs import LIMIT_S, environment
from measuring import TORCH_PYTHON, arguments, reports
from spread import Spread, table

TARGET_MS = 2
# After the program has imported torch without extensions, it loads them as torch does at the end of its import.
PROGRAM = """
import json, sys, time
begun = time.process_time()
import torch
whole = time.process_time() - begun

def anonymous_kib():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon"))

def mapped():
    return {line.split()[-1] for line in open("/proc/self/maps") if "/" in line}

memory, files = anonymous_kib(), mapped()
begun = time.process_time()
torch._import_device_backends()
taken = time.process_time() - begun
known = "ddp" in torch.distributed.Backend.backend_list
print(json.dumps({"whole": whole, "taken": taken, "memory": anonymous_kib() - memory, "files": len(mapped() - files), "known": known}))
"""


def load(installed):
    variables = {**environment(), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    if not installed:
        del variables["PYTHONPATH"]
    [report] = reports([TORCH_PYTHON, "-c", PROGRAM], LIMIT_S, cwd="/", env=variables)
    if report["known"] != installed:
        sys.exit(f"import torch: \"ddp\" is known: {report['known']}, libddp is installed: {installed}")
    return report


def main():
    rounds = arguments(__doc__, 15).rounds
    pairs = [(load(False), load(True)) for _ in range(rounds + 1)][1:]  # the first reads the disk
    reports = {"libddp is not installed": [without for without, _ in pairs], "libddp is installed": [within for _, within in pairs]}
    added = Spread([(within["taken"] - without["taken"]) * 1e3 for without, within in pairs])
    print(f"Median (quartiles) of {rounds} imports each, in turn. Added: {added.scaled(1, 2)} ms of processor time; target {TARGET_MS}: "
          f"{'met' if added.median <= TARGET_MS else 'missed'}.\n")
    rows = [[title, *(Spread([each[name] for each in of]).scaled(factor, digits)
                      for name, factor, digits in (("whole", 1e3, 0), ("taken", 1e3, 2), ("memory", 1, 0), ("files", 1, 0)))]
            for title, of in reports.items()]
    print(table(["", "`import torch` without extensions, ms of processor time", "loading extensions, ms of processor time",
                 "its memory, KiB", "files that it maps"], rows))


if __name__ == "__main__":
    main()
