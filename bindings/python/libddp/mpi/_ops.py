"""Reductions: on objects by Python's operators, in rank order; on arrays by libddp's groups where they have them, else on
what all ranks give."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy


class Op:
    """A reduction. Called with two values it combines them."""

    def __init__(self, name: str, objects: Callable[[Any, Any], Any], arrays: Callable[[Any, Any], Any] | None = None,
                 native: str | None = None) -> None:
        self.name, self.objects, self.arrays, self.native = name, objects, arrays, native

    def __call__(self, one: Any, other: Any) -> Any:
        return self.objects(one, other)

    @staticmethod
    def Create(function: Callable[..., Any], commute: bool = False) -> Op:
        """function(a, b) -> value for objects. Arrays of upper-case calls need one of the named ones."""
        return Op("user", function)

    def Free(self) -> None:
        """There is nothing to free."""

    def __repr__(self) -> str:
        return f"<libddp.mpi.MPI.{self.name}>"


def _best(better: Callable[[Any, Any], bool]) -> Callable[[Any, Any], Any]:
    def combine(one: Any, other: Any) -> Any:
        """Chooses among pairs of a value and a place: the lower place where values are equal."""
        if one[0] == other[0]:
            return one if one[1] <= other[1] else other
        return one if better(one[0], other[0]) else other
    return combine


OPS = {op.name: op for op in (
    Op("SUM", operator.add, numpy.add, "sum"), Op("PROD", operator.mul, numpy.multiply, "product"),
    Op("MAX", max, numpy.maximum, "max"), Op("MIN", min, numpy.minimum, "min"),
    Op("LAND", lambda a, b: bool(a) & bool(b), numpy.logical_and), Op("LOR", lambda a, b: bool(a) | bool(b), numpy.logical_or),
    Op("LXOR", lambda a, b: bool(a) ^ bool(b), numpy.logical_xor), Op("BAND", operator.and_, numpy.bitwise_and),
    Op("BOR", operator.or_, numpy.bitwise_or), Op("BXOR", operator.xor, numpy.bitwise_xor),
    Op("MAXLOC", _best(operator.gt)), Op("MINLOC", _best(operator.lt)))}
_NATIVE = {numpy.dtype(name) for name in ("f2", "f4", "f8", "i1", "i4", "i8", "u1", "u4", "u8")}


def fold(values: list[Any], op: Callable[[Any, Any], Any]) -> Any:
    return functools.reduce(op, values)


def native(op: Op, dtype: Any) -> str | None:
    """What libddp's groups call it, for arrays of a type that they reduce."""
    return op.native if dtype in _NATIVE else None


def fold_arrays(rows: Any, op: Op) -> Any:
    """Combines one row for each rank."""
    if op.arrays is None:
        raise NotImplementedError(f"libddp.mpi reduces arrays by SUM, PROD, MAX, MIN and the logical and bitwise ones, not by "
                                  f"{op.name}; use the lower-case call")
    return fold(list(rows), op.arrays).astype(rows.dtype)
