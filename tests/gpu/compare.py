#!/usr/bin/env python3
"""Compares what scripts/test-gpu has measured with PyTorch and nccl-tests, beside the targets of docs/reference/benchmarks.md.

    compare.py FOLDER      FOLDER: its logs. Prints a line of JSON for each ratio whose parts are both there, with
                           "missed": true where the target is.
"""

import json
import re
import sys
from pathlib import Path

# name, target, what is divided by what: (log, pattern)
RATIOS = (
    ("processor time to issue an all_reduce, beside ProcessGroupNCCL", ("at most", 0.5),
     ("nccl.log", r'"libddp issue all_reduce".*"us": ([0-9.]+)'),
     ("issue_cost_of_torch.log", r'"torch issue all_reduce.*"us": ([0-9.]+)')),
    ("all_reduce of 25 MiB on two GPUs, beside nccl-tests' busbw", ("at least", 0.98),
     ("nccl_two_ranks.log", r'"busbw_gb_per_s": ([0-9.]+)'), ("nccl_tests.log", r"^# Avg bus bandwidth\s*: ([0-9.]+)")),
)


def number(folder, log, pattern):
    """None if it was not measured."""
    path = folder / log
    found = re.search(pattern, path.read_text(), re.MULTILINE) if path.exists() else None
    return float(found[1]) if found and float(found[1]) > 0 else None


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    for name, (bound, target), ours, theirs in RATIOS:
        numbers = [number(folder, *each) for each in (ours, theirs)]
        if None not in numbers:
            ratio = numbers[0] / numbers[1]
            missed = ratio > target if bound == "at most" else ratio < target
            line = {"what": name, "ratio": round(ratio, 3), "target": f"{bound} {target}"}
            print(json.dumps(line | ({"missed": True} if missed else {})))
        else:
            print(f"SKIPPED {name}: not measured")


if __name__ == "__main__":
    main()
