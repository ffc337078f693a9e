#!/usr/bin/env python3
"""Compares libddp's DistributedDataParallel with PyTorch's on four nodes of one rank each, over TCP. Prints Markdown.

    ddp_nodes.py BIN [--rounds N]      where srun works; all nodes must see BIN and the package: scripts/python-package

As ddp.py, ddp_transformer.py and ddp_networks.py.
"""

from ddp import compare
from ddp_networks import NETWORKS, STEPS, compare_networks
from measuring import arguments

NODES = 4

if __name__ == "__main__":
    options = arguments(__doc__, 5)
    compare("ResNet-50", "resnet50", (NODES,), 0.3, 2, options, NODES)
    print()
    compare("GPT-2", "gpt2", (NODES,), 1.2, 1, options, NODES)
    print()
    compare_networks(NETWORKS, (NODES,), STEPS, options, NODES)
