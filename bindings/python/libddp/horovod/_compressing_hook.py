"""A program's Compressor as what a Reducer calls for each bucket: gradients are compressed one by one, as by upstream, and
those of one type go in one allreduce."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C._distributed_c10d import AllreduceOptions, ReduceOp

import libddp
from libddp.horovod import _operations
from libddp.horovod.exceptions import HorovodInternalError


def check(compression: Any) -> None:
    if not all(callable(getattr(compression, name, None)) for name in ("compress", "decompress")):
        raise ValueError(f"compression={compression!r} has no functions compress and decompress; derive it from "
                         "Compression.none")


def name_of(compression: Any) -> str:
    """Compared among ranks."""
    kind = compression if isinstance(compression, type) else type(compression)
    return f"{kind.__module__}.{kind.__qualname__}"


def make(compression: Any, op: str, before: float, behind: float, backend: Any) -> Callable[[Any, Any], Any]:
    """hook(state, bucket) -> Future of the bucket's memory. op: of ReduceOp. before and behind: factors of what is sent and
    received. backend: c10d's, in which nothing else runs."""

    def exchange(bucket: Any) -> torch.futures.Future[torch.Tensor]:
        gradients, buffer = bucket.gradients(), bucket.buffer()
        sent = [compression.compress(each) for each in gradients]
        flat = {dtype: _operations.scaled(torch.cat([each.reshape(-1) for each, _ in sent if each.dtype is dtype]), before)
                for dtype in dict.fromkeys(each.dtype for each, _ in sent)}
        works = []
        for each in flat.values():
            options = AllreduceOptions()
            options.reduceOp = getattr(ReduceOp, op)
            works.append(backend.allreduce([each], options))

        def finish(done: Any) -> Any:
            try:
                done.value()
            except libddp.Aborted:  # where another rank's compressor has failed, so does the step; else the optimizer is gone
                return buffer
            rest = {dtype: _operations.scaled(each, behind) for dtype, each in flat.items()}
            for gradient, (tensor, context) in zip(gradients, sent):
                part, rest[tensor.dtype] = rest[tensor.dtype].tensor_split([tensor.numel()])
                gradient.copy_(compression.decompress(part.view(tensor.shape), context))
            works.clear()  # kept till here
            return buffer

        futures = [each.get_future() for each in works]
        ended = futures[0] if len(futures) == 1 else torch.futures.collect_all(futures)
        made: torch.futures.Future[torch.Tensor] = ended.then(finish)
        return made

    def hook(_: Any, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        try:
            return exchange(bucket)
        except libddp.Aborted as error:  # another rank's compressor had failed before
            raise HorovodInternalError.of(error) from None
        except BaseException:
            backend.abort()  # other ranks wait for this one's part
            raise

    return hook
