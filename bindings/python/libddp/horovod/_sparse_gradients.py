"""Which parameters of an optimizer get sparse gradients, and how these become dense.

An optimizer knows parameters, not modules, and ranks must agree before the first backward pass, in which some may compute
nothing: the process's modules say it.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any

import torch


def of_embeddings(parameters: Iterable[torch.Tensor]) -> set[int]:
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
