"""PyTorch with CUDA by its double (torch_cuda_double.cpp, compiled to the file TEST_CUDA_DOUBLE): import this before torch, which asks
once whether there is CUDA."""

import ctypes
import importlib.util
import os
import sys
from pathlib import Path

assert "torch" not in sys.modules, "it has asked already"
_libraries = Path(importlib.util.find_spec("torch").origin).parent / "lib"
for _each in (_libraries / "libc10.so", _libraries / "libtorch_cpu.so", Path(os.environ["TEST_CUDA_DOUBLE"])):
    ctypes.CDLL(str(_each), ctypes.RTLD_GLOBAL)

import torch  # noqa: E402

double = torch.ops.cuda_double
torch.cuda.get_device_capability = lambda device=None: (8, 0)  # which broadcast() asks for
