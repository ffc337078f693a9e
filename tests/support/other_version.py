#!/usr/bin/env python3
"""Copies a program or library of libddp as the next version's: only the version that it gives is another, of equal length.

    other_version.py FILE COPY VERSION OTHER       for example: other_version.py ddprun copy 0.1.0 0.1.9
"""

import shutil
import sys
from pathlib import Path


def main() -> None:
    file, copy = map(Path, sys.argv[1:3])
    own, other = (text.encode() for text in sys.argv[3:])
    content = file.read_bytes()
    if len(own) != len(other) or own not in content:
        sys.exit(f"other_version.py: {file} does not have the version {own.decode()} as a text")
    copy.write_bytes(content.replace(own, other))
    shutil.copymode(file, copy)


main()
