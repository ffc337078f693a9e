"""Buffers of upper-case calls, as mpi4py takes them: arrays, or lists of an array, counts and a datatype. Nothing is copied."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy


class Datatype:
    """An element type, by numpy's name."""

    def __init__(self, name: str, dtype: str) -> None:
        self.name, self.dtype = name, numpy.dtype(dtype)

    def Get_size(self) -> int:
        return self.dtype.itemsize

    def Get_name(self) -> str:
        return self.name

    size = property(Get_size)

    def __repr__(self) -> str:
        return f"<libddp.mpi.MPI.{self.name}>"


TYPES = {name: Datatype(name, dtype) for name, dtype in (
    ("FLOAT", "f4"), ("DOUBLE", "f8"), ("INT", "i4"), ("LONG", "i8"), ("LONG_LONG", "i8"), ("SHORT", "i2"),
    ("UNSIGNED", "u4"), ("UNSIGNED_INT", "u4"), ("UNSIGNED_LONG", "u8"), ("UNSIGNED_SHORT", "u2"), ("CHAR", "i1"),
    ("SIGNED_CHAR", "i1"), ("UNSIGNED_CHAR", "u1"), ("BYTE", "u1"), ("BOOL", "?"), ("C_BOOL", "?"), ("CXX_BOOL", "?"),
    ("INT8_T", "i1"), ("INT16_T", "i2"), ("INT32_T", "i4"), ("INT64_T", "i8"), ("UINT8_T", "u1"), ("UINT16_T", "u2"),
    ("UINT32_T", "u4"), ("UINT64_T", "u8"), ("COMPLEX", "c8"), ("C_FLOAT_COMPLEX", "c8"), ("DOUBLE_COMPLEX", "c16"),
    ("C_DOUBLE_COMPLEX", "c16"))}


class Buffer(NamedTuple):
    """Elements in one dimension. counts and places (displacements): of each rank's part, where they were given."""

    elements: Any
    counts: list[int] | None = None
    places: list[int] | None = None


def _array_of(given: Any, writes: bool) -> Any:
    if getattr(given, "is_cuda", False):
        raise NotImplementedError("libddp.mpi moves memory of the CPU; give tensor.cpu(), or use libddp.horovod")
    if hasattr(given, "detach"):  # torch
        if not given.is_contiguous():
            raise ValueError("a buffer is not contiguous")
        array = given.detach().numpy()
    elif isinstance(given, numpy.ndarray):
        array = given
    elif hasattr(given, "__dlpack__"):
        array = numpy.from_dlpack(given)
    else:
        array = numpy.frombuffer(given, dtype=memoryview(given).format or "B")
    if not array.flags.c_contiguous:
        raise ValueError("a buffer is not contiguous in C's order")
    if writes and not array.flags.writeable:
        raise ValueError("a buffer that receives is read-only")
    return array.reshape(-1)


def parse(spec: Any, writes: bool = False, ranks: int = 1) -> Buffer:
    """ranks: how many have a part, of which one count is that of each.

    [b], [b, type], [b, count], [b, count, type], [b, counts, places, type], [b, (counts, places), type], or b.
    """
    if not isinstance(spec, (list, tuple)):
        return Buffer(_array_of(spec, writes))
    array, rest = _array_of(spec[0], writes), list(spec[1:])
    if rest and isinstance(rest[-1], (Datatype, str)):
        last = rest.pop()
        named = TYPES.get(last) if isinstance(last, str) else last
        array = array.view(named.dtype if named is not None else numpy.dtype(str(last)))
    if len(rest) == 1 and isinstance(rest[0], (list, tuple)) and len(rest[0]) == 2 and not isinstance(rest[0][0], int):
        rest = list(rest[0])
    if not rest or rest[0] is None:
        return Buffer(array)
    if numpy.ndim(rest[0]) == 0:
        count = int(rest[0]) * ranks
        if count < 0 or count > array.size:
            raise ValueError(f"a count of {count} for a buffer of {array.size} elements")
        return Buffer(array[:count])
    counts = [int(each) for each in rest[0]]
    places = [int(each) for each in rest[1]] if len(rest) > 1 and rest[1] is not None else None
    return Buffer(array, counts, places)


def parts(buffer: Buffer, ranks: int) -> list[Any]:
    """Each rank's part. Without counts all are equal."""
    counts = buffer.counts
    if counts is None:
        if buffer.elements.size % ranks:
            raise ValueError(f"{buffer.elements.size} elements do not divide among {ranks} ranks")
        counts = [buffer.elements.size // ranks] * ranks
    if len(counts) != ranks or min(counts) < 0:
        raise ValueError(f"{len(counts)} counts for {ranks} ranks, each 0 or more")
    places = buffer.places
    if places is None:
        places = [sum(counts[:rank]) for rank in range(ranks)]
    if len(places) != ranks:
        raise ValueError(f"{len(places)} displacements for {ranks} ranks")
    for count, place in zip(counts, places):
        if place < 0 or place + count > buffer.elements.size:
            raise ValueError(f"{count} elements at {place} are beyond a buffer of {buffer.elements.size}")
    return [buffer.elements[place:place + count] for count, place in zip(counts, places)]
