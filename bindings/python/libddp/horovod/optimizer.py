"""DistributedOptimizer: an optimizer whose gradients are those of all ranks when backward() returns.

On libddp's Reducer: gradients go in buckets while the backward pass runs, in C++. So clip_grad_norm_, GradScaler and
schedulers see the ranks' common gradients without synchronize(), which stays valid.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import itertools
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import torch

import libddp
from libddp import _comm_hooks, _observers
from libddp.horovod import _gradients, _job, mpi_ops
from libddp.horovod.compression import Compression
from libddp.horovod.exceptions import HorovodInternalError
from libddp.horovod.mpi_ops import Adasum, Average, ExactAverage, Max, Min, Product, Sum
from libddp.horovod.process_sets import ProcessSet, global_process_set

_HOOKS = {Sum: "sum", Min: "min", Max: "max", Product: "product"}
_alive: weakref.WeakSet[Any] = weakref.WeakSet()


def _names_of(optimizer: torch.optim.Optimizer, named_parameters: Any) -> dict[torch.Tensor, str]:
    """As upstream checks and makes them."""
    if named_parameters is not None:
        named = list(named_parameters)
        if any(not isinstance(each, tuple) for each in named):
            raise ValueError("named_parameters should be a sequence of tuples (name, parameter), usually produced by "
                             "model.named_parameters().")
        names = [name for name, _ in named]
        if len(set(names)) < len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise ValueError(f"Parameter names in named_parameters must be unique. Found duplicates: {', '.join(twice)}")
        found = {parameter: name for name, parameter in named}
        unnamed = [each for group in optimizer.param_groups for each in group["params"] if each not in found]
        if unnamed:
            raise ValueError("named_parameters was specified, but one or more model parameters were not named. Python object "
                             f"ids: {', '.join(str(id(each)) for each in unnamed)}")
        return found
    return {parameter: f"allreduce.noname.{number}.{place}" for number, group in enumerate(optimizer.param_groups)
            for place, parameter in enumerate(group["params"])}


def _check_groups(num_groups: int, groups: Any) -> None:
    """Buckets group gradients anyway: what is given is checked only."""
    if num_groups != 0:
        warnings.warn("Parameter `num_groups` has been replaced by `groups` and will be removed.", DeprecationWarning,
                      stacklevel=4)
        groups = num_groups if groups is None else groups
    if groups is None:
        return
    if not isinstance(groups, (int, list)) or (isinstance(groups, int) and groups < 0):
        raise ValueError("groups should be a non-negative integer or a list of list of torch.Tensor.")
    if isinstance(groups, list):
        seen: set[int] = set()
        for each in groups:
            ids = {id(tensor) for tensor in each}
            if len(ids) < len(each) or seen & ids:
                raise ValueError("groups must not have a tensor twice.")
            seen |= ids


def _backend(process_set: ProcessSet, device: torch.device) -> Any:
    """A c10d backend of libddp's over the set's ranks. Collective over them when it is made."""
    from libddp import _backend as backends
    from torch._C._distributed_c10d import PrefixStore
    job = _job.job()
    members = process_set.ranks or list(range(job.size))
    ranks = [job.ranks[each] for each in members]
    store = PrefixStore(f"horovod/{'.'.join(map(str, ranks))}/{next(_stores[tuple(ranks)])}/{device.type}/", _store(job))
    return backends._make(store, members.index(job.rank), len(members), "horovod", ranks, libddp.torch._TIMEOUT,
                          device.type == "cuda", device.index)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """What went wrong among ranks leaves as a HorovodInternalError."""
    try:
        yield
    except (HorovodInternalError, libddp.InvalidArgument):
        raise
    except libddp.Error as error:
        raise HorovodInternalError.of(error) from None


def check_join() -> Any:
    """The one optimizer over all ranks that is in use, or None. NotImplementedError where join() would not know
    which optimizer's steps the other ranks take."""
    gc.collect()  # optimizers that are gone
    used = [each for each in _alive if each._engines]
    if not used:
        return None
    engines = used[0]._engines
    if used[0]._writes_unused:
        raise NotImplementedError("hvd.join() beside DistributedOptimizer does not work with a comm_hook that keeps what it has not "
                                  "sent; give all ranks equally many batches")
    if len(used) > 1 or len(engines) > 1 or used[0].process_set is not global_process_set:
        raise NotImplementedError("hvd.join() beside DistributedOptimizer works with one optimizer over all ranks, whose "
                                  "parameters are on one device; delete the others, or give all ranks equally many batches")
    return used[0]


def take_part_in_steps(optimizer: Any) -> None:
    """With zeros in other ranks' steps, until one in which no rank has a gradient: then all of them are here."""
    own = [each for group in optimizer.param_groups for each in group["params"]]
    with _translated():
        while True:
            for each in own:
                each.grad = None
            optimizer._engines[0].exchange_accumulated()
            optimizer._engines[0].restart_passes()
            if all(each.grad is None for each in own):
                return


# how many stores and optimizers some ranks have had: equal on all of them
_stores: dict[tuple[int, ...], Iterator[int]] = collections.defaultdict(itertools.count)
_instances: dict[tuple[int, ...], Iterator[int]] = collections.defaultdict(itertools.count)


def _name_of(process_set: ProcessSet) -> str:
    """What its next optimizer is called: equal on its ranks, if they make the same ones."""
    name = f"DistributedOptimizer.{next(_instances[tuple(process_set.ranks or ())])}"
    return f"{name}.of.{process_set.process_set_id}" if process_set.process_set_id else name


def _store(job: Any) -> Any:
    """The World's own, without a meeting, which would be collective over all ranks."""
    import libddp.torch
    from torch._C._distributed_c10d import PrefixStore, TCPStore
    served = libddp.torch._store_of(job.world)
    client = TCPStore(served.address, served.port, job.world.world_size, is_master=False, timeout=libddp.torch._TIMEOUT,
                      wait_for_workers=False)
    return PrefixStore(f"{served.prefix}horovod/", client)


class _DistributedOptimizer(torch.optim.Optimizer):
    """Its methods become those of a subclass of the wrapped optimizer's class."""

    def _distribute(self, names: dict[torch.Tensor, str], passes: int, op: int, compression: Any, predivide: float,
                    sparse_as_dense: bool, process_set: ProcessSet, make_hook: Any, missing: str) -> None:
        self._parameter_names = names
        self.backward_passes_per_step = passes
        self.op, self._compression, self.process_set = op, compression, process_set
        self._predivide, self._sparse_as_dense = predivide, sparse_as_dense
        self._make_hook, self._writes_unused = make_hook, False
        self._missing = missing
        self._dense_hooks: list[Any] = []
        self._name = _name_of(process_set)
        self._sample_rate = 100
        self._handles: dict[Any, Any] = {}  # upstream's: none is ever left
        self._requires_update: set[torch.Tensor] = set()
        self._synchronized = self._should_skip = self._traced = False
        self._engines: list[Any] = []
        self._cap: int | None = None  # bytes of a bucket
        self._backends: dict[str, Any] = {}  # by device; its own, as ranks may come to optimizers in different orders
        _alive.add(self)
        self._make_engines()
        _observers.announce(self)

    def _hook(self, adapter: Any, tensors: list[torch.Tensor]) -> Any:
        if self._make_hook is not None:
            return self._make_hook(tensors)
        if self.op == ExactAverage:
            return adapter.exact_average_hook()
        if self._compression is Compression.none:
            return adapter.reduce_hook(_HOOKS[self.op]) if self.op in _HOOKS else None
        if self.op == Average and self._compression in (Compression.fp16, Compression.bf16):
            return adapter.compress_hook("float16" if self._compression is Compression.fp16 else "bfloat16")
        hook = _gradients.compressing_hook(
            self._compression, _HOOKS.get(self.op, "sum").upper(), 1 / self._predivide,
            self._predivide / (self.process_set.size() or 1) if self.op == Average else 1.0,
            self._backend_for(f"compressed {tensors[0].device}", tensors[0].device))
        return adapter.python_hook(_gradients.compressor_name(self._compression), None, hook, tensors)

    def _adds_up(self) -> bool:
        return self.op in (Average, ExactAverage)

    def _backend_for(self, purpose: str, device: torch.device) -> Any:
        """Collective over the process set, the first time."""
        if purpose not in self._backends:
            self._backends[purpose] = _backend(self.process_set, device)
        return self._backends[purpose]

    def _sparse(self, own: list[torch.Tensor]) -> set[int]:
        """The ids of parameters whose gradients go by their rows."""
        found = _gradients.sparse_ones(own)
        if found and (self.op != Average or self._compression is not Compression.none):
            names = [name for each, name in self._parameter_names.items() if id(each) in found]
            raise ValueError(f"the gradients of {', '.join(names)} are sparse: give sparse_as_dense=True, as rows are averaged "
                             "only, without compression")
        return found

    def _make_engines(self) -> None:
        """One for each device. Collective over the process set."""
        self._engines = []
        own = [each for group in self.param_groups for each in group["params"]]
        self._requires_update = {each for each in own if each.requires_grad}
        alone = (self.process_set.size() or 1) == 1
        if self.process_set.included() is False or alone and self.op != ExactAverage:  # whose bits are those of several ranks
            return
        from libddp import _adapter
        adapter = _adapter.load()
        given = _job._bytes("HOROVOD_FUSION_THRESHOLD", -1)
        self._cap = None if given < 0 else max(given, 1)  # 0: each gradient by itself
        sparse = set() if self._sparse_as_dense else self._sparse(own)
        for handle in self._dense_hooks:
            handle.remove()
        self._dense_hooks = _gradients.make_dense(self._requires_update) if self._sparse_as_dense else []
        by_device: dict[torch.device, list[torch.Tensor]] = {}
        for each in own:
            by_device.setdefault(each.device, []).append(each)
        for device in sorted(by_device, key=str):
            tensors = by_device[device]
            if not any(each.requires_grad for each in tensors):
                continue
            hook = self._hook(adapter, tensors)
            self._writes_unused = hook is not None and hook.needs_all_parameters()
            if self._writes_unused and self._missing == "skip":
                raise ValueError("missing='skip' leaves out what no rank has computed, but this comm_hook keeps what it has not sent "
                                 "and gives it to all parameters; leave out one")
            engine = adapter.Averager(
                names=[self._parameter_names.get(each, f"added.{place}") for place, each in enumerate(tensors)],
                tensors=tensors, sparse=[id(each) in sparse for each in tensors], backend=self._backend_for(str(device), device),
                cap=self._cap, first=1 << 20, caps=[], broadcast=False, view=False,
                find_unused=True, static_graph=False, skip_unused=False, write_unused=self._writes_unused, delayed=[],
                delayed_behind=None, hook=hook, module_name=type(self).__name__, broadcast_buffers=False, sample_rate=self._sample_rate,
                find_straggler=False, compute=None, reduce=None)
            engine.begin_by_gradients(self.backward_passes_per_step, self._adds_up())
            self._engines.append(engine)
        _gradients.begin_record(self, _job.job().named.recording())
        _gradients.cut_by(self)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Collective over the process set, as the constructor."""
        super(self.__class__, self).add_param_group(param_group)
        number = len(self.param_groups) - 1
        for place, parameter in enumerate(self.param_groups[-1]["params"]):
            self._parameter_names.setdefault(parameter, f"allreduce.noname.{number}.{place}")
        self._make_engines()

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        with _translated():
            for engine in self._engines:
                engine.restart_passes()
        self._synchronized = False
        super(self.__class__, self).load_state_dict(*args, **kwargs)

    def set_backward_passes_per_step(self, passes: int) -> None:
        if passes <= 0:
            raise ValueError("backward_passes_per_step must be > 0")
        self.backward_passes_per_step = passes
        for engine in self._engines:
            engine.begin_by_gradients(passes, self._adds_up())

    def synchronize(self) -> None:
        """Makes sure that gradients are those of all ranks. They are, after as many backward passes as a step has; else what
        has accumulated is exchanged now, and what no rank has computed becomes zeros, or is left alone with missing="skip".
        HorovodInternalError."""
        if self._unfrozen():
            raise ValueError("parameters of a DistributedOptimizer got requires_grad=True after its last zero_grad(): "
                             "their gradients are of this rank alone; call zero_grad() after requires_grad_()")
        with _translated():
            for engine in self._engines:
                if not engine.restart_passes():
                    engine.exchange_accumulated()
                    engine.restart_passes()
        for group in self.param_groups if self._engines and self._missing == "zeros" else ():
            for each in group["params"]:
                if each.requires_grad and each.grad is None:
                    each.grad = torch.zeros_like(each)
        self._synchronized = True

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Around step(), after a synchronize() of one's own."""
        self._should_skip = True
        try:
            yield
        finally:
            self._should_skip = False

    def step(self, closure: Any = None) -> Any:
        if closure is None and not self._should_skip:
            if self._synchronized:
                warnings.warn("optimizer.step() called without optimizer.skip_synchronize() context after "
                              "optimizer.synchronize(). This can cause training slowdown. You may want to consider using "
                              "optimizer.skip_synchronize() context if you use optimizer.synchronize() in your code.",
                              stacklevel=2)
            else:
                self.synchronize()
        if self._engines and closure is not None and isinstance(self, torch.optim.LBFGS):
            closure = self._with_common_loss(closure)
        result = super(self.__class__, self).step(closure)  # where it fails, another step() exchanges nothing once more
        self._synchronized = False
        if self._engines:
            _gradients.record_step(self)
        return result

    def _with_common_loss(self, closure: Any) -> Any:
        """By the loss LBFGS decides how far it goes, which must be equal on all ranks."""
        def common() -> torch.Tensor:
            return mpi_ops.allreduce(torch.as_tensor(closure()).detach(), op=Sum if self.op == Sum else Average,
                                     name=f"{self._name}.loss", process_set=self.process_set)
        return common

    def _unfrozen(self) -> bool:
        """Whether there are parameters with gradients that no engine knows."""
        return bool(self._engines) and any(each.requires_grad and each not in self._requires_update
                                           for group in self.param_groups for each in group["params"])

    def zero_grad(self, *args: Any, **kwargs: Any) -> Any:
        """Collective over the process set where parameters have got requires_grad=True."""
        with _translated():
            for engine in self._engines:
                engine.restart_passes()
                engine.forget_exchanged()
            if self._unfrozen():
                self._make_engines()
        self._synchronized = False
        return super(self.__class__, self).zero_grad(*args, **kwargs)


class _DistributedAdasumOptimizer(torch.optim.Optimizer):
    """Each rank takes its own step; what parameters have moved by is combined by Adasum."""

    def _distribute(self, names: dict[torch.Tensor, str], passes: int, compression: Any) -> None:
        self._parameter_names = names
        self.backward_passes_per_step = passes
        self._compression = compression
        self._name = _name_of(global_process_set)
        self._handles: dict[Any, Any] = {}

    def set_backward_passes_per_step(self, passes: int) -> None:
        self.backward_passes_per_step = passes

    def synchronize(self) -> None:
        """Nothing: step() does all."""

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        raise AssertionError("Skipping synchronization is not supported when using Adasum optimizer.")
        yield

    def step(self, closure: Any = None) -> Any:
        own = [each for group in self.param_groups for each in group["params"] if each.requires_grad]
        starts = [each.detach().clone() for each in own]
        loss = super(self.__class__, self).step(closure)
        with torch.no_grad():
            sent = [self._compression.compress(each - start) for each, start in zip(own, starts)]
            moved = mpi_ops.grouped_allreduce([tensor.contiguous() for tensor, _ in sent], op=Adasum,
                                              name=self._name)
            for each, start, by, (_, context) in zip(own, starts, moved, sent):
                each.copy_(start + self._compression.decompress(by, context))
        return loss


def DistributedOptimizer(optimizer: torch.optim.Optimizer, named_parameters: Any = None, compression: Any = Compression.none,
                         backward_passes_per_step: int = 1, op: int = Average, gradient_predivide_factor: float = 1.0,
                         num_groups: int = 0, groups: Any = None, sparse_as_dense: bool = False,
                         process_set: ProcessSet = global_process_set, *, comm_hook: Any = None,
                         missing: str = "zeros") -> Any:
    """An optimizer of the same class and state, whose gradients are reduced over the ranks of process_set. Collective.

    compression: Compression.none, .fp16, .bf16, or a class of one's own with compress and decompress; compressed gradients are
    reduced by op. backward_passes_per_step: how many passes accumulate gradients first. With op other than Average an exchanged
    gradient cannot take part in another exchange: InvalidArgument in the backward pass that adds to it.
    gradient_predivide_factor: for compressors of one's own; else the average is taken in float32 or wider.
    Sparse gradients of Embedding and EmbeddingBag are averaged by their rows; sparse_as_dense makes all sparse ones dense first.
    comm_hook, of libddp alone: what averages the gradients of a bucket. libddp.torch.power_sgd_hook(), .quantize_hook() (8 bits),
    .exact_average_hook, or torch's hook(state, bucket), with its state as a pair (state, hook); torch's may need torch.distributed.
    missing, of libddp alone: what a parameter gets in step() whose gradient no rank has computed. "zeros", as upstream, so that
    momentum and weight decay move it; or "skip": nothing, if zero_grad() has set it to None.
    op=ExactAverage, of libddp alone: the average over all backward passes of all ranks, whose bits do not depend on the number of
    ranks; as libddp.torch.exact_average_hook.
    """
    if op not in (Average, Sum, Adasum, Min, Max, Product, ExactAverage):
        raise ValueError(f"op={op} is none of Average, Sum, Adasum, Min, Max, Product and ExactAverage")
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if backward_passes_per_step <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
    _gradients.check_compressor(compression)
    if comm_hook is not None and (op != Average or compression is not Compression.none or gradient_predivide_factor != 1.0):
        raise ValueError("comm_hook averages: leave out op, compression and gradient_predivide_factor")
    state, hook = comm_hook if isinstance(comm_hook, tuple) and len(comm_hook) == 2 else (None, comm_hook)
    if hook is not None and not callable(hook):
        raise ValueError(f"comm_hook={comm_hook!r} is neither a function hook(state, bucket) nor a pair (state, hook)")
    if hook is _comm_hooks.exact_average_hook:
        op, hook = ExactAverage, None
    if op == ExactAverage and compression is not Compression.none:
        raise ValueError("op=ExactAverage sends whole numbers: leave out compression")
    if missing not in ("zeros", "skip"):
        raise ValueError(f"missing={missing!r} is neither 'zeros' nor 'skip'")
    if missing == "skip" and op == Adasum:
        raise ValueError("missing='skip' is for averages and the like: Adasum combines what each rank's own step has changed")
    if op == Adasum and process_set is not global_process_set:
        raise NotImplementedError("Adasum does not support non-global process sets yet.")
    names = _names_of(optimizer, named_parameters)
    _check_groups(num_groups, groups)
    body = _DistributedAdasumOptimizer if op == Adasum else _DistributedOptimizer
    members = {name: value for name, value in vars(body).items() if name not in ("__dict__", "__weakref__", "__module__")}
    made: Any = object.__new__(type(optimizer.__class__.__name__, (optimizer.__class__,), members))
    made.__dict__.update(optimizer.__dict__)  # state and options are those of the optimizer
    if op == Adasum:
        made._distribute(names, backward_passes_per_step, compression)
    else:
        made._distribute(names, backward_passes_per_step, op, compression, gradient_predivide_factor, sparse_as_dense, process_set,
                         None if hook is None else _comm_hooks.maker(state, hook), missing)
    return made
