"""What type checkers know of tensors. Nothing imports this at run time."""

from __future__ import annotations

from typing import Any, Protocol, Union

from typing_extensions import Buffer


class SupportsDLPack(Protocol):
    """A torch.Tensor, a cupy.ndarray, a jax.Array."""

    def __dlpack__(self, *args: Any, **arguments: Any) -> Any: ...


Tensor = Union[Buffer, SupportsDLPack]
