"""A program of torch.distributed that knows nothing of addresses, and exchanges torch's tensors by libddp, too."""

import gc
import os
import sys

for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK"):
    os.environ.pop(name, None)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import libddp.torch  # noqa: E402

for attempt in range(2):
    dist.init_process_group("gloo", init_method="pmix://")
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.all_reduce(total := torch.tensor([rank + 1.0]))
    assert total.item() == size * (size + 1) / 2, total
    dist.destroy_process_group()

dist.init_process_group("gloo", init_method="pmix://")
world = libddp.world()
assert (world.rank, world.world_size) == (rank, size)
group = world.process_group()
for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.complex64):
    tensor = torch.full((3, 5), rank + 1, dtype=dtype)
    group.all_reduce(tensor).wait()
    assert (tensor == size * (size + 1) // 2).all(), tensor
flags = torch.tensor([rank == 0])
group.all_reduce(flags, "max").wait()
assert flags.all()
for wrong, words in ((torch.zeros(3, requires_grad=True), "detach"), (torch.zeros(4, 4).t()[1:], "contiguous"),
                     (torch.zeros(2, dtype=torch.int16), "type code"), (torch.zeros(3, device="meta"), "")):
    try:
        group.all_reduce(wrong)
        raise AssertionError(f"accepted: {wrong}")
    except (libddp.InvalidArgument, ValueError) as error:
        assert words in str(error), error

model = DistributedDataParallel(torch.nn.Linear(4, 1))
model(torch.full((2, 4), float(rank))).sum().backward()
assert torch.allclose(model.module.weight.grad, torch.full((1, 4), float(size - 1)))
# Its circle of references keeps the group, whose thread would need Python for its last work when that has ended, and abort the
# process (PyTorch 2.13's gloo).
del model
gc.collect()
dist.destroy_process_group()
sys.stdout.write(f"CHECKED torch {rank}\n")
sys.stdout.flush()
