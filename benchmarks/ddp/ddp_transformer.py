#!/usr/bin/env python3
"""Compares libddp's DistributedDataParallel with PyTorch's on the parameters of a transformer: GPT-2's 124 million. Prints Markdown.

    ddp_transformer.py BIN [--rounds N]      BIN: the folder of ddprun; the package: scripts/python-package

As ddp.py on ResNet-50's. With four ranks, the gradients and buckets of all contenders take some 14 GiB.
"""

from ddp import compare
from measuring import arguments

if __name__ == "__main__":
    compare("GPT-2", "gpt2", (2, 4), 0.6, 2, arguments(__doc__, 3))
