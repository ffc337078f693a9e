"""libddp.torch.DistributedDataParallel: torch's class, on libddp's engine, with autograd hooks in C++."""

from __future__ import annotations

import contextlib
import json
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import BuiltinCommHookType
from torch._compile import _disable_dynamo
from torch.distributed.algorithms.join import Joinable
from torch.distributed.utils import _cast_forward_inputs, _to_kwargs
from torch.nn.parallel import DistributedDataParallel as TorchDataParallel
from torch.nn.parallel.distributed import _BufferCommHook, _BufferCommHookLocation

from libddp import _adapter, _backend, _comm_hooks, _joining, _observers, _wrapped_module

_MiB = 1024 * 1024
_REFUSED = "libddp.torch.DistributedDataParallel has no {}; {}"


class DistributedDataParallel(TorchDataParallel):
    """A module whose gradients are averages over the ranks of a process group when backward() returns.

    Arguments, attributes and state_dict are those of torch.nn.parallel.DistributedDataParallel. Parameters are on the
    CPU, or all on one CUDA device, of float32, float64, float16, bfloat16 or complex. process_group may have any
    backend; beside a group whose backend is not "ddp", libddp makes one of its own. libddp adds find_straggler: in each
    logged step, ranks exchange how long they waited; straggler_rank and straggler_delay of _get_ddp_logging_data() are
    the slowest rank and its delay in ns. Construction is collective: all ranks get libddp.Mismatch if their modules
    differ. backward() raises its errors on all ranks in the same step. docs/reference/python.md lists what is refused.
    Use from one thread at a time.
    """

    def __init__(self, module: torch.nn.Module, device_ids: Any = None, output_device: Any = None, dim: int = 0,
                 broadcast_buffers: bool | None = None, init_sync: bool = True, process_group: Any = None,
                 bucket_cap_mb: float | None = None, find_unused_parameters: bool = False, check_reduction: bool = False,
                 gradient_as_bucket_view: bool = False, static_graph: bool = False,
                 delay_all_reduce_named_params: Any = None, param_to_hook_all_reduce: Any = None,
                 mixed_precision: Any = None, device_mesh: Any = None, skip_all_reduce_unused_params: bool = False,
                 bucket_cap_mb_list: list[float] | None = None, batched_grad_copy: bool = False,
                 forward_sync_buffers: bool | None = None, *, find_straggler: bool = False) -> None:
        torch.nn.Module.__init__(self)
        Joinable.__init__(self)
        if (delay_all_reduce_named_params is None) != (param_to_hook_all_reduce is None):
            raise ValueError("delay_all_reduce_named_params and param_to_hook_all_reduce need to be set at the same time.")
        if process_group is not None and device_mesh is not None:
            raise RuntimeError("Cannot specify both process_group and device_mesh arguments.")
        if device_mesh is not None:
            if device_mesh.ndim != 1:
                raise RuntimeError(f"Only 1D device mesh is supported, but got {device_mesh}.")
            self.device_mesh = device_mesh
            process_group = device_mesh.get_group(mesh_dim=0)
        if bucket_cap_mb is not None and bucket_cap_mb_list is not None:
            raise ValueError("bucket_cap_mb and bucket_cap_mb_list cannot both be specified")
        if check_reduction:
            warnings.warn("The `check_reduction` argument does nothing.", FutureWarning, stacklevel=2)
        self._check_module(module, device_ids, output_device)
        self._delay_all_reduce_params = [each for _, each in delay_all_reduce_named_params or ()]
        self._delayed_behind = [param_to_hook_all_reduce]  # in a list, since attributes become the module's parameters
        own = {id(each) for each in self._kept(module.named_parameters()).values() if each.requires_grad}
        if not own.issuperset(map(id, self._delay_all_reduce_params)):
            raise ValueError("delay_all_reduce_named_params has a parameter that is not the module's, is ignored or "
                             "requires no gradient")
        if param_to_hook_all_reduce is not None and id(param_to_hook_all_reduce) not in map(id, module.parameters()):
            raise ValueError("param_to_hook_all_reduce is not a parameter of the module")
        self.process_group = process_group or dist.distributed_c10d._get_default_group()
        self.module = module
        self.dim = dim
        self.is_multi_device_module = False
        self.static_graph = static_graph
        self.find_unused_parameters = find_unused_parameters
        self.gradient_as_bucket_view = gradient_as_bucket_view
        self.skip_all_reduce_unused_params = skip_all_reduce_unused_params
        self.batched_grad_copy = batched_grad_copy
        self.mixed_precision = mixed_precision
        self._find_straggler = find_straggler
        wanted = broadcast_buffers if forward_sync_buffers is None else forward_sync_buffers
        self.forward_sync_buffers = wanted is None or wanted
        self.require_backward_grad_sync = True
        self.require_forward_param_sync = True
        self._has_trained = self._lazy_init_ran = False
        self._dropped: list[int] = []  # their gradients are dropped once optimizers within backward() have used them
        self._joining: Callable[[], _joining.ModelHook | None] = _joining.no_hook
        self._sample_rate = 100
        self.bucket_bytes_cap = int((bucket_cap_mb or 25) * _MiB)
        self._cap = None if bucket_cap_mb is None else self.bucket_bytes_cap
        self._caps = [int(cap * _MiB) for cap in bucket_cap_mb_list or []]
        self._comm_hooks: list[Any] = []
        self._make_hook: Callable[[list[torch.Tensor]], Any] | None = None
        self._make_averager(init_sync)
        self._cast_buffers()
        if init_sync and (self.forward_sync_buffers or forward_sync_buffers is not None):
            self._sync_buffers()
        _observers.announce(self)

    def _type(self, name: str) -> torch.dtype | None:
        """A type of mixed precision; None: unchanged."""
        found: torch.dtype | None = getattr(self.mixed_precision, name, None)
        if found is not None and not found.is_floating_point:
            raise ValueError(f"mixed_precision has {name}={found}, which is not a floating-point type")
        return found

    def _cast_buffers(self) -> None:
        if (wanted := self._type("buffer_dtype")) is not None:
            buffers = self._kept(self.module.named_buffers())
            _adapter.load().cast_buffers(list(buffers), list(buffers.values()), wanted)

    def _check_module(self, module: torch.nn.Module, device_ids: Any, output_device: Any) -> None:
        self.parameters_to_ignore = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
        parameters = list(self._kept(module.named_parameters()).values())
        self.device = _wrapped_module.device_of(parameters)
        self.device_type = self.device.type
        _wrapped_module.check_chosen_device(self.device, device_ids, output_device)
        self.device_ids = [self.device.index] if device_ids else None
        self.output_device = self.device.index if device_ids else None

    def _kept(self, named: Iterator[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        return _wrapped_module.kept(named, self.parameters_to_ignore)

    @property
    def _averager(self) -> Any:
        """The engine. A copy's engine is made by the first pass that needs it, which is collective: one rank may make a
        copy that it never trains."""
        if self._engine is None:
            self._make_averager(False, self._make_hook)
        return self._engine

    def _make_averager(self, init_sync: bool, hook: Callable[[list[torch.Tensor]], Any] | None = None) -> None:
        """Collective."""
        self._engine: Any = None  # its hooks must be removed before new ones are added
        self._wrapped = _wrapped_module.WrappedModule(self.module, self.parameters_to_ignore)
        # hooks also start operations from callbacks, in no order with the engine's
        backend = _backend.of(self.process_group, apart=hook is not None, device=self.device)
        names, tensors = list(self._wrapped.parameters), list(self._wrapped.parameters.values())
        sparse = _wrapped_module.sparse(self.module)
        positions = {id(each): position for position, each in enumerate(tensors)}
        # None after an ignored parameter: then after all
        behind = positions.get(id(self._delayed_behind[0]))
        adapter = _adapter.load()
        self._engine = adapter.Averager(
            names=names, tensors=tensors, sparse=[id(each) in sparse for each in tensors], backend=backend, cap=self._cap,
            first=int(getattr(dist, "_DEFAULT_FIRST_BUCKET_BYTES")), caps=self._caps, broadcast=init_sync,
            view=self.gradient_as_bucket_view, find_unused=self.find_unused_parameters, static_graph=self.static_graph,
            skip_unused=self.skip_all_reduce_unused_params, write_unused=False,
            delayed=[positions[id(each)] for each in self._delay_all_reduce_params], delayed_behind=behind,
            hook=hook(tensors) if hook else None, module_name=type(self.module).__name__,
            broadcast_buffers=self.forward_sync_buffers, sample_rate=self._sample_rate,
            find_straggler=self._find_straggler, compute=self._type("param_dtype"),
            reduce=self._type("reduce_dtype") or self._type("param_dtype"))
        self._engine.drop_gradients(self._dropped)

    # a step

    @_disable_dynamo
    def _before(self) -> bool:
        """Whether this is a pass of its own, not one that a backward pass repeats, as for a checkpoint."""
        if self._engine is not None and self._engine.recomputes():
            return False
        if not self._lazy_init_ran:
            self._lazy_init()
        if self._engine is not None or self._takes_part():
            self._averager.before_forward()
            if torch.is_grad_enabled():
                self._wrapped.check()
        if not self._is_apart():
            if (hook := self._joining()) is not None and hook.enabled:
                hook.begin_step()
            if not self._syncs_behind():
                self._sync_where_due()
        return True

    def _takes_part(self) -> bool:
        """Whether a pass may belong to a step: with gradients, of a parameter that is not frozen."""
        return bool(torch.is_grad_enabled() and (
            any(each.requires_grad for each in self._kept(self.module.named_parameters()).values()) if self._engine is None
            else self._engine.takes_part()))

    def _is_apart(self) -> bool:
        """Whether ranks that have run out of inputs would mistake this pass for a step."""
        return (hook := self._joining()) is not None and hook.enabled and not self._takes_part()

    def _syncs_behind(self) -> bool:
        hook = getattr(self, "buffer_hook", None)
        return hook is not None and hook.buffer_comm_hook_location == _BufferCommHookLocation.POST_FORWARD

    def _sync_where_due(self) -> None:
        repeats = self._engine is not None and self._engine.repeats()  # the repeated pass has done it
        if self.require_forward_param_sync and self.forward_sync_buffers and not repeats:
            self._sync_buffers()

    @_disable_dynamo
    def _after(self, output: Any) -> None:
        if self._is_apart():
            return
        if self._syncs_behind():
            self._sync_where_due()
        self.require_forward_param_sync = torch.is_grad_enabled() and self.require_backward_grad_sync
        if not self._takes_part():
            return
        self._has_trained = True
        found: list[torch.Tensor] = []
        complete = _wrapped_module.find_tensors(output, found)
        self._averager.after_forward(found, complete, self.require_backward_grad_sync)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        with torch.autograd.profiler.record_function("DistributedDataParallel.forward"):
            own = self._before()
            if self.device_ids and (inputs or kwargs):
                moved: Any = _to_kwargs(inputs, kwargs, self.device, False)
                inputs, kwargs = moved[0][0], moved[1][0]
            compute = self._type("param_dtype")
            if compute is not None:
                inputs, kwargs = _cast_forward_inputs(compute, *inputs, **kwargs)
            low: contextlib.AbstractContextManager[None] = contextlib.nullcontext() if compute is None else self._averager.hold_low()
            # dynamo cuts the compiled graph at buckets' ends, so that gradients do not all arrive at the end
            with low, self._inside_ddp_forward():
                output = self.module(*inputs, **kwargs)
            if own:
                self._after(output)
            return output

    def to_kwargs(self, inputs: Any, kwargs: Any, device_id: int) -> Any:
        """Moves inputs and keyword arguments to a device: one pair per replica. torch's class has it, too."""
        return _to_kwargs(inputs, kwargs, torch.device(self.device_type, device_id), False)

    def _set_sparse_metadata(self, global_unique_ids: Any) -> None:
        raise NotImplementedError(_REFUSED.format("_set_sparse_metadata", "sparse gradients are exchanged by their rows"))

    @_disable_dynamo
    def _sync_buffers(self) -> None:
        buffers = self._kept(self.module.named_buffers())
        if (hook := getattr(self, "buffer_hook", None)) is not None:
            for future in hook.buffer_comm_hook(hook.buffer_comm_hook_state, buffers) or ():
                future.wait()
        elif buffers and dist.get_world_size(self.process_group) > 1:
            self._averager.broadcast_buffers(list(buffers), list(buffers.values()))

    def several_backwards(self) -> contextlib.AbstractContextManager[None]:
        """Backward passes inside do not end the step: leave it before the last one of a step."""
        return cast("contextlib.AbstractContextManager[None]", self._averager.several_backwards())

    def train(self, mode: bool = True) -> DistributedDataParallel:
        torch.nn.Module.train(self, mode)
        return self

    def will_sync_module_buffers(self) -> bool:
        """Whether the next forward pass broadcasts buffers, as in torch's class."""
        return bool(self.require_forward_param_sync and self.forward_sync_buffers
                    and self._kept(self.module.named_buffers()))

    # uneven inputs

    def join(self, divide_by_initial_world_size: bool = True, enable: bool = True,
             throw_on_early_termination: bool = False) -> contextlib.AbstractContextManager[None]:
        """Wraps a loop whose ranks have different numbers of inputs, as in torch's class."""
        if not enable:
            return contextlib.nullcontext()
        buffers = list(self._kept(self.module.named_buffers()).values()) if self.forward_sync_buffers else []
        return cast("contextlib.AbstractContextManager[None]", self._averager.join(
            buffers, divide_by_initial_world_size, throw_on_early_termination))

    def join_hook(self, **kwargs: Any) -> _joining.ModelHook:
        """For torch.distributed.algorithms.join.Join. Ranks that have run out of inputs also get the averaged gradients
        of the others' steps, so that sharded optimizers continue with them."""
        if (last := self._joining()) is not None:
            last.leave()
        hook = _joining.ModelHook(self, self.join(kwargs.get("divide_by_initial_world_size", True)))
        self._joining = weakref.ref(hook)
        return hook

    # hooks

    def register_comm_hook(self, state: object, hook: Callable[..., Any]) -> None:
        """Registers torch's hook(state, bucket) -> Future. Call it on all ranks before the first step: it makes a new
        engine. exact_average_hook, power_sgd_hook() and quantize_hook() of libddp.torch are in C++, without state."""
        if not callable(hook):
            raise TypeError("Communication hook must be callable.")
        self._add_hook(_comm_hooks.maker(state, hook), (hook, state))

    def _register_builtin_comm_hook(self, comm_hook_type: Any) -> None:
        adapter = _adapter.load()
        fp16 = comm_hook_type == BuiltinCommHookType.FP16_COMPRESS
        self._add_hook(lambda _: adapter.compress_hook("float16") if fp16 else adapter.all_reduce_hook(), comm_hook_type)

    def _add_hook(self, make: Callable[[list[torch.Tensor]], Any], entry: Any) -> None:
        if self._comm_hooks:
            raise RuntimeError("register_comm_hook or register_builtin_comm_hook can only be called once.")
        self._check_untrained("register_comm_hook")
        self._remake(make)
        self._comm_hooks.append(entry)

    def _remake(self, make: Callable[[list[torch.Tensor]], Any] | None) -> None:
        """Collective, unless the engine does not exist yet."""
        if self._engine is not None:
            self._make_averager(False, make)
        self._make_hook = make

    def _check_untrained(self, function: str) -> None:
        if self._has_trained:
            raise RuntimeError(f"{function}() should be called before training loop starts, on all ranks; "
                               "wrap the module again for a change")

    def _register_buffer_comm_hook(self, state: Any, hook: Callable[..., Any],
                                   comm_hook_location: Any = _BufferCommHookLocation.POST_FORWARD) -> None:
        """Registers torch's hook(state, buffers by name), which replaces rank 0's broadcast. Its futures are awaited at
        once."""
        if not callable(hook):
            raise AssertionError(f"hook must be callable, got {type(hook).__name__}")
        self.buffer_hook = _BufferCommHook(buffer_comm_hook=hook, buffer_comm_hook_state=state,
                                           buffer_comm_hook_location=comm_hook_location)

    def _register_fused_optim(self, optim: type, *args: Any, optim_params: list[torch.Tensor] | None = None,
                              **kwargs: Any) -> None:
        """Registers torch's optimizer, by class and arguments, to step within backward(). Call it on all ranks before
        the first step."""
        if not all(each.is_contiguous() for each in optim_params or self.module.parameters()):
            raise NotImplementedError(_REFUSED.format("_register_fused_optim for parameters that are not row-major",
                                                      "torch.distributed.optim._apply_optimizer_in_backward takes them"))
        from libddp import _optimizers  # few programs need it
        self.register_comm_hook(self.process_group, _optimizers.fused_hook(optim, optim_params, *args, **kwargs))

    def _lazy_init(self) -> None:
        """Runs at the first forward pass: parameters may have been given optimizers since the constructor."""
        kept = list(self._kept(self.module.named_parameters()).values())
        self._dropped = [place for place, each in enumerate(kept) if hasattr(each, "_in_backward_optimizers")]
        if self._dropped:
            if self.mixed_precision is not None:
                raise NotImplementedError(_REFUSED.format("optimizers within backward() with mixed_precision", "call step() after it"))
            from libddp import _optimizers
            _optimizers.take_over([kept[place] for place in self._dropped])
            self.register_comm_hook(self.process_group, _optimizers.step_hook)
        self._lazy_init_ran = True

    @property
    def _has_rebuilt_buckets(self) -> bool:  # type: ignore[override]
        """ZeroRedundancyOptimizer's hooks wait for this."""
        return bool(self._averager.ready_order())

    # what programs and libraries ask

    def _get_ddp_logging_data(self) -> dict[str, Any]:
        """torch's fields, those of libddp's DdpLog, and lists of parameters: buckets, and ready_order for the next
        run."""
        return {**json.loads(self._averager.log()), "backend_name": dist.get_backend(self.process_group),
                "buckets": self._averager.buckets(), "ready_order": self._averager.ready_order()}

    def trace(self, steps: int) -> None:
        """Records the times of each bucket in this many steps, beginning with the next; discards an earlier trace."""
        self._averager.trace(steps)

    def trace_json(self) -> str:
        """The recorded trace, for Perfetto and chrome://tracing; `ddp-info trace` merges the files of all ranks."""
        return str(self._averager.trace_json())

    def _set_ddp_runtime_logging_sample_rate(self, sample_rate: int) -> None:
        """Call on all ranks before the first step."""
        if sample_rate < 1:
            raise ValueError("DDP runtime logging sample rate should be equal or greater than 1")
        self._check_untrained("_set_ddp_runtime_logging_sample_rate")
        self._sample_rate = sample_rate
        self._remake(self._make_hook)

    def _set_static_graph(self) -> None:
        """Call on all ranks before the first step."""
        self._check_untrained("_set_static_graph")
        if not self.static_graph:
            self.static_graph = True
            self._remake(self._make_hook)

    def _update_process_group(self, new_process_group: Any) -> None:
        """Collective over the new group; works after a failure."""
        if not dist.distributed_c10d._rank_not_in_group(new_process_group):
            self.process_group = new_process_group
            if self._engine is not None:
                self._engine.change_group(_backend.of(new_process_group, bool(self._comm_hooks), self.device))

    def _remove_autograd_hooks(self) -> None:
        self._engine = None

    def _check_reducer_finalized(self) -> None:
        self._averager.before_forward()

    # pickle and deepcopy: with the default group

    def __getstate__(self) -> dict[str, Any]:
        self._check_default_group()  # type: ignore[no-untyped-call]
        state = self.__dict__.copy()
        for name in ("process_group", "_engine", "_wrapped", "_make_hook", "_joining"):
            state.pop(name, None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        torch.nn.Module.__setstate__(self, state)  # type: ignore[no-untyped-call]
        self.process_group = dist.distributed_c10d._get_default_group()
        self._comm_hooks = []
        self._make_hook = None
        self._has_trained = self._lazy_init_ran = False
        self._dropped = []
        self._joining = _joining.no_hook
        self._engine = None

    def _log_and_throw(self, kind: type[Exception], message: str) -> None:
        raise kind(message)
