"""Horovod's interface for torch on libddp: write `import libddp.horovod as hvd` for `import horovod.torch as hvd`.

Needs PyTorch, neither Horovod nor MPI. Under ddprun, srun, mpirun, torchrun, or alone. docs/howto/horovod.md
"""

from __future__ import annotations

from libddp.horovod import elastic, exceptions
from libddp.horovod.compression import Compression
from libddp.horovod.exceptions import HorovodInternalError
from libddp.horovod.functions import (allgather_object, broadcast_object, broadcast_object_fn, broadcast_optimizer_state,
                                      broadcast_parameters)
from libddp.horovod.mpi_ops import *  # noqa: F403
from libddp.horovod.optimizer import DistributedOptimizer
from libddp.horovod.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from libddp.horovod.runner import run
from libddp.horovod.sync_batch_norm import SyncBatchNorm
