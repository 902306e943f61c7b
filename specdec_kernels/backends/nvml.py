# SPDX-License-Identifier: Apache-2.0
"""The NVIDIA GPUs of this machine, read from the driver's management library (NVML).

This does not initialise CUDA, so the process may still fork.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple


class Gpus(NamedTuple):
    driver: tuple[int, int]  # the newest CUDA that the driver runs
    capabilities: list[tuple[int, int]]  # (9, 0) for sm_90, one per GPU


def gpus() -> Gpus | None:
    """Return this machine's GPUs: none without a working driver. Return None if NVML cannot list them."""
    nvml = _library("libnvidia-ml.so.1")
    if nvml is None:
        return None if _library("libcuda.so.1") else Gpus((0, 0), [])
    if nvml.nvmlInit_v2() != 0:
        return Gpus((0, 0), [])
    try:
        return Gpus(_driver(nvml), [_capability(nvml, i) for i in range(_integer(nvml.nvmlDeviceGetCount_v2))])
    except OSError:
        return None
    finally:
        nvml.nvmlShutdown()


def _library(name):
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


def _checked(code):
    if code != 0:
        raise OSError(f"NVML error {code}")


def _integer(query):
    value = ctypes.c_int()
    _checked(query(ctypes.byref(value)))
    return value.value


def _driver(nvml):
    version = _integer(nvml.nvmlSystemGetCudaDriverVersion_v2)  # 12080 for 12.8
    return version // 1000, version % 1000 // 10


def _capability(nvml, index):
    device, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
    _checked(nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)))
    _checked(nvml.nvmlDeviceGetCudaComputeCapability(device, ctypes.byref(major), ctypes.byref(minor)))
    return major.value, minor.value
