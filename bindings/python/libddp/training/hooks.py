"""Gradient hooks of DistributedDataParallel that average by all_reduce or by a parameter server, and measure each bucket.

They take a BasicHookState, and dense or sparse buckets. Metrics: "hook_future_metric" and "hook_c10d_metric". Their annotations are
objects, not texts: torch looks at them.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket

from libddp import _errors

from .steps import BasicHookState, ExactHookState

_FUTURE, _C10D = "hook_future_metric", "hook_c10d_metric"


def allreduce_hook(state: BasicHookState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages dense and sparse buckets by the process group."""
    return _all_reduced(state, bucket, bucket.index())


def hybrid_hook(state: BasicHookState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The same, but waits for sparse buckets within the hook ("hook_c10d_metric"), as upstream does."""
    index = bucket.index()
    tensor = bucket.buffer()
    if not tensor.is_sparse:
        return _all_reduced(state, bucket, index)
    name = f"{_backend_of(state, tensor)}_sparse_allreduce"
    with state.cref.metrics.measure(name, _C10D, state.get_key(index)):
        averaged = tensor / state.process_group_size
        dist.all_reduce(averaged, group=state.process_group)
    return _ended(averaged)


def rpc_hook(state: BasicHookState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages all buckets by the trainer's parameter server."""
    tensor = bucket.buffer()
    return _asked(state, bucket, "rpc_sparse" if tensor.is_sparse else "rpc_dense",
                  lambda: tensor if state.cref.use_cuda_rpc else tensor.cpu(), lambda found: found.to(tensor.device))


def sparse_rpc_hook(state: BasicHookState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Sparse buckets by the parameter server, dense ones by the process group."""
    return rpc_hook(state, bucket) if bucket.buffer().is_sparse else _all_reduced(state, bucket, bucket.index())


def exact_rpc_hook(state: ExactHookState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages dense buckets by the trainer's parameter server, which is made with exact=True, over all micro-batches of all trainers.
    The bits are those of libddp.torch.exact_average_hook: they depend on the micro-batches alone."""
    leaves = state.add(bucket)
    if leaves < state.micro_batches:
        return _ended(bucket.buffer().zero_())  # the sums have it: the next micro-batch adds to nothing
    return _asked(state, bucket, "rpc_dense", lambda: state.take(bucket, leaves),
                  lambda found: state.means(bucket, found.to(bucket.buffer().device)))


def _ended(tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(tensor)
    return future


def _backend_of(state: BasicHookState, tensor: torch.Tensor) -> str:
    """The backend's name in metrics; of "cpu:gloo,cuda:nccl" that of the tensor."""
    backend: str = state.cref.backend
    for part in backend.split(","):
        device, colon, name = part.partition(":")
        if colon and device == tensor.device.type:
            return name
    return backend


def _all_reduced(state: BasicHookState, bucket: GradBucket, index: int) -> torch.futures.Future[torch.Tensor]:
    tensor = bucket.buffer()
    key, kind = state.get_key(index), "sparse" if tensor.is_sparse else "dense"
    trainer = state.cref
    trainer.record_start(_FUTURE, key, f"{_backend_of(state, tensor)}_{kind}_allreduce")
    tensor = tensor / state.process_group_size if tensor.is_sparse else tensor.div_(state.process_group_size)
    work: Any = dist.all_reduce(tensor, group=state.process_group, async_op=True)

    def end(future: torch.futures.Future[Any]) -> torch.Tensor:
        trainer.record_end(_FUTURE, key)
        _noted(state, future)
        return tensor
    return cast("torch.futures.Future[torch.Tensor]", work.get_future().then(end))


def _asked(state: BasicHookState, bucket: GradBucket, name: str, sent: Callable[[], torch.Tensor],
           taken: Callable[[torch.Tensor], torch.Tensor]) -> torch.futures.Future[torch.Tensor]:
    """Sends to the trainer's server, measured. taken: makes the bucket's averages of the answer."""
    trainer, index = state.cref, bucket.index()
    if trainer.server is None:
        raise RuntimeError("this hook needs a parameter server: DdpTrainer(server_rref=...)")
    key = state.get_key(index)
    trainer.record_start(_FUTURE, key, name)

    def end(future: torch.futures.Future[Any]) -> torch.Tensor:
        trainer.record_end(_FUTURE, key)
        found = _noted(state, future)
        if isinstance(found, _errors.Error):
            state.failure = state.failure or found
            raise found
        return taken(found)
    averaged = trainer.server.average_gradient(state.batch_number, index, sent()).then(end)
    return cast("torch.futures.Future[torch.Tensor]", averaged)


def _noted(state: BasicHookState, future: torch.futures.Future[Any]) -> Any:
    try:
        return future.value()
    except Exception as error:
        state.failure = state.failure or error
        raise
