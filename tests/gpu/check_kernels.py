#!/usr/bin/env python3
"""Compares libddp's kernels on a CUDA device with their functions for processors: the same bytes, but for NaN's payloads.

    check_kernels.py FAT_BINARY HOST_LIBRARY

Prints a line for each kernel; exit status 1 if any differs.
"""

import ctypes
import random
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from cuda_driver import Driver
import kernel_arguments as k


class Host:
    """The functions for processors."""

    class Entry(ctypes.Structure):
        _fields_ = [("name", ctypes.c_char_p), ("run", ctypes.CFUNCTYPE(None, ctypes.c_void_p)), ("bytes", ctypes.c_size_t)]

    def __init__(self, file):
        self.library = ctypes.CDLL(file)
        self.library.fake_cuda_kernels.restype = ctypes.POINTER(Host.Entry)
        count = ctypes.c_size_t()
        entries = self.library.fake_cuda_kernels(ctypes.byref(count))
        self.entries = {entries[i].name.decode(): entries[i] for i in range(count.value)}

    def launch(self, name, _blocks, argument):
        entry = self.entries[name]
        if entry.bytes != ctypes.sizeof(argument):
            sys.exit(f"{name} takes {entry.bytes} bytes, not {ctypes.sizeof(argument)}: see kernel_arguments.py")
        entry.run(ctypes.addressof(argument))


class HostMemory:
    def __init__(self):
        self.buffers = []

    def put(self, data):
        self.buffers.append(ctypes.create_string_buffer(data + bytes(256), len(data) + 256))
        address = ctypes.addressof(self.buffers[-1])
        aligned = -(-address // 256) * 256
        ctypes.memmove(aligned, data, len(data))
        return aligned

    @staticmethod
    def get(address, size):
        return ctypes.string_at(address, size)


class DeviceMemory:
    def __init__(self, driver):
        self.driver, self.addresses = driver, []

    def put(self, data):
        self.addresses.append(self.driver.allocate(len(data)))
        source = ctypes.create_string_buffer(data, len(data) + 1)
        self.driver.copy(self.addresses[-1], ctypes.addressof(source), len(data))
        return self.addresses[-1]

    def get(self, address, size):
        data = ctypes.create_string_buffer(size + 1)
        self.driver.copy(ctypes.addressof(data), address, size)
        return data.raw[:size]

    def free(self):
        for address in self.addresses:
            self.driver.free(address)


def is_nan(kind, data):
    """Whether one element's bytes are a NaN."""
    if kind == "e4m3":
        return data[0] & 0x7F == 0x7F
    if kind == "e5m2":
        return data[0] & 0x7F > 0x7C
    exponent, mantissa = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "f64": (11, 52)}[kind]
    magnitude = int.from_bytes(data, "little") & ~(1 << (exponent + mantissa))
    return magnitude > ((1 << exponent) - 1) << mantissa


def same(got, expected, kind, size):
    if got == expected:
        return True
    for i in range(0, len(expected), size):
        a, b = got[i : i + size], expected[i : i + size]
        if a != b and not (kind in ("f16", "bf16", "f32", "f64", "e4m3", "e5m2") and is_nan(kind, a) and is_nan(kind, b)):
            print(f"  element {i // size}: {a.hex()} instead of {b.hex()}")
            return False
    return True


class Check:
    def __init__(self, driver, host):
        self.driver, self.host, self.failed = driver, host, 0
        self.random = random.Random(5)

    def both(self, run):
        """run(memory, launch) once on each side; it returns [(bytes, kind, size)]."""
        expected = run(HostMemory(), self.host.launch)
        memory = DeviceMemory(self.driver)
        try:
            got = run(memory, self.driver.launch)
        finally:
            memory.free()
        return all(same(a, b, kind, size) for (a, _, _), (b, kind, size) in zip(got, expected))

    def report(self, name, good):
        print(f"{'ok  ' if good else 'FAIL'} {name}", flush=True)
        self.failed += not good

    def floats(self, count, special=True):
        values = [self.random.gauss(0, 1) * 10 ** self.random.randint(-12, 6) for _ in range(count)]
        if special and count > 8:
            values[:8] = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-45, 65520.0, 3e38]
        return struct.pack(f"{count}f", *values)

    def normal(self, count):
        return struct.pack(f"{count}f", *(self.random.gauss(0, 1) for _ in range(count)))

    @staticmethod
    def ones(count):
        return struct.pack(f"{count}f", *[1.0] * count)

    def copy(self, kind, scale):
        size, to_size = k.COPIES[kind]
        chunk = k.RAW_CHUNK if kind == "raw" else k.CHUNK
        counts = [self.random.randint(0, 300) for _ in range(158)] + [chunk, 2 * chunk + 3]
        total = sum(counts)
        if kind.startswith("f32"):
            data = self.floats(total)
        elif size == 2:  # all of them
            data = b"".join(struct.pack("<H", i % 65536) for i in range(max(total, 65536)))[: total * 2]
        else:
            data = self.random.randbytes(total * size)

        def run(memory, launch):
            outcome = []
            for shift in (0, 1):  # aligned to several elements, and to one
                source = memory.put(bytes(shift * size) + data) + shift * size
                to = memory.put(bytes((total + 2) * to_size))
                ways, done = [], 0
                for count in counts:
                    ways.append((source + done * size, to + done * to_size, count))
                    done += count
                argument, blocks = k.pieces_of(ways, chunk, scale)
                launch(f"ddp_copy_{kind}", blocks, argument)
                outcome.append((memory.get(to, (total + 2) * to_size), kind.split("_")[-1], to_size))
            return outcome

        self.report(f"copy {kind} scale {scale}", self.both(run))

    def fill(self, size):
        def run(memory, launch):
            counts = [0, 1, 5, k.CHUNK + 1]
            places = [memory.put(bytes((count + 1) * size)) for count in counts]
            argument, blocks = k.pieces_of([(0, to, n) for to, n in zip(places, counts)], k.CHUNK, pattern=0x8123456789ABCDEF)
            launch(f"ddp_fill_{size}", blocks, argument)
            return [(memory.get(to, (n + 1) * size), "", size) for to, n in zip(places, counts)]

        self.report(f"fill {size}", self.both(run))

    def sums(self):
        counts = [0, 1, 5, k.CHUNK + 1]
        data = [self.floats(count) for count in counts]

        def run(memory, launch):
            outcome = []
            for name in ("add", "copy_finite"):
                sources, places = [memory.put(each) for each in data], [memory.put(self.ones(count)) for count in counts]
                argument, blocks = k.pieces_of(zip(sources, places, counts), k.CHUNK)
                launch(f"ddp_{name}", blocks, argument)
                outcome += [(memory.get(to, 4 * count), "f32", 4) for to, count in zip(places, counts)]
            return outcome

        self.report("sums and finite numbers", self.both(run))

    def quantization(self, count, row, symmetric):
        data = [self.floats(count, special=False) for _ in range(3)]
        rows = -(-count // row)
        stride = 8 * rows + -(-count // 4) * 4

        def run(memory, launch):
            blocks, all, back = k.row_blocks(count, row), memory.put(bytes(3 * stride)), memory.put(bytes(4 * count))
            for i, each in enumerate(data):
                source, keys, scales = memory.put(each), memory.put(bytes(8 * rows)), all + i * stride
                launch("ddp_range", blocks, k.Range(source, keys, count, row))
                launch("ddp_quantize", blocks, k.Quantize(source, keys, scales + 8 * rows, scales, count, row, symmetric, 0))
            argument = k.Dequantize(all + 8 * rows, all, back, count, row, stride, len(data), symmetric, len(data), 0)
            launch("ddp_dequantize", blocks, argument)
            return [(memory.get(all, 3 * stride), "", 1), (memory.get(back, 4 * count), "f32", 4)]

        self.report(f"quantize {count} in rows of {row}{' symmetric' if symmetric else ''}", self.both(run))

    def exact(self, kind, size):
        counts = [1, 255, 4097, 70000]
        numbers = {"f32": "f", "f64": "d", "f16": "e", "bf16": "f"}[kind]

        def values(count):
            made = [self.random.gauss(0, 1) * 2.0 ** self.random.randint(-60, 12) for _ in range(count)]
            data = struct.pack(f"{count}{numbers}", *made)
            return b"".join(data[i + 2 : i + 4] for i in range(0, 4 * count, 4)) if kind == "bf16" else data

        terms = [[values(count) for count in counts] for _ in range(3)]

        def run(memory, launch):
            sums = [memory.put(bytes(16 * count + 8)) for count in counts]
            number = memory.put(struct.pack("q", len(terms)))
            for term in terms:
                tensors = [(memory.put(each), to, to + 16 * count, count) for each, to, count in zip(term, sums, counts)]
                argument, blocks = k.exact_of(tensors, number)
                launch(f"ddp_exact_add_{kind}", blocks, argument)
            launch(f"ddp_exact_mean_{kind}", blocks, argument)
            return [(memory.get(to, 16 * count + 8), "", 8) for to, count in zip(sums, counts)] + [
                (memory.get(source, size * count), kind, size) for source, _, _, count in tensors]

        self.report(f"exact means of {kind}", self.both(run))

    def low_rank(self, count, columns, rank):
        rows = -(-count // columns)
        matrix, kept = self.normal(count), self.normal(columns * rank)
        broken = struct.pack("f", float("inf")) + kept[4:]

        def run(memory, launch):
            place, left, right = memory.put(matrix), memory.put(bytes(4 * rows * rank)), memory.put(bytes(4 * columns * rank))
            difference, finite = memory.put(bytes(4 * count)), memory.put(bytes(8))
            argument = k.LowRank(place, left, right, difference, finite, count, columns, rank, 1 / 3)
            outcome = []

            def note(address, elements):
                outcome.append((memory.get(address, 4 * elements), "f32", 4))

            for source in (memory.put(kept), 0, memory.put(broken)):
                launch("ddp_begin_factors", 1, k.factors_of([(right, source, 5, columns, rank)]))
                note(right, columns * rank)
            launch("ddp_low_rank_left", -(-rows * rank // (k.THREADS // k.COLUMN_LANES)), argument)
            note(left, rows * rank)
            launch("ddp_orthogonalize", 1, k.factors_of([(left, 0, 0, rows, rank)], 1e-3))
            note(left, rows * rank)
            launch("ddp_low_rank_right", -(-columns // k.COLUMN_TILE) * rank, argument)
            note(right, columns * rank)
            both = [(right, 0, 0, columns, rank), (memory.put(broken), 0, 0, columns, rank)]
            launch("ddp_check_finite", len(both), k.factors_of(both, finite=finite))
            note(finite, 2)
            launch("ddp_low_rank_expand", -(-count // k.EXPAND_CHUNK), argument)
            note(place, count)
            note(difference, count)
            return outcome

        self.report(f"factors of {rank} columns of {count} elements in rows of {columns}", self.both(run))

    def selection(self, count, wanted):
        data = self.floats(count)

        def run(memory, launch):
            tiles = -(-count // k.THREADS)
            block_size = -(-tiles // k.MAX_BLOCKS) * k.THREADS
            source, workspace = memory.put(data), memory.put(bytes(k.WORKSPACE_BYTES))
            indices, values = memory.put(bytes(4 * wanted)), memory.put(bytes(4 * wanted))
            blocks = -(-count // block_size)
            for name, number in [("histogram", i) for i in range(k.PASSES)] + [("count", 0), ("gather", 0)]:
                argument = k.Selection(source, workspace, indices, values, count, wanted, number, block_size)
                launch(f"ddp_selection_{name}", blocks, argument)
            to = memory.put(bytes(4 * count))
            launch("ddp_scatter_add", -(-wanted // k.THREADS), k.Scatter(indices, values, to, wanted, 3))
            launch("ddp_scatter_zero", -(-wanted // k.THREADS), k.Scatter(indices, 0, source, wanted, 1))
            return [(memory.get(indices, 4 * wanted), "", 4), (memory.get(values, 4 * wanted), "f32", 4),
                    (memory.get(to, 4 * count), "f32", 4), (memory.get(source, 4 * count), "f32", 4)]

        self.report(f"select {wanted} of {count}", self.both(run))


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    driver = Driver()
    driver.load(Path(sys.argv[1]).read_bytes())
    print(f"kernels on {driver.name()}")
    check = Check(driver, Host(sys.argv[2]))
    for kind in k.COPIES:
        for scale in (1.0,) if kind == "raw" else (1.0, 1 / 3):
            check.copy(kind, scale)
    for size in (1, 2, 4, 8):
        check.fill(size)
    check.sums()
    for kind, size in (("f32", 4), ("f64", 8), ("f16", 2), ("bf16", 2)):
        check.exact(kind, size)
    for symmetric in (0, 1):
        for count, row in ((1, 1), (1000, 1000), (5000, 512), (3 * k.ROW_CHUNK + 1, 3 * k.ROW_CHUNK + 1)):
            check.quantization(count, row, symmetric)
    for count, wanted in ((1, 1), (257, 100), (70000, 700), (300000, 3000)):
        check.selection(count, wanted)
    for count, columns, rank in ((1, 1, 1), (480, 20, 2), (2999, 55, 17), (70000, 300, 4), (70000, 7, 3)):
        check.low_rank(count, columns, rank)
    sys.exit(1 if check.failed else 0)


if __name__ == "__main__":
    main()
