#!/usr/bin/env python3
"""libddp.horovod and libddp.training with CUDA tensors, as a rank of ddprun. Prints the checks that held; for scripts/test-gpu.

    check_programs.py            the package libddp must be importable; all ranks use the first GPU

Results are compared with the same computation on the CPU, and of one process; tolerances are those of float32 sums whose order differs.
"""

import os
import statistics
import sys
import time

NOTHING_TO_TEST = 77  # for scripts/test-gpu
try:
    import torch
    import torch.distributed as dist

    import libddp
    import libddp.horovod as hvd
    from libddp import training
except ImportError as problem:
    print(f"there is no PyTorch or no libddp: {problem}")
    raise SystemExit(NOTHING_TO_TEST)

TARGET_US = 8.0  # of a start and an end of a CUDA metric
DEVICE = torch.device("cuda:0")


def network():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.BatchNorm1d(64, track_running_stats=False), torch.nn.ReLU(), torch.nn.Linear(64, 8))


def batch(rank, step):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(16, 32, generator=generator), torch.randint(0, 8, (16,), generator=generator)


def operations(rank, size):
    """Each operation with a CUDA tensor gives what it gives with the same one on the CPU; names in another order on each rank."""
    for dtype in (torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64):
        given = (torch.arange(2 * size, dtype=torch.float32) + rank).to(dtype)
        calls = [lambda x: hvd.allreduce(x, op=hvd.Sum), lambda x: hvd.allreduce(x, op=hvd.Max), lambda x: hvd.allgather(x[: 2 + rank]),
                 lambda x: hvd.broadcast(x, size - 1), lambda x: hvd.alltoall(x), lambda x: hvd.reducescatter(x, op=hvd.Sum)]
        for number, call in enumerate(calls):
            device, host = call(given.to(DEVICE)), call(given)
            assert device.is_cuda and torch.equal(device.cpu(), host), (dtype, number, device, host)
    order = list(range(64)) if rank % 2 == 0 else list(reversed(range(64)))
    handles = {each: hvd.allreduce_async(torch.full((257,), float(each + rank), device=DEVICE), name=f"t{each}", op=hvd.Sum) for each in order}
    for each, handle in handles.items():
        assert (hvd.synchronize(handle) == sum(each + other for other in range(size))).all(), each
    try:
        hvd.allreduce(torch.ones(2 + rank, device=DEVICE), name="differs")
        assert size == 1, "shapes that differ were accepted"
    except hvd.HorovodInternalError as error:
        assert "differs" in str(error), error
    assert hvd.allreduce(torch.ones(1, device=DEVICE), op=hvd.Sum).item() == size, "the set goes on"


def optimizer(rank, size):
    """Weights after ten steps: those of one process with all ranks' gradients."""
    for compression, tolerance in ((hvd.Compression.none, 1e-5), (hvd.Compression.bf16, 3e-2)):
        model = network().to(DEVICE)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        stepping = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.05, momentum=0.9), model.named_parameters(), compression=compression)
        single = network()
        alone = torch.optim.SGD(single.parameters(), 0.05, momentum=0.9)
        for step in range(10):
            inputs, targets = batch(rank, step)
            stepping.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs.to(DEVICE)), targets.to(DEVICE)).backward()
            stepping.step()
            alone.zero_grad()
            for each in range(size):
                inputs, targets = batch(each, step)
                (torch.nn.functional.cross_entropy(single(inputs), targets) / size).backward()
            alone.step()
        for ours, theirs in zip(model.parameters(), single.parameters()):
            assert torch.allclose(ours.cpu(), theirs, rtol=tolerance, atol=tolerance), (compression, (ours.cpu() - theirs).abs().max())


def batch_norm(rank, size):
    """SyncBatchNorm: outputs and gradients of all ranks' samples."""
    inputs = torch.randn(size, 6, 4, generator=torch.Generator().manual_seed(1))
    ours, theirs = hvd.SyncBatchNorm(4).to(DEVICE), torch.nn.BatchNorm1d(4)
    own = inputs[rank].to(DEVICE).requires_grad_()
    everything = inputs.flatten(0, 1).requires_grad_()
    ours(own).square().sum().backward()
    theirs(everything).square().sum().backward()
    assert torch.allclose(own.grad.cpu(), everything.grad[6 * rank: 6 * rank + 6], atol=1e-4), (own.grad, everything.grad)


def trainer(rank, size):
    """DdpTrainer on the device trains as on the CPU; its metrics are the device's."""
    group = dist.new_group(list(range(size)))
    weights = []
    for device in ("cpu", DEVICE):
        data = [list(batch(rank, step)) for step in range(6)]
        made = training.DdpTrainer(group, False, None, "ddp", 2, training.preprocess_dummy_data, training.cel, training.basic_ddp_model,
                                   training.BasicHookState, training.allreduce_hook, training.basic_iteration_step, device=device,
                                   optimizer=lambda parameters: torch.optim.SGD(parameters, 0.05), log=lambda text: None)
        model = network()
        made.train(model, data)
        weights.append(torch.cat([each.detach().cpu().flatten() for each in model.parameters()]))
        counts = {name: len(values) for name, values in made.get_metrics().items()}
        assert counts["backward_metric,backward"] == 12 and counts["batch_level_metric,batch_all"] == 12, counts
        reduced = made.metrics.reduce(group)
        assert reduced["forward_metric,forward_pass"].count == 12 * size and reduced["forward_metric,forward_pass"].min > 0, reduced
    assert torch.allclose(*weights, atol=1e-4), (weights[0] - weights[1]).abs().max()


def servers(rank, size):
    """A parameter server averages CUDA gradients as it does the CPU's: the last rank serves, the others train."""
    trainers = list(range(size - 1))
    exchange = libddp.world().process_group().new_group([size - 1, *trainers])
    inner = dist.new_group(trainers)
    if rank == size - 1:
        training.serve(training.AverageParameterServer(rank, size - 1, timeout=60, trainer_ranks=trainers), exchange)
        return
    connection = training.GroupServer(exchange, 60)
    weights = []
    for hook, server in ((training.allreduce_hook, None), (training.rpc_hook, connection)):
        made = training.DdpTrainer(inner, False, server, "ddp", 1, training.preprocess_dummy_data, training.cel, training.basic_ddp_model,
                                   training.BasicHookState, hook, training.basic_iteration_step, device=DEVICE,
                                   optimizer=lambda parameters: torch.optim.SGD(parameters, 0.05), log=lambda text: None)
        model = network()
        made.train(model, [list(batch(rank, step)) for step in range(4)])
        weights.append(torch.cat([each.detach().cpu().flatten() for each in model.parameters()]))
    assert torch.equal(*weights), (weights[0] - weights[1]).abs().max()
    connection.close()


def metrics(rank, size):
    """A CUDA metric has the device's time, never waits for it, and is cheap."""
    torch.cuda.set_device(DEVICE)
    logger = training.MetricsLogger(rank, DEVICE)
    cycles = 20_000_000
    torch.cuda._sleep(cycles)
    torch.cuda.synchronize()
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    began = time.perf_counter()
    with logger.measure("sleep", "device", 0):
        torch.cuda._sleep(cycles)
    host = time.perf_counter() - began
    last.record()
    device = logger.get_processed_metrics()["device,sleep"][0]
    last.synchronize()
    expected = first.elapsed_time(last) / 1e3
    assert 0.9 * expected < device <= expected * 1.001 + 1e-5, (device, expected)
    assert host < device / 2, f"the record waited for the device: {host} s on the host, {device} s on the device"
    for cuda in (False, True):
        logger.clear_metrics()
        rounds = []
        for each in range(30):
            began = time.perf_counter()
            for key in range(200):
                logger.record_start("type", (each, key), "name", cuda)
                logger.record_end("type", (each, key))
            rounds.append((time.perf_counter() - began) / 200 * 1e6)
            torch.cuda.synchronize()
        cost = statistics.median(rounds[5:])
        missed = ', "missed": true' if cuda and cost > TARGET_US else ""
        print(f'{{"what": "a {"CUDA" if cuda else "CPU"} metric, us: {cost:.2f} ({min(rounds):.2f}..{max(rounds[5:]):.2f})"{missed}}}', flush=True)


def main():
    if not torch.cuda.is_available():
        print("there is no CUDA device")
        raise SystemExit(NOTHING_TO_TEST)
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    checks = [operations, optimizer, batch_norm]
    if rank == 0:
        checks.append(metrics)
    for check in checks:
        check(rank, size)
        print(f"CHECKED {check.__name__} {rank}", flush=True)
    dist.init_process_group("ddp", init_method="pmix://", device_id=None)
    for check in (trainer, *([servers] if size > 2 else [])):
        check(rank, size)
        print(f"CHECKED {check.__name__} {rank}", flush=True)
    dist.destroy_process_group()
    hvd.shutdown()


if __name__ == "__main__":
    os.environ.setdefault("NCCL_DEBUG", "WARN")
    sys.exit(main())
