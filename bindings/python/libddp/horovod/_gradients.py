"""What DistributedOptimizer does with gradients around their exchange: a program's compressor, sparse gradients, cuts
of compiled models, the timeline of buckets."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import weakref
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceOptions, ReduceOp
from torch.nn.parallel import DistributedDataParallel

import libddp
from libddp.horovod import _job, _operations
from libddp.horovod.exceptions import HorovodInternalError

_CAP = 25 << 20  # DistributedDataParallel's
_STEPS = 64  # a Reducer keeps the times of so many, till the optimizer's step() fetches them

# A Compressor as what a Reducer calls for each bucket: gradients are compressed one by one, as by upstream, and those
# of one type go in one allreduce.


def check_compressor(compression: Any) -> None:
    if not all(callable(getattr(compression, name, None)) for name in ("compress", "decompress")):
        raise ValueError(f"compression={compression!r} has no functions compress and decompress; derive it from "
                         "Compression.none")


def compressor_name(compression: Any) -> str:
    """Compared among ranks."""
    kind = compression if isinstance(compression, type) else type(compression)
    return f"{kind.__module__}.{kind.__qualname__}"


def compressing_hook(compression: Any, op: str, before: float, behind: float,
                     backend: Any) -> Callable[[Any, Any], Any]:
    """hook(state, bucket) -> Future of the bucket's memory. op: of ReduceOp. before and behind: factors of what is sent
    and received. backend: c10d's, in which nothing else runs."""

    def exchange(bucket: Any) -> torch.futures.Future[torch.Tensor]:
        gradients, buffer = bucket.gradients(), bucket.buffer()
        sent = [compression.compress(each) for each in gradients]
        flat = {dtype: torch.cat([each.reshape(-1) for each, _ in sent if each.dtype is dtype])
                for dtype in dict.fromkeys(each.dtype for each, _ in sent)}
        flat = {dtype: _operations.scaled(each, before) for dtype, each in flat.items()}
        works = []
        for each in flat.values():
            options = AllreduceOptions()
            options.reduceOp = getattr(ReduceOp, op)
            works.append(backend.allreduce([each], options))

        def finish(done: Any) -> Any:
            try:
                done.value()
            except libddp.Aborted:  # another rank's compressor has failed, as will the step; or the optimizer is gone
                return buffer
            rest = {dtype: _operations.scaled(each, behind) for dtype, each in flat.items()}
            for gradient, (tensor, context) in zip(gradients, sent):
                part, rest[tensor.dtype] = rest[tensor.dtype].tensor_split([tensor.numel()])
                gradient.copy_(compression.decompress(part.view(tensor.shape), context))
            works.clear()  # kept till here
            return buffer

        futures = [each.get_future() for each in works]
        ended = futures[0] if len(futures) == 1 else torch.futures.collect_all(futures)
        return cast("torch.futures.Future[torch.Tensor]", ended.then(finish))

    def hook(_: Any, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        try:
            return exchange(bucket)
        except libddp.Aborted as error:  # another rank's compressor had failed before
            raise HorovodInternalError.of(error) from None
        except BaseException:
            backend.abort()  # other ranks wait for this one's part
            raise

    return hook


# Which parameters get sparse gradients: an optimizer knows parameters, not modules, and ranks must agree before the
# first backward pass, in which some may compute nothing. The process's modules say it.


def sparse_ones(parameters: Iterable[torch.Tensor]) -> set[int]:
    """The ids of those that are the weight of an Embedding or EmbeddingBag with sparse=True."""
    wanted = {id(each) for each in parameters if each.dim() == 2}
    if not wanted:
        return set()
    kinds: set[type[torch.nn.Module]] = {torch.nn.Embedding, torch.nn.EmbeddingBag}
    more: list[type[torch.nn.Module]] = list(kinds)
    while more:
        more = [kind for each in more for kind in each.__subclasses__()]
        kinds.update(more)
    # by type(), as isinstance() would ask proxies, which may answer anything
    found = [each for each in gc.get_objects() if type(each) in kinds]
    return {id(each.weight) for each in found if each.sparse and id(each.weight) in wanted}


def _to_dense(parameter: torch.Tensor) -> None:
    """Called when autograd has added to the gradient, before the engine's own hook."""
    if parameter.grad is not None and parameter.grad.is_sparse:
        parameter.grad = parameter.grad.to_dense()


def make_dense(parameters: Iterable[torch.Tensor]) -> list[Any]:
    """Handles to remove the hooks by."""
    return [each.register_post_accumulate_grad_hook(_to_dense) for each in parameters]  # type: ignore[no-untyped-call]


# torch.compile cuts the graphs of models at buckets' ends, so that the exchange of the first gradients overlaps with
# the rest of the backward pass. Uncut, a compiled pass hands over all gradients at its end.


class _Buckets:
    """What torch.compile takes for the module of DistributedDataParallel whose forward pass runs. Around a model of an
    optimizer there is none; so it stands for all of the process's models that are compiled with gradients, while there
    is an optimizer."""

    def __init__(self) -> None:
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()

    def __bool__(self) -> bool:
        return torch.is_grad_enabled() and any(each._engines for each in self.optimizers)

    @property
    def bucket_bytes_cap(self) -> int:
        caps = [each._cap for each in self.optimizers if each._cap is not None]
        return int(max(min(caps, default=_CAP), getattr(dist, "_DEFAULT_FIRST_BUCKET_BYTES")))


_buckets = _Buckets()


def cut_by(optimizer: Any) -> None:
    """From now on, while the optimizer exchanges gradients."""
    _buckets.optimizers.add(optimizer)
    if DistributedDataParallel._active_ddp_module is None:
        DistributedDataParallel._active_ddp_module = _buckets  # type: ignore[assignment]


# The buckets in the timeline of the operations that have names.


def record_step(optimizer: Any) -> None:
    """Behind a step: its buckets, while a timeline is recorded. With DDP_TRACE_DIR they are in that folder's files."""
    job = _job.current()
    records = job is not None and job.named.recording() and not os.environ.get("DDP_TRACE_DIR")
    if records and optimizer._traced:
        for place, engine in enumerate(optimizer._engines):
            beside = f".{place}" if place else ""
            _record_buckets(job, f"{optimizer._name}{beside}", json.loads(engine.trace_json())["traceEvents"])
    begin_record(optimizer, records)


def begin_record(optimizer: Any, records: bool) -> None:
    optimizer._traced = records
    for engine in optimizer._engines if records else ():
        with contextlib.suppress(libddp.InvalidArgument):  # within a step, which another one follows
            engine.trace(_STEPS)


def _record_buckets(job: Any, name: str, events: list[dict[str, Any]]) -> None:
    ready: dict[tuple[int, int], float] = {}  # by step and bucket
    for event in events:
        if event["name"] not in ("waiting", "exchange"):
            continue
        key = event["args"]["step"], event["args"]["bucket"]
        begin = event["ts"]
        if event["name"] == "waiting":
            ready[key] = begin
        else:
            times = ready.get(key, begin), begin, begin + event["dur"]
            job.named.record(f"{name}.bucket.{key[1]}", *map(int, times))
