"""PyTorch with CUDA by its double (torch_cuda_double.cpp, compiled to the file TEST_CUDA_DOUBLE): import this before torch, which asks
once whether there is CUDA."""

import contextlib
import ctypes
import importlib.util
import os
import sys
from pathlib import Path
from unittest import mock

assert "torch" not in sys.modules, "it has asked already"
_libraries = Path(importlib.util.find_spec("torch").origin).parent / "lib"
for _each in (_libraries / "libc10.so", _libraries / "libtorch_cpu.so", Path(os.environ["TEST_CUDA_DOUBLE"])):
    ctypes.CDLL(str(_each), ctypes.RTLD_GLOBAL)

import torch  # noqa: E402

double = torch.ops.cuda_double
torch.cuda.get_device_capability = lambda device=None: (8, 0)  # which broadcast() asks for
torch.cuda._lazy_init = lambda: None  # torch.empty(device="cuda")


def _resize(tensor, size):
    if tensor.untyped_storage().size() != size:
        double.resize_storage(tensor, size)


@contextlib.contextmanager
def streams_for_sharding():
    """What torch's FSDP2 asks of torch.cuda and of storages, where PyTorch is built without CUDA: by its interface for any device."""
    parts = torch.distributed.fsdp._fully_shard._fsdp_param
    rank = int(os.environ["LOCAL_RANK"])
    with contextlib.ExitStack() as patched:
        for place, name, value in (
                (torch.cuda, "Stream", lambda **more: torch.Stream(torch.device("cuda", rank), **more)),
                (torch.cuda, "Event", lambda: torch.Event("cuda")),
                (torch.cuda, "stream", lambda chosen: chosen), (torch.cuda, "current_device", lambda: rank),
                (torch.cuda, "set_device", torch.accelerator.set_device_index),
                (torch.cuda, "current_stream", lambda: torch.accelerator.current_stream(rank)),
                (parts, "alloc_storage", lambda tensor: _resize(tensor, tensor.numel() * tensor.itemsize)),
                (parts, "free_storage", lambda tensor: _resize(tensor, 0))):
            patched.enter_context(mock.patch.object(place, name, value))
        yield
