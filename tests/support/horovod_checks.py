"""What the checks of horovod_job.py have in common: models to train, and what they come to."""

import libddp.horovod as hvd
import torch

def equal_on_all(value):
    """Compares plain objects of all ranks."""
    everyone = hvd.allgather_object(value)
    assert all(each == everyone[0] for each in everyone), everyone


def small_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))


def sample(rank):
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(100 + rank))


def momentum(parameters):
    return torch.optim.SGD(parameters, 0.1, momentum=0.9)


def trained_alone(size, average=True, passes=1, steps=3):
    """What one process with all samples comes to."""
    model = small_model()
    optimizer = momentum(model.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        for each in range(passes):
            for rank in range(size):
                loss = model(sample(rank) + step + each).pow(2).mean()
                (loss / size if average else loss).backward()
        optimizer.step()
    return model


def same(model, other):
    for one, two in zip(model.parameters(), other.parameters()):
        assert torch.allclose(one, two, atol=1e-5), (one - two).abs().max()
