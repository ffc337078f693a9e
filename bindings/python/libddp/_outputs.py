"""The tensors in what a forward pass returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

_NO_TENSOR = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)


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
