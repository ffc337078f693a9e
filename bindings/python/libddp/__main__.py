"""python -m libddp: ddp-info, the one that belongs to this package."""

from libddp._programs import ddp_info

ddp_info()
