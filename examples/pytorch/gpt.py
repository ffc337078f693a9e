"""A small GPT that learns a text, character by character (by default this project's LICENSE), with PyTorch's own DDP.

    torchrun --nproc-per-node=4 gpt.py
    ddprun --nproc-per-node=4 gpt.py
    srun -n4 --ddp gpt.py
    srun -n4 --mpi=pmix python gpt.py

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

TEXT = Path(__file__).resolve().parents[2] / "LICENSE"


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
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_network = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.network = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        batch, length, width = states.shape
        parts = self.attention(self.before_attention(states)).reshape(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        states = states + self.projection(seen.transpose(1, 2).reshape(batch, length, width))
        return states + self.network(self.before_network(states))


class Gpt(nn.Module):
    def __init__(self, vocab_size: int, context: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.token_embedding, self.position_embedding = nn.Embedding(vocab_size, width), nn.Embedding(context, width)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)), nn.LayerNorm(width))
        self.output = nn.Linear(width, vocab_size, bias=False)
        self.output.weight = self.token_embedding.weight  # tied
        nn.init.normal_(self.token_embedding.weight, std=0.02)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(text.shape[1], device=text.device)
        return self.output(self.layers(self.token_embedding(text) + self.position_embedding(positions)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("gloo", "nccl", "ddp"))
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=32, help="sequences, of all ranks together")
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    arguments = parser.parse_args()

    device = join(arguments.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    vocabulary = sorted(set(text := arguments.text.read_text()))
    token_of = {character: token for token, character in enumerate(vocabulary)}
    data = torch.tensor([token_of[character] for character in text])
    model = DistributedDataParallel(Gpt(len(vocabulary), arguments.context, arguments.width, arguments.layers, heads=4).to(device),
                                    device_ids=[device.index] if device.type == "cuda" else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    order = torch.Generator().manual_seed(2)  # equal on all ranks: each takes its part of the batch
    started = time.perf_counter()
    for step in range(1, arguments.steps + 1):
        starts = torch.randint(len(data) - arguments.context - 1, (arguments.batch,), generator=order)[rank::size]
        pieces = torch.stack([data[start:start + arguments.context + 1] for start in starts.tolist()]).to(device)
        optimizer.zero_grad()
        guesses = model(pieces[:, :-1])
        loss = nn.functional.cross_entropy(guesses.flatten(0, 1), pieces[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or step == arguments.steps:
            dist.all_reduce(mean := loss.detach() / size)
            if rank == 0:
                tokens = step * arguments.batch * arguments.context
                print(f"step {step}: loss {mean.item():.3f}, {tokens / (time.perf_counter() - started):.0f} tokens/s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
