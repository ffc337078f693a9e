"""What torch.distributed.algorithms.join.Join asks of a libddp.torch.DistributedDataParallel."""

from __future__ import annotations

from typing import Any

from torch.distributed.algorithms.join import Join, Joinable, JoinHook, _JoinConfig

_DISABLED = _JoinConfig(enable=False, throw_on_early_termination=False, is_first_joinable=False)


def no_hook() -> None:
    """In the place of a weak reference that is dead."""


class ModelHook(JoinHook):
    """The hook of one model in one Join, which owns it. Dropped before post_hook(), as by an exception, it leaves the join.

    held: libddp's own join of the model's ranks, which repeats what the engines of others do. torch's Join reports which
    ranks have run out; held begins once that shows that the join is enabled.
    """

    def __init__(self, model: Joinable, held: Any) -> None:
        super().__init__()
        self._model = model
        self._held = held
        self._entered = False
        self._told: Any = None

    @property
    def enabled(self) -> bool:
        return self._held is not None and self._model._join_config.enable

    def _enter(self) -> None:
        if not self._entered:
            self._held.__enter__()
            self._entered = True

    def begin_step(self) -> None:
        """Informs ranks that have run out that this rank has not. Raises where torch's Join shall end all ranks."""
        self._enter()
        told, self._told = self._told, None
        if told is not None:
            told.wait()
        self._told = Join.notify_join_context(self._model)

    def main_hook(self) -> None:
        self._enter()
        self._held.shadow_step()

    def post_hook(self, is_last_joiner: bool) -> None:
        self._enter()
        self._held.end()
        self.leave()

    def leave(self) -> None:
        if self._held is not None:
            self._held.abandon()
            self._held = None
            self._model._join_config = _DISABLED
