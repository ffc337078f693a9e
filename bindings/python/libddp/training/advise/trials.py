"""Measures a training program from within: first the parts of its steps, then its batches under other settings. All
ranks change settings after the same step, or none does. Trials are steps, some with gradients that are not those of the
program, so that what training changes is kept before, and put back."""

from __future__ import annotations

import copy
import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from libddp._data_parallel import DistributedDataParallel

from . import report
from .settings import ALONE, CURRENT, ParallelModel, Setting, Target, target_of
from .step_parts import Instruments, StepClock, replaced

FIRST = 5  # steps that are not measured: buckets are rebuilt, memory grows
WARM = 4  # batches of a trial that are not measured
BATCHES = 20  # of a trial
_WINDOW = 4  # batches: a multiple of each setting's passes


class Stateful:
    """Learning rate schedulers and gradient scalers of the process, from its construction on."""

    def __init__(self) -> None:
        self._alive: weakref.WeakSet[Any] = weakref.WeakSet()
        for kind in (torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler):
            replaced(kind, "__init__", self._around)

    def _around(self, original: Any) -> Any:
        def __init__(made: Any, *arguments: Any, **named: Any) -> None:
            original(made, *arguments, **named)
            self._alive.add(made)
        return __init__

    def __iter__(self) -> Any:
        return iter(list(self._alive))


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)


class KeptState:
    """Copies of modules' parameters and buffers, optimizers' parameters, state and options, schedulers and scalers."""

    def __init__(self, modules: Iterable[torch.nn.Module], optimizers: Iterable[torch.optim.Optimizer],
                 others: Iterable[Any]) -> None:
        self._optimizers = list(optimizers)
        tensors = [each for module in modules for each in (*module.parameters(), *module.buffers())]
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        tensors += [each for group in groups for each in group["params"]]
        self._tensors = [(each, _copied(each)) for each in {id(each): each for each in tensors}.values()]
        self._states = [{parameter: {name: _copied(value) for name, value in state.items()}
                         for parameter, state in optimizer.state.items()} for optimizer in self._optimizers]
        self._options = [[{name: _copied(value) for name, value in group.items() if name != "params"}
                          for group in optimizer.param_groups] for optimizer in self._optimizers]
        self._others = [(each, copy.deepcopy(each.state_dict())) for each in others]

    @torch.no_grad()
    def restore(self) -> None:
        """Bit by bit. What was kept stays, for the next time."""
        for tensor, kept in self._tensors:
            tensor.copy_(kept)
        for optimizer, states, options in zip(self._optimizers, self._states, self._options):
            for parameter in [each for each in optimizer.state if each not in states]:
                del optimizer.state[parameter]
            for parameter, state in states.items():
                optimizer.state[parameter] = {name: _copied(value) for name, value in state.items()}
            for group, kept in zip(optimizer.param_groups, options):
                group.update({name: _copied(value) for name, value in kept.items()})
        for each, kept in self._others:
            each.load_state_dict(copy.deepcopy(kept))


class _HeldSteps:
    """Makes optimizers step, and gradients vanish, only after several batches, as a program that accumulates gradients does.

    on_skip: called after each batch that ends without a step.
    """

    def __init__(self, optimizers: list[Any], modules: list[torch.nn.Module], marker: Any, target: Target, passes: int,
                 on_skip: Callable[[], None]) -> None:
        self._marker, self._target, self._passes, self._on_skip = marker, target, passes, on_skip
        self._place = 0  # of the batch among those of a step
        self._before = [(each, name, vars(each).get(name)) for each in optimizers for name in ("step", "zero_grad")]
        self._before += [(each, "zero_grad", vars(each).get("zero_grad")) for each in modules]
        for each, name, _ in self._before:
            vars(each)[name] = functools.partial(self._step if name == "step" else self._zero_grad, each, getattr(each, name))
        target.exchange_batch(False)

    def _step(self, optimizer: Any, original: Any, *arguments: Any, **named: Any) -> Any:
        last = self._place == self._passes - 1
        if optimizer is self._marker:
            self._place = 0 if last else self._place + 1
            self._target.exchange_batch(self._place == self._passes - 1)
        if last:
            return original(*arguments, **named)
        if optimizer is self._marker:
            self._on_skip()
        return None

    def _zero_grad(self, _: Any, original: Any, *arguments: Any, **named: Any) -> Any:
        return original(*arguments, **named) if self._place == 0 else None

    def release(self) -> None:
        for each, name, before in self._before:
            if before is None:
                del vars(each)[name]
            else:
                vars(each)[name] = before


class Advisor:
    """Follows the program of this process. print: for lines, on rank 0. stop: end the program after the last trial."""

    def __init__(self, steps: int, print: Callable[[str], None], stop: bool) -> None:
        self._steps, self._print_line, self._stop = steps, print, stop
        self._clock, self._stateful = StepClock(), Stateful()
        self._instruments = Instruments(self._clock, self._after_backward, self._after_step)
        self._targets: list[Target] = []
        self._uneven = False  # the program uses join()
        self._modules: list[torch.nn.Module] = []
        self._optimizers: list[Any] = []
        self._marker: Any = None  # the optimizer whose steps count
        self._phase: Callable[[list[float]], None] | None = self._skip_first
        self._rows: list[list[float]] = []
        self._seen: list[dict[int, int]] = []
        self._count = 0
        self._queue: list[Setting] = []
        self._trials: list[report.Trial] = []
        self._windows: list[float] = []
        self._held: _HeldSteps | None = None
        self._kept: KeptState | None = None
        self._printed = False
        for name in ("join", "join_hook"):
            replaced(DistributedDataParallel, name, self._noting_join)

    # what the program does

    def observe(self, made: Any) -> None:
        """A DistributedDataParallel or an hvd.DistributedOptimizer. Collective."""
        if self._phase is None or (target := target_of(made)) is None:
            return
        self._targets.append(target)
        self._seen.append({})
        if isinstance(target, ParallelModel):
            self._modules.append(target.model)
            self._instruments.follow(target.model)
        else:
            self._instruments.follow_module_of(target.parameters, self._modules.append)
        if target.device.type == "cuda":
            self._clock.synchronize = self._synchronize

    def _noting_join(self, original: Any) -> Any:
        def join(*arguments: Any, **named: Any) -> Any:
            self._uneven = True
            return original(*arguments, **named)
        return join

    def _synchronize(self) -> None:
        torch.cuda.synchronize(self._targets[0].device)

    def _after_backward(self) -> None:
        if self._phase in (self._skip_first, self._measure):
            for target, seen in zip(self._targets, self._seen):
                self._clock.add_exposed(target.exposed(seen))

    def _after_step(self, optimizer: Any) -> None:
        if self._phase is None or not self._targets:
            return
        if all(optimizer is not each for each in self._optimizers):
            self._optimizers.append(optimizer)
        if self._marker is None:
            own = {id(each) for target in self._targets for each in target.parameters}
            if any(id(each) in own for group in optimizer.param_groups for each in group["params"]):
                self._marker = optimizer
        if optimizer is self._marker:
            self._end_batch()

    def _end_batch(self) -> None:
        if self._queue and self._targets[0].device.type == "cuda" and (self._count + 1) % _WINDOW == 0:
            self._synchronize()
        row = self._clock.end_step()
        if self._phase is not None:
            self._phase(row)
        self._clock.pause()

    # phases

    def _skip_first(self, _: list[float]) -> None:
        self._count += 1
        if self._count == FIRST:
            self._phase = self._measure

    def _measure(self, row: list[float]) -> None:
        if len(self._rows) < self._steps:
            self._rows.append(row)
        if len(self._rows) == self._steps and not self._uneven:
            self._begin_trials()

    def _gather(self, at: str, value: Any) -> tuple[list[Any], bool]:
        """The values of all ranks that still train, and whether all ranks are at the same point, which all of these see alike."""
        target = self._targets[0]
        found = target.gather((at, value))
        return [each for _, each in found], len(found) == target.size and all(where == at for where, _ in found)

    def _begin_trials(self) -> None:
        target = self._targets[0]
        settings = target.settings() if len(self._targets) == 1 else []
        refusal = target.refusal if len(self._targets) == 1 else "the program trains several wrapped models or optimizers"
        # also a comparison: ranks whose settings differ would wait for each other in vain
        every, agreed = self._gather(f"{len(self._rows)} steps, {[each.name for each in settings]}", self._rows)
        if not agreed:
            self._phase = self._measure_only
            return
        self._print_parts(every)
        if refusal:
            self._print(f"no trials: {refusal}")
            return self._finish()
        self._queue = [CURRENT, *settings, ALONE, CURRENT]
        self._print(f"trials: {len(self._queue)} of {WARM + BATCHES} batches follow; weights and optimizer state are then put back. Do not use "
                    "what the program saves or prints meanwhile")
        self._kept = KeptState(self._modules, self._optimizers, self._stateful)
        self._clock.synchronize = lambda: None
        self._phase = self._try
        self._next_trial()

    def _measure_only(self, _: list[float]) -> None:
        """Ranks are not at the same step, as beside join(): what was measured is printed at the end."""

    def _next_trial(self) -> None:
        self._count, self._windows = 0, [0.0] * (BATCHES // _WINDOW)
        target, setting = self._targets[0], self._queue[0]
        target.apply(setting)
        if setting.passes > 1:
            self._held = _HeldSteps(self._optimizers, self._modules, self._marker, target, setting.passes, self._end_batch)

    def _try(self, row: list[float]) -> None:
        self._count += 1
        if self._count > WARM:
            self._windows[(self._count - WARM - 1) // _WINDOW] += sum(row[:-1]) / _WINDOW
        if self._count < WARM + BATCHES:
            return
        setting = self._queue.pop(0)
        every, agreed = self._gather(f"trial {len(self._trials)}", self._windows)
        self._put_back()
        if agreed:
            self._trials.append(report.Trial(setting, every))
        if agreed and self._queue:
            return self._next_trial()
        if not agreed:
            self._print("trials have ended early: ranks are not in the same step, as when one has run out of inputs")
        self._queue = []
        self._print_trials()
        self._finish()

    def _put_back(self) -> None:
        if self._held is not None:
            self._held.release()
            self._held = None
        if self._kept is not None:
            self._kept.restore()

    def _finish(self) -> None:
        self._phase, self._clock.synchronize = None, lambda: None
        self._targets[0].release()
        if self._stop:
            raise SystemExit(0)

    # results

    def _print(self, text: str) -> None:
        if self._targets[0].rank == 0:
            self._print_line(text)

    def _print_parts(self, every: list[list[list[float]]]) -> None:
        self._printed = True
        if min(map(len, every)) == 0:
            return self._print(f"training has ended within its first {FIRST} steps, which are not measured")
        found = report.parts_of(every, known=self._targets[0].device.type == "cpu")
        self._print(report.parts_table(found, min(map(len, every))))
        for line in report.reasons(found, self._instruments.loads_data):
            self._print(f"- {line}")

    def _print_trials(self) -> None:
        if any(each.setting is CURRENT for each in self._trials):
            self._print(report.trials_table(self._trials, BATCHES))

    def end(self) -> bool:
        """The program ends, or its group: prints what is left to print. Whether anything was measured. Collective, unless all
        is printed."""
        if self._phase is None or not self._targets:
            return bool(self._targets)
        left, self._phase = len(self._queue), None
        if not self._printed:
            every, _ = self._gather("end", self._rows)
            self._print_parts(every)
            self._print(f"no trials: {'join() gives ranks different numbers of steps' if self._uneven else 'training has ended before'}")
        elif left:
            self._put_back()
            self._print_trials()
            self._print(f"training has ended {left} trials early; train longer, or give fewer --steps")
        return True
