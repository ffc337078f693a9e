"""python -m libddp: ddp-info, the one that belongs to this package."""

import os
import sys
from pathlib import Path

PROGRAM = Path(__file__).resolve().parent / "bin" / "ddp-info"

try:
    os.execv(PROGRAM, ["ddp-info", *sys.argv[1:]])
except OSError as error:
    sys.exit(f"starting {PROGRAM}: {error.strerror}; install the package again")
