"""A program whose rank 1 fails with an exception that torch's @record keeps, and with an exit code of its own, 85."""

import os
import sys
import time

from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    if os.environ["RANK"] == "1":
        raise ValueError("bad loss")
    time.sleep(100)


try:
    main()
except ValueError:
    sys.exit(85)
