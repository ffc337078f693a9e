"""Checks of horovod_job.py on upstream's interface: names and arguments, sets of several origins, events and handlers of hvd.elastic."""

import importlib
import importlib.util
import inspect

import libddp.horovod as hvd
import torch
from libddp.horovod import _job
from libddp.mpi import MPI

from horovod_checks import equal_on_all, momentum, small_model
from job_checks import check, refused

_REDUCED = "average=None, name=None, compression=none, op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=global"
_STARTED = _REDUCED.replace("compression=none, ", "")
_SCATTERED = "name=None, compression=none, op=0, process_set=global, prescale_factor=1.0, postscale_factor=1.0"
# Of Horovod 0.28.1: submodule, function, arguments.
SIGNATURES = [
    ("mpi_ops", "init", "comm=None, process_sets=None"), *(("mpi_ops", name, "") for name in (
        "shutdown", "is_initialized", "rank", "size", "local_rank", "local_size", "cross_rank", "cross_size", "is_homogeneous", "mpi_threads_supported",
        "mpi_enabled", "mpi_built", "gloo_enabled", "gloo_built", "nccl_built", "ddl_built", "ccl_built", "cuda_built", "rocm_built", "stop_timeline")),
    ("mpi_ops", "start_timeline", "file_path, mark_cycles=False"), ("mpi_ops", "allreduce", f"tensor, {_REDUCED}"),
    ("mpi_ops", "allreduce_", f"tensor, {_STARTED}"), ("mpi_ops", "allreduce_async", f"tensor, {_STARTED}"), ("mpi_ops", "allreduce_async_", f"tensor, {_STARTED}"),
    ("mpi_ops", "grouped_allreduce", f"tensors, {_REDUCED}"), ("mpi_ops", "grouped_allreduce_", f"tensors, {_STARTED}"),
    ("mpi_ops", "grouped_allreduce_async", f"tensors, {_STARTED}"), ("mpi_ops", "grouped_allreduce_async_", f"tensors, {_STARTED}"),
    ("mpi_ops", "sparse_allreduce_async", "tensor, name, op, process_set=global"),
    *(("mpi_ops", name, "tensor, name=None, process_set=global") for name in ("allgather", "allgather_async")),
    *(("mpi_ops", name, "tensors, name=None, process_set=global") for name in ("grouped_allgather", "grouped_allgather_async")),
    *(("mpi_ops", name, "tensor, root_rank, name=None, process_set=global") for name in ("broadcast", "broadcast_", "broadcast_async", "broadcast_async_")),
    *(("mpi_ops", name, "tensor, splits=None, name=None, process_set=global") for name in ("alltoall", "alltoall_async")),
    ("mpi_ops", "reducescatter", f"tensor, {_SCATTERED}"), ("mpi_ops", "grouped_reducescatter", f"tensors, {_SCATTERED}"),
    ("mpi_ops", "reducescatter_async", "tensor, " + _SCATTERED.replace("compression=none, ", "")),
    ("mpi_ops", "grouped_reducescatter_async", "tensors, " + _SCATTERED.replace("compression=none, ", "")),
    ("mpi_ops", "join", "device=-1"), ("mpi_ops", "barrier", "process_set=global"), ("mpi_ops", "poll", "handle"), ("mpi_ops", "synchronize", "handle"),
    ("optimizer", "DistributedOptimizer", "optimizer, named_parameters=None, compression=none, backward_passes_per_step=1, op=0, gradient_predivide_factor=1.0, "
     "num_groups=0, groups=None, sparse_as_dense=False, process_set=global"),
    ("functions", "broadcast_parameters", "params, root_rank"), ("functions", "broadcast_optimizer_state", "optimizer, root_rank, model=None"),
    ("functions", "broadcast_object", "obj, root_rank=0, name=None, process_set=global"), ("functions", "allgather_object", "obj, name=None"),
    ("sync_batch_norm", "SyncBatchNorm", "num_features, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True"),
    ("elastic", "TorchState", "model=None, optimizer=None, kwargs"), ("elastic", "ElasticSampler", "dataset, shuffle=True, seed=0"), ("elastic", "run", "func"),
    ("process_sets", "add_process_set", "process_set"), ("process_sets", "remove_process_set", "process_set"), ("", "ProcessSet", "ranks_or_comm")]


def arguments_of(function):
    known = {hvd.Compression.none: "none", hvd.global_process_set: "global"}
    return ", ".join(each.name if each.default is each.empty else
                     f"{each.name}={known[each.default] if each.default in list(known) else repr(each.default)}"
                     for each in inspect.signature(function).parameters.values() if each.kind is not each.KEYWORD_ONLY)  # libddp's own


@check
def interface(rank, size):
    for module, name, arguments in SIGNATURES:
        function = getattr(importlib.import_module(f"libddp.horovod.{module}" if module else "libddp.horovod"), name)
        assert getattr(hvd if module != "elastic" else hvd.elastic, name) is function and arguments_of(function) == arguments, (name, arguments_of(function))
    assert (hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product) == (0, 1, 2, 3, 4, 5) and hvd.compression.Compression is hvd.Compression
    assert isinstance(hvd.nccl_built(), int) and all(isinstance(each(), bool) for each in (hvd.mpi_built, hvd.gloo_built, hvd.cuda_built, hvd.rocm_built))


@check
def set_origins(rank, size):
    """Sets that init() registers, and those of a communicator."""
    group = _job.job().group

    def leave():  # all of the ranks, before one ends what others wait for
        group.barrier().wait()
        hvd.shutdown()
        group.barrier().wait()

    leave()
    refused(ValueError, lambda: hvd.init(process_sets="static"), "'dynamic'")
    pair, last = hvd.ProcessSet([1, 0]), hvd.ProcessSet([size - 1])
    hvd.init(process_sets=[pair, last])
    assert pair.process_set_id and last.process_set_id and hvd.process_sets.get_process_set_ids_and_ranks()[last.process_set_id] == [size - 1]
    if rank < 2:
        assert hvd.allreduce(torch.tensor([rank + 1]), op=hvd.Sum, process_set=pair) == 3
    leave()
    assert pair.process_set_id is None
    refused(hvd.HorovodInternalError, lambda: hvd.init(process_sets=[hvd.ProcessSet([0]), hvd.ProcessSet([rank % 2])] if rank else [hvd.ProcessSet([size - 1])]))
    leave()
    hvd.init(process_sets="dynamic")
    own = MPI.COMM_WORLD.Split(0 if rank < 2 else 1, rank)
    made = hvd.add_process_set(hvd.ProcessSet(own) if rank < 2 else [0, 1])
    assert made.ranks == [0, 1] and made.included() == (rank < 2)
    if rank < 2:
        assert hvd.allgather(torch.tensor([rank]), process_set=made).tolist() == [0, 1]
    assert hvd.remove_process_set(made)


def combined(one, other):
    """Adasum of two vectors, by the formula of arXiv 2006.02924."""
    dot = sum(a * b for a, b in zip(one, other))
    by = [1 - dot / (2 * square) if square else 1.0 for square in (sum(a * a for a in each) for each in (one, other))]
    return [by[0] * a + by[1] * b for a, b in zip(one, other)]


@check
def adaptive_sums(rank, size):
    """Of any number of ranks, by a tree; each tensor of a group by itself."""
    given = [[torch.randn(5, generator=torch.Generator().manual_seed(10 * each + place), dtype=torch.float64) for place in range(2)] for each in range(size)]

    def expected(place):
        rows = [each[place].tolist() for each in given]
        while len(rows) > 1:
            rows = [combined(*rows[at:at + 2]) if at + 1 < len(rows) else rows[at] for at in range(0, len(rows), 2)]
        return torch.tensor(rows[0], dtype=torch.float64)

    made = hvd.grouped_allreduce(given[rank], op=hvd.Adasum)
    for place in range(2):
        torch.testing.assert_close(made[place], expected(place))
        torch.testing.assert_close(hvd.allreduce(given[rank][place], op=hvd.Adasum), expected(place))
    axes = torch.eye(size)[rank]
    assert torch.equal(hvd.allreduce(axes, op=hvd.Adasum), torch.ones(size)), "what is orthogonal adds up"
    assert not hvd.allreduce(torch.zeros(3), op=hvd.Adasum).any()


class _Counter:
    def __init__(self):
        self.count = 0


class _Handler:
    def __init__(self, value):
        self.value = value
        self.save()

    def save(self):
        self.saved = self.value.count

    def restore(self):
        self.value.count = self.saved

    def sync(self):
        self.value.count = hvd.broadcast_object(self.value.count, 0)
        self.save()


@check
def elastic_events(rank, size):
    """A rank that learns of new hosts interrupts all, which keep what they have done; a program's own handler takes part."""
    registry = hvd.elastic.get_handler_registry()
    registry.insert(0, (lambda value: isinstance(value, _Counter), _Handler))
    try:
        state = hvd.elastic.TorchState(counter=_Counter(), step=0)
        calls = []
        state.register_reset_callbacks([lambda: calls.append(state.step)])

        @hvd.elastic.run
        def train(state):
            while state.step < 4:
                state.step += 1
                state.counter.count += 1 + rank if state.step == 1 else 1  # ranks differ till it is synchronized
                if state.step == 2 and not calls and rank == size - 1:
                    state.on_hosts_updated(0.0, 0)  # some were removed: ranks synchronize
                state.commit()
            return state.counter.count

        count = train(state)
        assert calls == [2], calls
        equal_on_all(count)
        assert count == 4, "rank 0's"
    finally:
        registry.pop(0)


@check
def state_of_others(rank, size):
    """What differs among optimizers is named; objects that only cloudpickle knows."""
    model = small_model()
    optimizer = momentum(list(model.parameters())[:4 if rank == 0 else 3])
    if size > 1:
        error = refused(ValueError, lambda: hvd.broadcast_optimizer_state(optimizer, 0), "the optimizers differ")
        equal_on_all(str(error))
        assert "group 0" in str(error) and "on rank 0" in str(error), error
    if importlib.util.find_spec("cloudpickle"):
        assert hvd.broadcast_object(lambda x: x + rank, 0)(1) == 1
        assert [each(0) for each in hvd.allgather_object(lambda x: x + rank)] == list(range(size))
