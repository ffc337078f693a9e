"""A rank's CUDA device for libddp_torch_cuda.py, as `gpu`: a real one, or where TEST_CUDA_DOUBLE names PyTorch's double of CUDA, that
(torch_cuda_double.py). Import this before torch.

gpu.full(size, value, dtype, device): filled in the current stream, some time. gpu.use_stream(device, which): makes one current; 0: the
default one. gpu.pause(device), gpu.resume(device): its current stream stands still in between.
"""

import contextlib
import ctypes
import os
import random

REAL = "TEST_CUDA_DOUBLE" not in os.environ
RANK = int(os.environ["RANK"])

if not REAL:
    from torch_cuda_double import double as gpu, streams_for_sharding  # noqa: F401

    NUMBER = RANK
else:
    import torch

    NUMBER = int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()
    if torch.cuda.device_count() < int(os.environ["LOCAL_WORLD_SIZE"]):
        # NCCL up to 2.29 takes ranks on one GPU if they seem to be on different hosts, later ones if they are told to. Over
        # sockets, and in turns on the GPU: times mean nothing.
        os.environ.update(NCCL_HOSTID=str(RANK), NCCL_MULTI_RANK_GPU_ENABLE="1", NCCL_NET="Socket", NCCL_SOCKET_IFNAME="lo",
                          NCCL_P2P_DISABLE="1", NCCL_SHM_DISABLE="1", NCCL_NVLS_ENABLE="0", NCCL_MAX_CTAS="1")
    streams_for_sharding = contextlib.nullcontext

    class _Gpu:
        _LONGEST = 2_000_000  # clocks of the device, some ms

        def __init__(self):
            self._driver = ctypes.CDLL("libcuda.so.1")
            self._streams = {0: torch.cuda.default_stream(NUMBER)}
            self._gate = torch.zeros(1, dtype=torch.int32).pin_memory()
            self._closed = 0
            self._random = random.Random(RANK)

        def full(self, size, value, dtype, device):
            torch.cuda._sleep(self._random.randrange(self._LONGEST))
            return torch.full(tuple(size), value, dtype=dtype, device=f"cuda:{device}")

        def use_stream(self, device, which):
            if which not in self._streams:
                self._streams[which] = torch.cuda.Stream(device)
            torch.cuda.set_stream(self._streams[which])

        def pause(self, device):
            self._closed += 1
            stream = ctypes.c_void_p(torch.cuda.current_stream(device).cuda_stream)
            at_least = 0  # CU_STREAM_WAIT_VALUE_GEQ
            failed = self._driver.cuStreamWaitValue32_v2(stream, ctypes.c_uint64(self._gate.data_ptr()),
                                                         ctypes.c_uint32(self._closed), at_least)
            assert failed == 0, f"cuStreamWaitValue32: {failed}"

        def resume(self, device):
            self._gate[0] = self._closed

    torch.cuda.set_device(NUMBER)
    gpu = _Gpu()
