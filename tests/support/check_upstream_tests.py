#!/usr/bin/env python3
"""Checks tests/upstream_tests.tsv, which says by which test of ours what torchcomms and PyTorch test of their process groups on
NCCL is tested here.

    check_upstream_tests.py ROOT

Every file must define the test of its line; a line without file says why there is none. Prints each offending line; exit code
1 if there is any.
"""

import re
import sys
from pathlib import Path

TABLE = Path("tests/upstream_tests.tsv")


def defined(text):
    """"Suite.Name" of each GoogleTest of a file."""
    return {f"{suite}.{name}" for suite, name in re.findall(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", text, re.MULTILINE)}


def main():
    root = Path(sys.argv[1])
    known, names, wrong = {}, set(), []
    lines = (root / TABLE).read_text().splitlines()
    for number, line in enumerate(lines[1:], 2):
        columns = line.split("\t")
        if len(columns) != 4 or not all(columns):
            wrong.append(f"{TABLE}:{number}: 4 columns are expected")
            continue
        upstream, name, file, test = columns
        if (upstream, name) in names:
            wrong.append(f"{TABLE}:{number}: {name} is there twice")
        names.add((upstream, name))
        if file == "-":
            continue
        if file not in known:
            known[file] = defined((root / file).read_text()) if (root / file).is_file() else None
        if known[file] is None:
            wrong.append(f"{TABLE}:{number}: there is no {file}")
        elif test not in known[file]:
            wrong.append(f"{TABLE}:{number}: {file} does not define {test}")
    print("\n".join(wrong) if wrong else f"{len(names)} tests of others have one here, or a reason")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
