"""The device of a module that DistributedDataParallel is to wrap, and whether that can be done there."""

from __future__ import annotations

from typing import Any

import torch


def of(parameters: list[torch.Tensor]) -> torch.device:
    """Raises for parameters that cannot be averaged."""
    if not any(each.requires_grad for each in parameters):
        raise RuntimeError("DistributedDataParallel is not needed when a module doesn't have any parameter that "
                           "requires a gradient.")
    if any(isinstance(each, torch.nn.parameter.UninitializedParameter) for each in parameters):
        raise RuntimeError("Modules with uninitialized parameters can't be used with `DistributedDataParallel`. "
                           "Run a dummy forward pass to correctly initialize the modules")
    devices = {each.device for each in parameters}
    if "meta" in {each.type for each in devices}:
        raise ValueError("parameters of the module have no memory yet: they are on the device meta; give them some by "
                         "module.to_empty(device=...), and values by their own initialization or load_state_dict()")
    if len(devices) > 1 or parameters[0].device.type not in ("cpu", "cuda"):
        raise ValueError(f"libddp.torch.DistributedDataParallel averages gradients of modules on the CPU or on one CUDA "
                         f"device, and this one is on {sorted(map(str, devices))}; use torch's class for it")
    return parameters[0].device


def check_chosen(device: torch.device, device_ids: Any, output_device: Any) -> None:
    """Raises where a program wants the module on another device than that on which it is."""
    if (device_ids or output_device) and device.type == "cpu":
        raise ValueError("DistributedDataParallel device_ids and output_device arguments only work with "
                         f"single-device/multiple-device GPU modules, but got {device_ids}, {output_device}")
    chosen = [each for each in (*(device_ids or ()), output_device) if each is not None]
    if device.type == "cuda" and any(torch.device("cuda", each) != device if isinstance(each, int)
                                     else torch.device(each) != device for each in chosen):
        raise ValueError(f"the module is on {device}, but device_ids are {device_ids}, output_device is {output_device}")
