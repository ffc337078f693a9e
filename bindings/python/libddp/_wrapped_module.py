"""The parameters that a module had when DistributedDataParallel wrapped it, and whether it still has them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from operator import is_, methodcaller
from typing import Any

import torch

from libddp import _errors


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
            attempted, cause = "starting a forward pass", f"parameter '{name}' has been {how} since it was wrapped"
            hint = "wrap the module again, on all ranks: its gradient would not be averaged"
            raise _errors.make("invalid_argument", f"{attempted}: {cause}; {hint}", attempted, cause, "", (), hint)
