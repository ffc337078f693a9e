"""A training program for libddp.training.advise: advise_job.py KIND BATCHES [SLOW] [LEFT_OUT]; on rank 0, one line of JSON for each batch.

KIND: ddp, hvd, join (ranks have different numbers of batches), pair (two models) or plain (nothing is averaged). SLOW: rank 1 takes 0.2 s
to load each of the first SLOW batches. LEFT_OUT: FIRST:LAST, batches that are loaded and not trained with.
"""

import hashlib
import json
import sys
import time

import torch
import torch.distributed as dist

KIND, BATCHES = sys.argv[1], int(sys.argv[2])
SLOW = int(sys.argv[3]) if len(sys.argv) > 3 else 0
LEFT_OUT = range(*map(int, sys.argv[4].split(":"))) if len(sys.argv) > 4 else range(0)


def network():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 8))


class Samples(torch.utils.data.Dataset):
    def __init__(self, rank):
        self.rank = rank

    def __len__(self):
        return 4 * (BATCHES + (3 * self.rank if KIND == "join" else 0))

    def __getitem__(self, index):
        if self.rank == 1 and index < 4 * SLOW and index % 4 == 0:
            time.sleep(0.2)
        generator = torch.Generator().manual_seed(index + 10**6 * self.rank)
        return torch.randn(16, generator=generator), torch.randint(8, (), generator=generator)


def digest(module, optimizer):
    state = [value for each in optimizer.state.values() for value in each.values()]
    tensors = [*module.parameters(), *module.buffers(), *state]
    return hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in tensors)).hexdigest()


def settings(model, optimizer):
    if KIND == "hvd":
        engine = json.loads(optimizer._engines[0].log()) if optimizer._engines else {}
        return {"passes": optimizer.backward_passes_per_step, "cap": engine.get("bucket_cap_bytes"), "hook": engine.get("comm_hook")}
    if KIND == "plain":
        return {}
    log = model._get_ddp_logging_data()
    return {"cap": log["bucket_cap_bytes"], "hook": log["comm_hook"], "view": log["gradient_as_bucket_view"],
            "exchanges": model.require_backward_grad_sync}


def train(rank, model, optimizer):
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    for number, (inputs, targets) in enumerate(torch.utils.data.DataLoader(Samples(rank), 4)):
        if number in LEFT_OUT:
            continue
        used = settings(model, optimizer)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        scheduler.step()
        if rank == 0:
            print("BATCH " + json.dumps({"batch": number, "state": digest(getattr(model, "module", model), optimizer),
                                         "rate": optimizer.param_groups[0]["lr"],
                                         "steps": int(next(iter(optimizer.state.values()))["step"]), **used}), flush=True)


def main():
    torch.set_num_threads(1)
    net = network()
    if KIND == "hvd":
        import libddp.horovod as hvd
        hvd.init()
        train(hvd.rank(), net, hvd.DistributedOptimizer(torch.optim.Adam(net.parameters(), 1e-2), net.named_parameters()))
        hvd.shutdown()
        return
    from libddp.torch import DistributedDataParallel
    dist.init_process_group("ddp", init_method="pmix://")
    model = net if KIND == "plain" else DistributedDataParallel(net)
    if KIND == "pair":
        DistributedDataParallel(network())
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    if KIND == "join":
        with model.join():
            train(dist.get_rank(), model, optimizer)
    else:
        train(dist.get_rank(), model, optimizer)
    dist.destroy_process_group()


main()
