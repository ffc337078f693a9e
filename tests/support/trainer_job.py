"""A program of Hugging Face's Trainer that knows nothing of libddp; for the page docs/howto/frameworks.md. Prints TRAINED, rank,
size and steps."""

import sys
import tempfile

import torch
from transformers import Trainer, TrainingArguments


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, inputs, labels=None):
        outputs = self.layer(inputs)
        return {"loss": (outputs.squeeze(1) - labels).square().mean(), "logits": outputs}


if __name__ == "__main__":
    torch.manual_seed(3)
    data = [{"inputs": torch.randn(4), "labels": torch.tensor(1.0)} for _ in range(16)]
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(folder, per_device_train_batch_size=2, num_train_epochs=2, use_cpu=True, report_to=[],
                                     save_strategy="no", disable_tqdm=True)
        trainer = Trainer(Net(), settings, train_dataset=data)
        trainer.train()
    sys.stdout.write(f"TRAINED {settings.process_index} {settings.world_size} {trainer.state.global_step}\n")
    torch.distributed.destroy_process_group()
