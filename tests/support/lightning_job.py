"""A program of Lightning that knows nothing of libddp; for tests/python/test_frameworks.py. Its argument: a backend; it prints TRAINED, rank,
size, backend, steps and the sum of its weights."""

import os
import sys
import tempfile

import torch

try:
    import lightning
except ImportError:
    sys.exit(77)


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, _):
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


if __name__ == "__main__":
    lightning.seed_everything(3)
    torch.set_num_threads(1)
    data = torch.utils.data.TensorDataset(torch.randn(16, 4, generator=torch.Generator().manual_seed(1)))
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            strategy=lightning.pytorch.strategies.DDPStrategy(process_group_backend=sys.argv[1]), accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]),
            num_nodes=int(os.environ["WORLD_SIZE"]) // int(os.environ["LOCAL_WORLD_SIZE"]), max_epochs=2, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder)
        net = Net()
        trainer.fit(net, torch.utils.data.DataLoader(data, batch_size=2))
    sys.stdout.write(f"TRAINED {trainer.global_rank} {trainer.world_size} {torch.distributed.get_backend()} "
                     f"{trainer.global_step} {net.layer.weight.sum().item():.6f}\n")
