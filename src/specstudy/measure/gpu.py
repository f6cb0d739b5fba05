"""GPU telemetry by NVML, sampled in a thread while a load runs."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from specstudy.errors import ConfigError

INTERVAL_S = 0.1  # 10 Hz; the study's rule is 5 Hz or better


@dataclass(frozen=True)
class GpuIdentity:
    """The GPUs that this process may use."""

    label: str
    uuids: tuple[str, ...]
    driver: str


@dataclass
class GpuSamples:
    """Readings of one load; each list holds one entry per sample, averaged or summed over GPUs as named."""

    utilization_mean: list[float] = field(default_factory=list)
    memory_sum_bytes: list[float] = field(default_factory=list)
    power_sum_w: list[float] = field(default_factory=list)
    sm_clock_mean_mhz: list[float] = field(default_factory=list)
    temperature_max_c: list[float] = field(default_factory=list)
    elapsed_s: float = 0.0

    def clear(self) -> None:
        """Drop every reading."""
        for readings in (self.utilization_mean, self.memory_sum_bytes, self.power_sum_w, self.sm_clock_mean_mhz, self.temperature_max_c):
            readings.clear()

    def figures(self, output_tokens: int | None) -> dict[str, float | None]:
        """The record's gpu_* fields; all None without samples. Energy is mean power x time over output tokens."""
        power = _mean(self.power_sum_w)
        return {
            "gpu_utilization_mean": _mean(self.utilization_mean),
            "gpu_memory_peak_gib": max(self.memory_sum_bytes) / 2**30 if self.memory_sum_bytes else None,
            "gpu_power_w_mean": power,
            "gpu_sm_clock_mhz_mean": _mean(self.sm_clock_mean_mhz),
            "gpu_temperature_c_max": max(self.temperature_max_c, default=None),
            "energy_j_per_token": power * self.elapsed_s / output_tokens if power is not None and output_tokens else None,
        }


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _handles() -> list[Any]:
    """NVML handles of the visible GPUs; none without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError:
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
    names = [name.strip() for name in visible.split(",") if name.strip()]
    if "-1" in names:  # CUDA's way to hide them all
        return []
    return [_handle(name, count) for name in names]


def _handle(name: str, count: int) -> Any:
    """The device that CUDA_VISIBLE_DEVICES means by `name`: an index, a UUID or the beginning of one."""
    import pynvml

    if name.isdigit():
        return pynvml.nvmlDeviceGetHandleByIndex(int(name))
    for index in range(count):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        if _text(pynvml.nvmlDeviceGetUUID(handle)).startswith(name):
            return handle
    return pynvml.nvmlDeviceGetHandleByUUID(name)  # a MIG slice has its own


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def gpu_uuids() -> tuple[str, ...]:
    """Of the GPUs that this process may use; nothing without one."""
    identity = gpu_identity()
    return identity.uuids if identity else ()


def gpu_identity() -> GpuIdentity | None:
    """Names, UUIDs and driver of the visible GPUs; None where there is none."""
    import pynvml

    handles = _handles()
    if not handles:
        return None
    names = [_text(pynvml.nvmlDeviceGetName(handle)) for handle in handles]
    label = names[0] if len(names) == 1 else f"{len(names)} x {names[0]}"
    return GpuIdentity(label, tuple(_text(pynvml.nvmlDeviceGetUUID(h)) for h in handles), _text(pynvml.nvmlSystemGetDriverVersion()))


def check_device(hardware: str) -> None:
    """Raises ConfigError for a GPU's profile where there is no GPU: vLLM itself fails only after half a minute, far from the cause."""
    if hardware != "gpu" or gpu_identity() is not None:
        return
    import torch

    if not torch.cuda.is_available():  # an AMD GPU is none of NVML's
        raise ConfigError("hardware", hardware, "a GPU; NVML and torch see none here, and a profile whose hardware is cpu runs anywhere")


def memory_clock_mhz() -> int | None:
    """Clock of the first visible GPU's memory at this moment; None where there is none or it can't tell."""
    import pynvml

    try:
        return next((int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM)) for handle in _handles()), None)
    except pynvml.NVMLError:
        return None


@contextmanager
def sampling() -> Iterator[GpuSamples]:
    """Sample for the length of the block; without a GPU the samples stay empty."""
    samples, stop = GpuSamples(), threading.Event()
    handles = _handles()
    began = time.monotonic()
    thread = threading.Thread(target=_sample_until, args=(stop, handles, samples), name="nvml", daemon=True)
    if handles:
        thread.start()
    try:
        yield samples
    finally:
        stop.set()
        if handles:
            thread.join()
        samples.elapsed_s = time.monotonic() - began


def _sample_until(stop: threading.Event, handles: list[Any], samples: GpuSamples) -> None:
    import pynvml

    with contextlib.suppress(pynvml.NVMLError):  # a GPU that can't tell (MIG, say) has no figures rather than half of them
        _sample(stop, handles, samples)
        return
    samples.clear()


def _sample(stop: threading.Event, handles: list[Any], samples: GpuSamples) -> None:
    import pynvml

    while not stop.wait(INTERVAL_S):
        samples.utilization_mean.append(sum(pynvml.nvmlDeviceGetUtilizationRates(h).gpu for h in handles) / len(handles))
        samples.memory_sum_bytes.append(sum(pynvml.nvmlDeviceGetMemoryInfo(h).used for h in handles))
        samples.power_sum_w.append(sum(pynvml.nvmlDeviceGetPowerUsage(h) for h in handles) / 1000)
        samples.sm_clock_mean_mhz.append(sum(pynvml.nvmlDeviceGetClockInfo(h, pynvml.NVML_CLOCK_SM) for h in handles) / len(handles))
        samples.temperature_max_c.append(max(pynvml.nvmlDeviceGetTemperature(h, pynvml.NVML_TEMPERATURE_GPU) for h in handles))
