"""python -m libddp: ddp-info, the one that belongs to this package. --cmake-dir: where find_package(ddp) finds it."""

import sys

from libddp._programs import CMAKE, ddp_info

if sys.argv[1:] == ["--cmake-dir"]:
    if not CMAKE.exists():
        sys.exit(f"python -m libddp --cmake-dir: there is no {CMAKE}: this package was built for Python only; take libddp's wheel, or "
                 "cmake --install from the sources")
    print(CMAKE)
else:
    ddp_info()
