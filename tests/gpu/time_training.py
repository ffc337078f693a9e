#!/usr/bin/env python3
"""Times steps of training on one CUDA device, of one rank: without DistributedDataParallel, with PyTorch's over its own NCCL backend
and over "ddp", and with libddp's. Prints Markdown.

    time_training.py [--rounds N] [--network TEXT] [--device cpu]      the package libddp must be importable. --device cpu: small networks, to try this program

What is compared is what a step costs beside computing: one rank has nothing to exchange, but everything else is done.
"""

import argparse
import copy
import os
import sys
import tempfile
import time
from pathlib import Path

NOTHING_TO_TEST = 77  # for scripts/test-gpu
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "examples" / "pytorch")]
try:
    import torch
    import torch.distributed as dist

    import libddp.torch
except ImportError as problem:
    print(f"there is no PyTorch or no libddp: {problem}")
    raise SystemExit(NOTHING_TO_TEST)

from gpt import Gpt  # noqa: E402
from spread import Ratio, Spread, table  # noqa: E402

STEPS, WARM_UPS = 5, 3
SMALL_PARAMETERS = 1000


class ManySmall(torch.nn.Module):
    """Computes next to nothing: what is left is what each parameter costs."""

    def __init__(self):
        super().__init__()
        self.parts = torch.nn.ParameterList(torch.nn.Parameter(torch.ones(16)) for _ in range(SMALL_PARAMETERS))

    def forward(self, inputs):
        return inputs + sum(part for part in self.parts)


def networks(device, small):
    """{title: (network, inputs, loss of its output)}, made when asked for."""
    def gpt():
        letters, context, batch = (100, 16, 2) if small else (50304, 512, 8)
        sizes = (32, 2, 2) if small else (768, 12, 12)
        inputs = torch.randint(letters, (batch, context), device=device)
        loss = lambda output: torch.nn.functional.cross_entropy(output.flatten(0, 1), inputs.flatten())  # noqa: E731
        return Gpt(letters, context, *sizes), inputs, loss

    def resnet():
        import torchvision
        inputs = torch.randn(2 if small else 64, 3, 64 if small else 224, 64 if small else 224, device=device)
        return torchvision.models.resnet50(), inputs.to(memory_format=torch.channels_last), lambda output: output.square().mean()

    def many():
        return ManySmall(), torch.ones(16, device=device), lambda output: output.sum()

    if small:
        return {"a small GPT, bf16": gpt, "ResNet-50, 2 small pictures, bf16": resnet, f"{SMALL_PARAMETERS} parameters of 16 elements": many}
    return {"GPT-2, 124 million parameters, 8 x 512 tokens, bf16": gpt, "ResNet-50, 64 pictures, bf16": resnet,
            f"{SMALL_PARAMETERS} parameters of 16 elements": many}


def contenders(device):
    theirs = torch.nn.parallel.DistributedDataParallel
    own = dist.new_group(backend="nccl" if device.type == "cuda" else "gloo")
    options = {"gradient_as_bucket_view": True}
    return {"no DDP": lambda net: net,
            f"PyTorch's, over {'NCCL' if device.type == 'cuda' else 'gloo'}": lambda net: theirs(net, process_group=own, **options),
            'PyTorch\'s, over "ddp"': lambda net: theirs(net, **options),
            "libddp's": lambda net: libddp.torch.DistributedDataParallel(net, **options)}


class Trained:
    def __init__(self, wrap, net, inputs, loss):
        self.model, self.inputs, self.loss = wrap(net), inputs, loss
        self.optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step(self):
        self.optimizer.zero_grad()
        with torch.autocast(self.inputs.device.type, torch.bfloat16):
            loss = self.loss(self.model(self.inputs))
        loss.backward()
        self.optimizer.step()

    def seconds(self):
        settle(self.inputs.device)
        start = time.perf_counter()
        for _ in range(STEPS):
            self.step()
        settle(self.inputs.device)
        return (time.perf_counter() - start) / STEPS


def settle(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--network", default="", help="only those whose title has this")
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "cuda" and not (torch.cuda.is_available() and dist.is_nccl_available()):
        print("this PyTorch has no CUDA device or no NCCL")
        raise SystemExit(NOTHING_TO_TEST)
    with tempfile.TemporaryDirectory() as folder:
        backend = "cpu:ddp,cuda:ddp" if device.type == "cuda" else "ddp"
        dist.init_process_group(backend, init_method=f"file://{os.path.join(folder, 'store')}", rank=0, world_size=1)
        name = torch.cuda.get_device_name() if device.type == "cuda" else "the CPU"
        print(f"One rank on {name}, PyTorch {torch.__version__}. Milliseconds of a step, with the optimizer's: median (quartiles) of "
              f"{options.rounds} rounds of {STEPS} steps, contenders in turn in each. Ratio: libddp's time to the other's.")
        wraps = contenders(device)
        for title, make in networks(device, device.type != "cuda").items():
            if options.network not in title:
                continue
            try:
                net, *rest = make()
            except ImportError as problem:
                print(f"\n{title}: SKIPPED, {problem}", flush=True)
                continue
            net = net.to(device)
            trained = {each: Trained(wrap, copy.deepcopy(net), *rest) for each, wrap in wraps.items()}
            for each in trained.values():
                for _ in range(WARM_UPS):
                    each.step()
            rounds = {each: [] for each in trained}
            for turn in range(options.rounds):
                for each in list(trained)[turn % len(trained):] + list(trained)[:turn % len(trained)]:
                    rounds[each].append(trained[each].seconds())
            ours = rounds["libddp's"]
            print(f"\n{title}\n\n" + table(["", "a step", "libddp's to it"], [
                [each, Spread(times).scaled(1e3, 2), "" if times is ours else str(Ratio(ours, times))]
                for each, times in rounds.items()]), flush=True)
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
