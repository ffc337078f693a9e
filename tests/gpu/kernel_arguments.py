"""What libddp's kernels take (libddp/src/kernels/arguments.hpp), and how they are launched."""

import ctypes

THREADS = 256
CHUNK = 2048  # elements of a block that copies or fills
RAW_CHUNK = 8192
ROW_CHUNK = 4096
MAX_PIECES = 168
MAX_SUMS = 126
BINS, PASSES, MAX_BLOCKS = 256, 4, 1024
COLUMN_LANES, COLUMN_TILE, EXPAND_CHUNK, MAX_FACTORS = 16, 32, 2048, 96
WORKSPACE_BYTES = 4 * (PASSES * BINS + 2 * MAX_BLOCKS)

# element bytes of what a copy reads and writes
COPIES = {
    "f32_f32": (4, 4), "f32_f16": (4, 2), "f16_f32": (2, 4), "f32_bf16": (4, 2), "bf16_f32": (2, 4),
    "f32_e4m3": (4, 1), "e4m3_f32": (1, 4), "f32_e5m2": (4, 1), "e5m2_f32": (1, 4),
    "f16_f16": (2, 2), "bf16_bf16": (2, 2), "f64_f64": (8, 8), "raw": (1, 1),
}


class Pieces(ctypes.Structure):
    _fields_ = [("source", ctypes.c_uint64 * MAX_PIECES), ("to", ctypes.c_uint64 * MAX_PIECES),
                ("count", ctypes.c_uint32 * MAX_PIECES), ("first_chunk", ctypes.c_uint32 * MAX_PIECES),
                ("pieces", ctypes.c_uint32), ("unused", ctypes.c_uint32),
                ("scale", ctypes.c_double), ("pattern", ctypes.c_uint64)]


class Range(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("source", "range", "count", "row")]


class Quantize(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("source", "range", "to", "scales", "count", "row")] + [
        ("symmetric", ctypes.c_uint32), ("unused", ctypes.c_uint32)]


class Dequantize(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("source", "scales", "to", "count", "row", "stride")] + [
        ("messages", ctypes.c_uint32), ("symmetric", ctypes.c_uint32), ("divisor", ctypes.c_float), ("unused", ctypes.c_uint32)]


class Selection(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("source", "workspace", "indices", "values")] + [
        (name, ctypes.c_uint32) for name in ("count", "wanted", "number", "block_size")]


class Scatter(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("indices", "values", "to")] + [
        ("count", ctypes.c_uint32), ("divisor", ctypes.c_float)]


class LowRank(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("matrix", "left", "right", "difference", "finite", "count", "columns")] + [
        ("rank", ctypes.c_uint32), ("scale", ctypes.c_float)]


class Factors(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64 * MAX_FACTORS) for name in ("data", "source", "seed", "length")] + [
        ("columns", ctypes.c_uint32 * MAX_FACTORS), ("factors", ctypes.c_uint32), ("epsilon", ctypes.c_float),
        ("finite", ctypes.c_uint64)]


class Exact(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64 * MAX_SUMS) for name in ("values", "sums", "broken")] + [
        (name, ctypes.c_uint32 * MAX_SUMS) for name in ("count", "first_chunk")] + [
        ("pieces", ctypes.c_uint32), ("unused", ctypes.c_uint32), ("terms", ctypes.c_uint64)]


def exact_of(tensors, terms):
    """The argument and the number of blocks for (values, sums, broken, count) each."""
    argument, blocks = Exact(pieces=len(tensors), terms=terms), 0
    for i, (values, sums, broken, count) in enumerate(tensors):
        argument.values[i], argument.sums[i], argument.broken[i] = values, sums, broken
        argument.count[i], argument.first_chunk[i] = count, blocks
        blocks += -(-count // CHUNK)
    return argument, blocks


def factors_of(factors, epsilon=0.0, finite=0):
    """The argument for (data, source, seed, length, columns) each."""
    argument = Factors(factors=len(factors), epsilon=epsilon, finite=finite)
    for i, (data, source, seed, length, columns) in enumerate(factors):
        argument.data[i], argument.source[i], argument.seed[i] = data, source, seed
        argument.length[i], argument.columns[i] = length, columns
    return argument


def pieces_of(ways, chunk, scale=1.0, pattern=0):
    """The argument and the number of blocks for (source, to, count) each."""
    argument, blocks = Pieces(scale=scale, pattern=pattern), 0
    for source, to, count in ways:
        if count:
            i = argument.pieces
            argument.source[i], argument.to[i], argument.count[i] = source, to, count
            argument.first_chunk[i] = blocks
            argument.pieces = i + 1
            blocks += -(-count // chunk)
    return argument, blocks


def row_blocks(count, row):
    return -(-count // row) * -(-row // ROW_CHUNK)
