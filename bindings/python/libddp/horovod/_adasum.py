"""Adasum (Maleki et al., arXiv 2006.02924): sums of gradients that shrink where they point the same way. For any number of
ranks: the tree's last one may have no partner."""

from __future__ import annotations

import torch


def combine(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Adds two vectors of float64."""
    dot = torch.dot(one, other)
    squares = torch.dot(one, one), torch.dot(other, other)
    factors = [1.0 - dot / (2.0 * square) if square > 0 else torch.ones((), dtype=one.dtype) for square in squares]
    made: torch.Tensor = factors[0] * one + factors[1] * other
    return made


def tree(gathered: torch.Tensor) -> torch.Tensor:
    """Combines one row for each rank, in rank order: the same bits on all ranks."""
    rows: list[torch.Tensor] = [each.double() for each in gathered]
    while len(rows) > 1:
        paired = [combine(rows[at], rows[at + 1]) for at in range(0, len(rows) - 1, 2)]
        rows = paired + rows[len(rows) - len(rows) % 2:]
    made: torch.Tensor = rows[0].to(gathered.dtype)
    return made
