"""CUDA's driver API by ctypes: as much as tests of device code need, without any package."""

import ctypes
import os


class CudaError(Exception):
    """A driver function's failure."""


class Driver:
    """The driver's library with the first device's primary context, which PyTorch uses, too."""

    def __init__(self, device=0):
        self.library = ctypes.CDLL(os.environ.get("DDP_CUDA_LIBRARY") or "libcuda.so.1")
        self.call("cuInit", 0)
        handle, self.context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(handle), device)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), handle)
        self.call("cuCtxSetCurrent", self.context)
        self.device = handle
        self.stream = ctypes.c_void_p()
        self.call("cuStreamCreateWithPriority", ctypes.byref(self.stream), 1, 0)  # CU_STREAM_NON_BLOCKING
        self.module = None
        self.functions = {}

    def call(self, name, *arguments):
        """Calls a function, and raises CudaError with the driver's own word where it fails."""
        status = getattr(self.library, name)(*arguments)
        if status != 0:
            word = ctypes.c_char_p()
            self.library.cuGetErrorName(status, ctypes.byref(word))
            raise CudaError(f"{name}: {(word.value or b'CUresult').decode()} ({status})")

    def name(self):
        text = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", text, 256, self.device)
        return text.value.decode()

    def attribute(self, number):
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), number, self.device)
        return value.value

    def load(self, image):
        """Loads a fat binary."""
        self.image = ctypes.create_string_buffer(image, len(image))
        self.module = ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(self.module), self.image)

    def allocate(self, size):
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(size, 1)))
        return address.value

    def free(self, address):
        self.call("cuMemFree_v2", ctypes.c_uint64(address))

    def copy(self, to, source, size):
        """Between any two addresses; returns when it is done."""
        if size:
            self.call("cuMemcpyAsync", ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_size_t(size), self.stream)
            self.synchronize()

    def synchronize(self):
        self.call("cuStreamSynchronize", self.stream)

    def launch(self, name, blocks, argument, threads=256):
        """Queues a kernel whose one parameter is a ctypes structure."""
        if name not in self.functions:
            function = ctypes.c_void_p()
            self.call("cuModuleGetFunction", ctypes.byref(function), self.module, name.encode())
            self.functions[name] = function
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
        self.call("cuLaunchKernel", self.functions[name], blocks, 1, 1, threads, 1, 1, 0, self.stream, parameters, None)

    def copy_on_device(self, to, source, size):
        self.call("cuMemcpyAsync", ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_size_t(size), self.stream)

    def milliseconds(self, work, before=lambda: None):
        """How long the device takes for what work() queues, behind what before() queues."""
        events = [ctypes.c_void_p(), ctypes.c_void_p()]
        for event in events:
            self.call("cuEventCreate", ctypes.byref(event), 0)
        before()
        self.call("cuEventRecord", events[0], self.stream)
        work()
        self.call("cuEventRecord", events[1], self.stream)
        self.call("cuEventSynchronize", events[1])
        elapsed = ctypes.c_float()
        self.call("cuEventElapsedTime", ctypes.byref(elapsed), *events)
        for event in events:
            self.call("cuEventDestroy_v2", event)
        return elapsed.value
