"""The module that DistributedDataParallel wraps: its device, the parameters that it had then and whether it still has
them, and the tensors in what it returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from itertools import chain
from operator import is_, methodcaller
from typing import Any

import torch

from libddp import _errors

_NO_TENSOR = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)


def device_of(parameters: list[torch.Tensor]) -> torch.device:
    """Raises for parameters that cannot be averaged."""
    if not any(each.requires_grad for each in parameters):
        raise RuntimeError("DistributedDataParallel is not needed when a module doesn't have any parameter that "
                           "requires a gradient.")
    if any(isinstance(each, torch.nn.parameter.UninitializedParameter) for each in parameters):
        raise RuntimeError("Modules with uninitialized parameters can't be used with `DistributedDataParallel`. "
                           "Run a dummy forward pass to correctly initialize the modules")
    devices = {each.device for each in parameters}
    if "meta" in {each.type for each in devices}:
        raise ValueError("parameters of the module have no memory yet: they are on the device meta; give them some by "
                         "module.to_empty(device=...), and values by their own initialization or load_state_dict()")
    if len(devices) > 1 or parameters[0].device.type not in ("cpu", "cuda"):
        raise ValueError("libddp.torch.DistributedDataParallel averages gradients of modules on the CPU or on one CUDA "
                         f"device, and this one is on {sorted(map(str, devices))}; use torch's class for it")
    return parameters[0].device


def check_chosen_device(device: torch.device, device_ids: Any, output_device: Any) -> None:
    """Raises where a program wants the module on another device than that on which it is."""
    if (device_ids or output_device) and device.type == "cpu":
        raise ValueError("DistributedDataParallel device_ids and output_device arguments only work with "
                         f"single-device/multiple-device GPU modules, but got {device_ids}, {output_device}")
    chosen = [each for each in (*(device_ids or ()), output_device) if each is not None]
    if device.type == "cuda" and any(torch.device("cuda", each) != device if isinstance(each, int)
                                     else torch.device(each) != device for each in chosen):
        raise ValueError(f"the module is on {device}, but device_ids are {device_ids}, output_device is "
                         f"{output_device}")


def kept(named: Iterator[tuple[str, torch.Tensor]], ignored: set[str]) -> dict[str, torch.Tensor]:
    return {name: each for name, each in named if name not in ignored}


def sparse(module: torch.nn.Module) -> set[int]:
    """Parameters whose gradients are sparse, by id: embeddings' with sparse=True. What comes first in another module gets a
    dense one there, to which autograd adds."""
    kinds: dict[int, bool] = {}
    for part in module.modules():
        embeds = isinstance(part, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and part.sparse
        for name, each in part.named_parameters(recurse=False):
            kinds.setdefault(id(each), embeds and name == "weight")
    return {each for each, found in kinds.items() if found}


class WrappedModule:
    """Knows a module's parameters, without the ignored ones."""

    def __init__(self, module: torch.nn.Module, ignored: set[str]) -> None:
        self._module, self._ignored = module, ignored
        self.parameters = kept(module.named_parameters(), ignored)
        self._averaged = {id(each) for each in self.parameters.values() if each.requires_grad}
        self._note()

    def _note(self) -> None:
        """What check() compares with, without names, since it costs time in each step."""
        self._places: list[Any] = [each for part in self._module.modules() for each in (part._parameters, part._modules)]
        self._filled = [each for each in self._places if len(each)]
        # scripted modules have what is no dictionary
        self._values: Any = dict.values if all(isinstance(each, dict) for each in self._filled) else methodcaller("values")
        self._found = [*chain.from_iterable(map(self._values, self._filled))]
        self._others = [each for each in kept(self._module.named_parameters(), self._ignored).values()
                        if id(each) not in self._averaged]

    def check(self) -> None:
        """Raises InvalidArgument for a parameter that requires a gradient, which would not be averaged. Parameters may have been
        taken away, or frozen."""
        now = chain.from_iterable(map(self._values, self._filled))
        if sum(map(len, self._places)) != len(self._found) or not all(map(is_, now, self._found)):
            self._compare()
            self._note()
        elif any(each.requires_grad for each in self._others):
            self._compare()

    def _compare(self) -> None:
        for name, each in kept(self._module.named_parameters(), self._ignored).items():
            if id(each) in self._averaged or not each.requires_grad:
                continue
            before = self.parameters.get(name)
            how = "unfrozen" if before is each else "added" if before is None else "replaced"
            raise _errors.problem("invalid_argument", "starting a forward pass",
                                  f"parameter '{name}' has been {how} since it was wrapped",
                                  hint="wrap the module again, on all ranks: its gradient would not be averaged")


def find_tensors(value: Any, found: list[torch.Tensor]) -> bool:
    """Appends the tensors of a forward pass' result; False where a part of it has an unknown type."""
    if isinstance(value, torch.Tensor):
        found.append(value)
        return True
    if isinstance(value, _NO_TENSOR):
        return True
    if isinstance(value, Mapping):
        parts: Any = value.values()
    elif isinstance(value, (list, tuple, set, frozenset)):
        parts = value
    elif dataclasses.is_dataclass(value):
        parts = [getattr(value, field.name) for field in dataclasses.fields(value)]
    else:
        return False
    return all([find_tensors(part, found) for part in parts])
