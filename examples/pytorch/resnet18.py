"""A ResNet-18 for handwritten digits (../digits/digits.csv: 1797 images of 8 by 8), with PyTorch's own DDP.

    torchrun --nproc-per-node=4 resnet18.py
    ddprun --nproc-per-node=4 resnet18.py
    srun -n4 --ddp resnet18.py
    srun -n4 --mpi=pmix python resnet18.py

--backend gloo, nccl or ddp; default: nccl with GPUs, else gloo.
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

DIGITS = Path(__file__).resolve().parent.parent / "digits" / "digits.csv"
TEST_IMAGES = 360


def join(backend: str | None) -> torch.device:
    """torchrun, ddprun and srun --ddp set the ranks' variables; under srun --mpi=pmix and mpirun libddp knows them."""
    backend = backend or ("nccl" if torch.cuda.is_available() else "gloo")
    told = "MASTER_ADDR" in os.environ and "RANK" in os.environ
    if backend == "ddp" or not told:
        import libddp.torch  # registers pmix:// and "ddp"
    dist.init_process_group(backend, init_method="env://" if told else "pmix://")
    if not torch.cuda.is_available():
        return torch.device("cpu")
    local_rank = int(os.environ["LOCAL_RANK"]) if told else libddp.world().local_rank
    torch.cuda.set_device(local_rank % torch.cuda.device_count())
    return torch.device("cuda", torch.cuda.current_device())


class Block(nn.Module):
    """Two convolutions around which the input goes, too (He et al. 2015)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs))
        self.around = nn.Identity() if stride == 1 and inputs == outputs else nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(images) + self.around(images))


def resnet18(width: int) -> nn.Module:
    """Eight blocks in four stages, as the original; its width is 64."""
    layers: list[nn.Module] = [nn.Conv2d(1, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
    inputs = width
    for stage in range(4):
        outputs = width << stage
        layers += [Block(inputs, outputs, 1 if stage == 0 else 2), Block(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


def digits() -> tuple[TensorDataset, TensorDataset]:
    rows = torch.tensor([[float(cell) for cell in line.split(",")] for line in DIGITS.read_text().splitlines()])
    images, labels = rows[:, :64].reshape(-1, 1, 8, 8) / 16, rows[:, 64].long()
    return (TensorDataset(images[:-TEST_IMAGES], labels[:-TEST_IMAGES]),
            TensorDataset(images[-TEST_IMAGES:], labels[-TEST_IMAGES:]))


def accuracy(model: nn.Module, data: TensorDataset, device: torch.device) -> float:
    """Accuracy over all images; each rank evaluates its share."""
    images, labels = (part[dist.get_rank()::dist.get_world_size()].to(device) for part in data.tensors)
    model.eval()
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).sum()
    counts = torch.stack([right, torch.tensor(len(labels), device=device)])
    dist.all_reduce(counts)
    return counts[0].item() / counts[1].item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("gloo", "nccl", "ddp"))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64, help="of all ranks together")
    parser.add_argument("--width", type=int, default=64)
    arguments = parser.parse_args()

    device = join(arguments.backend)
    torch.manual_seed(1)
    train, test = digits()
    sampler = DistributedSampler(train, seed=1)
    batches = DataLoader(train, arguments.batch // dist.get_world_size(), sampler=sampler, drop_last=True)
    model = DistributedDataParallel(resnet18(arguments.width).to(device), device_ids=[device.index] if device.type == "cuda" else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=arguments.epochs * len(batches))
    for epoch in range(arguments.epochs):
        sampler.set_epoch(epoch)
        started = time.perf_counter()
        model.train()
        for images, labels in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images.to(device)), labels.to(device)).backward()
            optimizer.step()
            schedule.step()
        seconds = time.perf_counter() - started
        right = accuracy(model.module, test, device)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {100 * right:.1f} % of test images right, {len(train) / seconds:.0f} images/s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
