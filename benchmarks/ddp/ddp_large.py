#!/usr/bin/env python3
"""Compares libddp's DistributedDataParallel with PyTorch's as ddp.py does, on a larger network. Prints Markdown.

    ddp_large.py BIN [--rounds N]      BIN: the folder of ddprun; the package: scripts/python-package
"""

from ddp import compare
from jobs import arguments

if __name__ == "__main__":
    compare("GPT-2 124M", "gpt2", 0.75, 1, arguments(__doc__, 3))
