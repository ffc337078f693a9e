"""A program of the package libddp, for launchers.

    libddp_job.py CHECK...      runs these checks of libddp_checks, in this order, in all ranks

Each rank prints "CHECKED <name> <rank>" after each check that held; what does not hold is an exception.
"""

import sys

import libddp
import libddp_checks.endings
import libddp_checks.tensors
import libddp_checks.training
import libddp_checks.waiting
from libddp_checks import CHECKS, raises

if __name__ == "__main__":
    raises(libddp.Unavailable, libddp.world, words="libddp.init()")
    job = libddp.init()
    ranks = job.process_group()
    number = job.rank
    for name in sys.argv[1:]:
        CHECKS[name](job, ranks)
        # one write, as the lines of several ranks meet in one stream
        sys.stdout.write(f"CHECKED {name} {number}\n")
        sys.stdout.flush()
