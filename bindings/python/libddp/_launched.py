"""python -m libddp._launched FOLDER: a rank of libddp.launch()."""

import sys

from libddp import _launch

if __name__ == "__main__":
    _launch.run_rank(sys.argv[1])
