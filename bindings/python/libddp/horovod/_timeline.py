"""What optimizers exchange, in the timeline of the operations that have names: their buckets of gradients."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

import libddp
from libddp.horovod import _job

_STEPS = 64  # a Reducer keeps the times of so many, till the optimizer's step() fetches them


def record(optimizer: Any) -> None:
    """Behind a step: its buckets, while a timeline is recorded. With DDP_TRACE_DIR they are in that folder's files."""
    job = _job.current()
    records = job is not None and job.named.recording() and not os.environ.get("DDP_TRACE_DIR")
    if records and optimizer._traced:
        for place, engine in enumerate(optimizer._engines):
            beside = f".{place}" if place else ""
            _add(job, f"{optimizer._name}{beside}", json.loads(engine.trace_json())["traceEvents"])
    begin(optimizer, records)


def begin(optimizer: Any, records: bool) -> None:
    optimizer._traced = records
    for engine in optimizer._engines if records else ():
        with contextlib.suppress(libddp.InvalidArgument):  # within a step, which another one follows
            engine.trace(_STEPS)


def _add(job: Any, name: str, events: list[dict[str, Any]]) -> None:
    ready: dict[tuple[int, int], float] = {}  # by step and bucket
    for event in events:
        if event["name"] not in ("waiting", "exchange"):
            continue
        key = event["args"]["step"], event["args"]["bucket"]
        begin = event["ts"]
        if event["name"] == "waiting":
            ready[key] = begin
        else:
            job.named.record(f"{name}.bucket.{key[1]}", int(ready.get(key, begin)), int(begin), int(begin + event["dur"]))
