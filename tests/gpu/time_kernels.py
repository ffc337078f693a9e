#!/usr/bin/env python3
"""Times flattening with scale and cast of a bucket of 25 MiB from 160 tensors, beside PyTorch's _foreach_copy_.

    time_kernels.py FAT_BINARY [--check-only]

Prints a line of JSON for each cast: microseconds (median of runs), GB/s read and written, and their share of the memory's
bandwidth; the target of ours is 0.85, and "missed" says so. Each run takes other memory, more together than caches hold. --check-only: a small run whose
times mean nothing, as on the double of CUDA's driver.
"""

import json
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from cuda_driver import CudaError, Driver
import kernel_arguments as k

TENSORS, BUCKET_BYTES = 160, 25 << 20
TARGET_SHARE = 0.85
MEMORY_CLOCK_KHZ, BUS_WIDTH_BITS = 36, 37  # CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, _GLOBAL_MEMORY_BUS_WIDTH


def peak_bytes_per_second(driver):
    """Two transfers a clock: what data sheets say. 0 if the driver does not tell."""
    try:
        return 2 * driver.attribute(MEMORY_CLOCK_KHZ) * 1000 * driver.attribute(BUS_WIDTH_BITS) / 8
    except CudaError:
        return 0


def report(name, milliseconds, moved, peak, check_only):
    line = {"what": name}
    if not check_only:
        seconds = statistics.median(milliseconds) / 1000
        line |= {"us": round(seconds * 1e6, 1), "gb_per_s": round(moved / seconds / 1e9, 1)}
        if peak:
            share = moved / seconds / peak
            line |= {"share_of_bandwidth": round(share, 3), "target": TARGET_SHARE}
            if share < TARGET_SHARE and name.startswith("libddp"):
                line["missed"] = True
    print(json.dumps(line), flush=True)


def time_own(driver, sets, runs, count, check_only):
    peak = peak_bytes_per_second(driver)
    bucket = count * TENSORS * 4
    memory = [([driver.allocate(count * 4) for _ in range(TENSORS)], driver.allocate(bucket)) for _ in range(sets)]
    for kind in ("f32_f32", "f32_f16", "f32_bf16", "f32_e4m3", "f16_f32", "bf16_f32"):
        size, to_size = k.COPIES[kind]
        arguments = [k.pieces_of([(tensor, flat + i * count * to_size, count) for i, tensor in enumerate(tensors)], k.CHUNK, 1 / 3)
                     for tensors, flat in memory]
        times = []
        for i in range(runs + sets):
            argument, blocks = arguments[i % sets]
            elapsed = driver.milliseconds(lambda: driver.launch(f"ddp_copy_{kind}", blocks, argument))
            if i >= sets:  # the first ones load code
                times.append(elapsed)
        report(f"libddp flatten {kind}", times, count * TENSORS * (size + to_size), peak, check_only)
    for tensors, flat in memory:
        for address in [*tensors, flat]:
            driver.free(address)


def time_torch(sets, runs, count, peak):
    try:
        import torch
    except ImportError:
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
            times = []
            for i in range(runs + sets):
                tensors, flat, views = memory[i % sets]
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                start.record()
                torch._foreach_copy_(views, tensors)
                if scaled:
                    flat.div_(3)
                end.record()
                end.synchronize()
                if i >= sets:
                    times.append(start.elapsed_time(end))
            what = f"torch _foreach_copy_ float32 to {name}" + (" and div_" if scaled else "")
            report(what, times, count * TENSORS * (4 + memory[0][1].element_size()), peak, False)


def main():
    check_only = "--check-only" in sys.argv[2:]
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    driver = Driver()
    driver.load(Path(sys.argv[1]).read_bytes())
    count = BUCKET_BYTES // 4 // TENSORS
    sets, runs = (1, 1) if check_only else (8, 200)
    print(f"device: {driver.name()}; bandwidth by its clock: {peak_bytes_per_second(driver) / 1e9:.0f} GB/s")
    time_own(driver, sets, runs, count, check_only)
    if not check_only:
        time_torch(sets, runs, count, peak_bytes_per_second(driver))


if __name__ == "__main__":
    main()
