#!/usr/bin/env python3
"""What issuing an all_reduce of one element costs the processor in PyTorch's ProcessGroupNCCL, one rank, as nccl_on_device does."""

import json
import os
import tempfile
import time

NOTHING_TO_TEST = 77  # for scripts/test-gpu

try:
    import torch
    import torch.distributed as dist
except ImportError:
    print("there is no PyTorch")
    raise SystemExit(NOTHING_TO_TEST)

IN_FLIGHT, ROUNDS = 50, 40


def issue(tensor):
    works = []
    start = time.thread_time()
    for _ in range(IN_FLIGHT):
        works.append(dist.all_reduce(tensor, async_op=True))
    spent = time.thread_time() - start
    torch.cuda.synchronize()
    return spent


def main():
    if not (torch.cuda.is_available() and dist.is_nccl_available()):
        print("this PyTorch has no CUDA device or no NCCL")
        raise SystemExit(NOTHING_TO_TEST)
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("nccl", init_method=f"file://{os.path.join(folder, 'store')}", rank=0, world_size=1)
        tensor = torch.ones(1, device="cuda")
        issue(tensor)
        seconds = sum(issue(tensor) for _ in range(ROUNDS)) / (ROUNDS * IN_FLIGHT)
        print(json.dumps({"what": "torch issue all_reduce (with Python's cost)", "ranks": 1, "us": round(seconds * 1e6, 2)}))
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
