"""Python's -u, with which ddprun starts scripts, writes a line in pieces, so that ranks which print at a time mix them.
In a folder of PYTHONPATH, this makes each line one write for tests that count lines."""

import sys

sys.stdout.reconfigure(line_buffering=True, write_through=False)
