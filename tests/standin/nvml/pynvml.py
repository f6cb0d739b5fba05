# ruff: noqa: N802 -- the names are those of the library that it stands in for
"""A stand-in for NVML: three GPUs, each with readings of its own, for machines that have none. Put its folder on PYTHONPATH."""

from __future__ import annotations

from types import SimpleNamespace

NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 0
UUIDS = ["GPU-aaaa1111-0000", "GPU-bbbb2222-0000", "GPU-bbbb3333-0000"]


class NVMLError(Exception):
    """As NVML's: no such device."""


def nvmlInit() -> None: ...


def nvmlDeviceGetCount() -> int:
    return len(UUIDS)


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    if not 0 <= index < len(UUIDS):
        raise NVMLError("no such index")
    return index


def nvmlDeviceGetHandleByUUID(uuid: str) -> int:
    if uuid not in UUIDS:
        raise NVMLError("no such UUID")
    return UUIDS.index(uuid)


def nvmlDeviceGetUUID(handle: int) -> str:
    return UUIDS[handle]


def nvmlDeviceGetName(handle: int) -> str:
    return f"GPU {handle}"


def nvmlSystemGetDriverVersion() -> str:
    return "1.2"


def nvmlDeviceGetUtilizationRates(handle: int) -> SimpleNamespace:
    return SimpleNamespace(gpu=10 * (handle + 1))


def nvmlDeviceGetMemoryInfo(handle: int) -> SimpleNamespace:
    return SimpleNamespace(used=(handle + 1) * 2**30)


def nvmlDeviceGetPowerUsage(handle: int) -> int:
    return 100_000 * (handle + 1)


def nvmlDeviceGetClockInfo(handle: int, clock: int) -> int:
    return 1000 + handle


def nvmlDeviceGetTemperature(handle: int, sensor: int) -> int:
    return 40 + handle
