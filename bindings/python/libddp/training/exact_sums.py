"""Sums of gradients in integers, which do not depend on the order of their terms, for servers and their trainers: the arithmetic of
libddp's exact average (ddp/comm_hook.hpp), on tensors of any device.

A sum of n elements has 2 n + 1 words: n times 2^-20, n times 2^-64, and how many values had no place in it.
"""

from __future__ import annotations

import torch

MOST_TERMS = 1 << 19
"""That a sum has room for."""
_LOW_BITS = 44
_LOW_MASK = (1 << _LOW_BITS) - 1
_HIGH_UNITS, _LOW_UNITS, _TOO_LARGE = 2.0**20, 2.0**64, 2.0**23
_EXACT_BITS = 18  # of the words of 2^-20, that fit beside the low bits into an int64


def zeros(count: int, device: torch.device) -> torch.Tensor:
    """A sum of so many elements, without a term."""
    return torch.zeros(2 * count + 1, dtype=torch.int64, device=device)


def add_term(words: torch.Tensor, values: torch.Tensor) -> None:
    """In place. values: floating-point, rounded to multiples of 2^-64; those that are not finite, or 2^23 and more, have no place."""
    wide = values.detach().reshape(-1).to(torch.float64)
    fits = wide.abs() < _TOO_LARGE
    wide = torch.where(fits, wide, 0.0)
    high = (wide * _HIGH_UNITS).to(torch.int64)  # truncated, so that the rest has the value's sign
    rest = wide - high.to(torch.float64) / _HIGH_UNITS
    low = (rest * _LOW_UNITS + torch.full_like(wide, 0.5).copysign(wide)).to(torch.int64)
    count = wide.numel()
    words[:count] += high
    words[count:-1] += low
    words[-1] += count - fits.sum()


def mean_of(words: torch.Tensor, terms: int, dtype: torch.dtype) -> torch.Tensor:
    """The sum by the number of its terms, each rounded once to float64, then to dtype: 1-d. NaN if a value had no place."""
    count = words.numel() // 2
    top = words[:count] + (words[count:-1] >> _LOW_BITS)
    rest = words[count:-1] & _LOW_MASK
    negative = top < 0
    top = torch.where(negative, ~top + (rest == 0), top)
    rest = torch.where(negative, -rest & _LOW_MASK, rest)
    # the leading bits, the last of which stands for all that follow: a float64 has 53, so that it decides ties only
    left_out = (torch.frexp(top.to(torch.float64)).exponent.to(torch.int64) - _EXACT_BITS).clamp(min=0)
    lost = (rest & ((torch.ones_like(rest) << left_out) - 1)) != 0
    leading = (top << (_LOW_BITS - left_out)) | (rest >> left_out) | lost
    units = torch.tensor([2.0**bits / _LOW_UNITS for bits in range(_LOW_BITS + 2)], dtype=torch.float64, device=words.device)
    total = leading.to(torch.float64) * units[left_out]
    mean = torch.where(negative, -total, total) / terms
    if bool(words[-1]):
        mean.fill_(torch.nan)
    return mean.to(torch.float32).to(dtype) if dtype in (torch.float16, torch.bfloat16) else mean.to(dtype)
