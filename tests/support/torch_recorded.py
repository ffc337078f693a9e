"""A program whose last rank fails with an exception that torch's @record keeps, and with an exit code of its own, 85."""

import os
import sys
import time

from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    if int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
        raise ValueError("bad loss")
    time.sleep(100)


try:
    main()
except ValueError:
    sys.exit(85)
