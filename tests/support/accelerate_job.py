"""A program of Accelerate that knows nothing of libddp; for tests/python/test_frameworks.py. Prints TRAINED, rank, size, backend, steps
and the sum of its weights."""

import sys

import torch

try:
    from accelerate import Accelerator
except ImportError:
    sys.exit(77)

if __name__ == "__main__":
    torch.manual_seed(3)
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    data = torch.utils.data.TensorDataset(torch.randn(16, 4, generator=torch.Generator().manual_seed(1)))
    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net, optimizer, loader = accelerator.prepare(net, optimizer, torch.utils.data.DataLoader(data, batch_size=2))
    steps = 0
    for _ in range(2):
        for inputs, in loader:
            optimizer.zero_grad()
            accelerator.backward(net(inputs).square().mean())
            optimizer.step()
            steps += 1
    assert accelerator.gather(torch.tensor([accelerator.process_index])).tolist() == list(range(accelerator.num_processes))
    weight = accelerator.unwrap_model(net).weight.sum().item()
    sys.stdout.write(f"TRAINED {accelerator.process_index} {accelerator.num_processes} {torch.distributed.get_backend()} "
                     f"{steps} {weight:.6f}\n")
    accelerator.end_training()
