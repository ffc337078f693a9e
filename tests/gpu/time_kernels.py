#!/usr/bin/env python3
"""Times flattening with scale and cast of a bucket of 25 MiB from 160 tensors, beside PyTorch's _foreach_copy_.

    time_kernels.py FAT_BINARY [--check-only]

Prints a line of JSON for each cast: microseconds (median of runs, each of several in a row), GB/s read and written, and their share
of what the driver's own copy of the bucket moves; the target of ours is 0.85, and "missed" says so. Those in a row take other
memory, more together than caches hold. --check-only: a small run whose times mean nothing, as on the double of CUDA's driver.
"""

import json
import statistics
import sys
from pathlib import Path

try:
    import torch
except ImportError:
    torch = None

sys.path.insert(0, str(Path(__file__).parent))
from cuda_driver import CudaError, Driver
import kernel_arguments as k

TENSORS, BUCKET_BYTES = 160, 25 << 20
TARGET_SHARE = 0.85
DRIVERS_COPY = "the driver's copy"
MEMORY_CLOCK_KHZ, BUS_WIDTH_BITS = 36, 37  # CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, _GLOBAL_MEMORY_BUS_WIDTH


def peak_bytes_per_second(driver):
    """Two transfers a clock: what data sheets say. 0 if the driver does not tell."""
    try:
        return 2 * driver.attribute(MEMORY_CLOCK_KHZ) * 1000 * driver.attribute(BUS_WIDTH_BITS) / 8
    except CudaError:
        return 0


def report(name, milliseconds, moved, copies, check_only, peak=0):
    """@param copies: bytes per second of the driver's copy; None: this is it. peak: the memory's nominal ones, if they are known. Returns its own."""
    line = {"what": name}
    seconds = statistics.median(milliseconds) / 1000
    if not check_only:
        line |= {"us": round(seconds * 1e6, 1), "gb_per_s": round(moved / seconds / 1e9, 1)}
        if peak:
            line["share_of_bandwidth"] = round(moved / seconds / peak, 3)
        if copies:
            share = moved / seconds / copies
            line |= {"share_of_copy": round(share, 3), "target": TARGET_SHARE}
            if share < TARGET_SHARE and name.startswith("libddp"):
                line["missed"] = True
    print(json.dumps(line), flush=True)
    return moved / seconds if seconds else 0


def in_a_row(works, time_of, runs):
    """Milliseconds of each, where the device never waits for the host: it is behind by as many when they begin."""
    def all_of_them():
        for work in works:
            work()

    for _ in range(2):  # the first ones load code
        all_of_them()
    return [time_of(all_of_them, all_of_them) / len(works) for _ in range(runs)]


def time_copy(driver, sets, runs, count, check_only):
    memory = [[driver.allocate(count * TENSORS * 4) for _ in range(2)] for _ in range(sets)]
    works = [lambda pair=pair: driver.copy_on_device(pair[0], pair[1], count * TENSORS * 4) for pair in memory]
    peak = peak_bytes_per_second(driver)
    rate = report(DRIVERS_COPY, in_a_row(works, driver.milliseconds, runs), count * TENSORS * 8, None, check_only, peak)
    for pair in memory:
        for address in pair:
            driver.free(address)
    return rate


def time_own(driver, sets, runs, count, copies, check_only):
    bucket, peak = count * TENSORS * 4, peak_bytes_per_second(driver)
    memory = [([driver.allocate(count * 4) for _ in range(TENSORS)], driver.allocate(bucket)) for _ in range(sets)]
    for kind in ("f32_f32", "f32_f16", "f32_bf16", "f32_e4m3", "f16_f32", "bf16_f32"):
        size, to_size = k.COPIES[kind]
        arguments = [k.pieces_of([(tensor, flat + i * count * to_size, count) for i, tensor in enumerate(tensors)], k.CHUNK, 1 / 3)
                     for tensors, flat in memory]
        works = [lambda each=each: driver.launch(f"ddp_copy_{kind}", each[1], each[0]) for each in arguments]
        times = in_a_row(works, driver.milliseconds, runs)
        report(f"libddp flatten {kind}", times, count * TENSORS * (size + to_size), copies, check_only, peak)
    for tensors, flat in memory:
        for address in [*tensors, flat]:
            driver.free(address)


def torchs_milliseconds(work, before):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    before()
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def time_torch(sets, runs, count, copies):
    if torch is None:
        print("SKIPPED _foreach_copy_: there is no PyTorch", flush=True)
        return
    if not torch.cuda.is_available():
        print("SKIPPED _foreach_copy_: this PyTorch sees no CUDA device", flush=True)
        return
    for name in ("float32", "float16", "bfloat16"):
        dtype = getattr(torch, name)
        memory = []
        for _ in range(sets):
            flat = torch.empty(count * TENSORS, dtype=dtype, device="cuda")
            memory.append(([torch.randn(count, device="cuda") for _ in range(TENSORS)], flat, list(flat.split(count))))
        for scaled in (False, True):
            def work(tensors, flat, views, scaled=scaled):
                torch._foreach_copy_(views, tensors)
                if scaled:
                    flat.div_(3)

            times = in_a_row([lambda each=each, work=work: work(*each) for each in memory], torchs_milliseconds, runs)
            what = f"torch _foreach_copy_ float32 to {name}" + (" and div_" if scaled else "")
            report(what, times, count * TENSORS * (4 + memory[0][1].element_size()), copies, False)


def main():
    check_only = "--check-only" in sys.argv[2:]
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    driver = Driver()
    driver.load(Path(sys.argv[1]).read_bytes())
    count = BUCKET_BYTES // 4 // TENSORS
    sets, runs = (1, 1) if check_only else (8, 200)
    print(f"device: {driver.name()}; bandwidth by its clock: {peak_bytes_per_second(driver) / 1e9:.0f} GB/s")
    copies = time_copy(driver, sets, runs, count, check_only)
    time_own(driver, sets, runs, count, copies, check_only)
    if not check_only:
        time_torch(sets, runs, count, copies)


if __name__ == "__main__":
    main()
