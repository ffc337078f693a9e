"""PyTorch without its compiler where a program does not compile, and without the kernels of tensors that have no data: a third
of the processor time that a rank of a test takes until its first step. Optimizers and DDP import torch._dynamo only to keep it
from tracing them, or to ask for its defaults. Here they do without as long as nothing has imported it; from then on they are
as PyTorch has them. The kernels in Python for meta tensors come with the first FakeTensorMode, or by their import.

build/venv runs this file at the start of each interpreter (scripts/python-env); another DDP_TORCH_PYTHON does not. With
DDP_TEST_WHOLE_TORCH, which scripts/test --all sets, it does nothing.
"""

import functools
import gc
import importlib
import os
import sys
from importlib.machinery import PathFinder, SourceFileLoader

COMPILER = "torch._dynamo"
META_KERNELS = "torch._meta_registrations"
# Modules that import each other: it works if the kernels come first, as in PyTorch.
WITH_META_KERNELS = {COMPILER, "torch._decomp", "torch._prims", "torch._refs", "torch.utils._content_store"}


class _Unused:
    """Stands for a module until something else of it is used than what is known here."""

    def __init__(self, name, **known):
        self.__name__ = name
        self.__dict__.update(known)

    def __getattr__(self, name):
        return getattr(importlib.import_module(self.__name__), name)


_undisabled = []  # functions that the compiler, once it is there, must not trace


def _call_undisabled(module):  # torch._compile
    original = module._disable_dynamo

    @functools.wraps(original)
    def disable(function=None, recursive=True):
        if function is None:
            return functools.partial(disable, recursive=recursive)
        wrapped = original(function, recursive)
        if COMPILER not in sys.modules:
            function.__dynamo_disable = function  # what the wrapper else asks the compiler for, and keeps there
            _undisabled.append(function)
        return wrapped

    module._disable_dynamo = disable


def _disable_again(module):  # torch._dynamo
    for function in _undisabled:
        del function.__dynamo_disable
    _undisabled.clear()


def _step_without_graph_breaks(module):  # torch.optim.optimizer
    original = module._use_grad_for_differentiable

    def use_grad(function):
        whole = original(function)

        @functools.wraps(function)
        def step(self, *args, **named):
            if COMPILER in sys.modules:
                return whole(self, *args, **named)
            with sys.modules["torch"].set_grad_enabled(self.defaults["differentiable"]):
                return function(self, *args, **named)

        return step

    module._use_grad_for_differentiable = use_grad


def _know_defaults(module):  # torch
    if COMPILER not in sys.modules:
        module._dynamo = _Unused(COMPILER, utils=_Unused(COMPILER + ".utils", get_optimize_ddp_mode=lambda: "ddp_optimizer"))
    if META_KERNELS not in sys.modules and hasattr(module._C, "_set_generator_metaclass"):  # else torch._prims does it
        module._C._set_generator_metaclass(importlib.import_module("torch._opaque_base").OpaqueBaseMeta)


def _fake_with_meta_kernels(module):  # torch._subclasses.fake_tensor
    original = module.FakeTensorMode.__init__

    @functools.wraps(original)
    def init(self, *args, **named):
        importlib.import_module(META_KERNELS)
        original(self, *args, **named)

    module.FakeTensorMode.__init__ = init


AFTER = {"torch._compile": _call_undisabled, "torch.optim.optimizer": _step_without_graph_breaks, "torch": _know_defaults,
         COMPILER: _disable_again, "torch._subclasses.fake_tensor": _fake_with_meta_kernels}


class _Loader(SourceFileLoader):
    def exec_module(self, module):
        name = module.__name__
        if name in WITH_META_KERNELS and META_KERNELS not in sys.modules:
            del sys.modules[name]  # imported anew by the kernels, or after them
            importlib.import_module(META_KERNELS)
            importlib.import_module(name)
            return
        if name == "torch":
            module._meta_registrations = _Unused(META_KERNELS)  # which torch does not import, as it finds it
        collects = gc.isenabled()
        gc.disable()  # what an import makes stays; looking through it again and again takes a tenth of the time
        try:
            super().exec_module(module)
        finally:
            if collects:
                gc.enable()
        if name in AFTER:
            AFTER[name](module)


class _Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        spec = PathFinder.find_spec(name, path, target) if name in AFTER or name in WITH_META_KERNELS else None
        if spec and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
            return spec
        return None


if "DDP_TEST_WHOLE_TORCH" not in os.environ:
    sys.meta_path.insert(0, _Finder)
