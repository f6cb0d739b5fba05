"""How fast can this device read memory and multiply matrices? Measured with torch, on the GPU that a server would use."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from specstudy.errors import ConfigError
from specstudy.measure.gpu import gpu_identity, memory_clock_mhz, sampling
from specstudy.records.machine import MachineLimits
from specstudy.records.provenance import Provenance

REPEATS = 10
# Each repeat of a GPU lasts about this long, so that clocks settle and the launch of a kernel costs nothing.
REPEAT_S = 0.1


@dataclass(frozen=True)
class Sizes:
    """Sizes of what is read, copied and multiplied; larger than any cache, and as large as a model's layers."""

    buffer_bytes: int
    matrix: int


SIZES = {"gpu": Sizes(4 * 2**30, 8192), "cpu": Sizes(2**28, 1024)}


def measure_limits(origin: Provenance, hardware: Literal["cpu", "gpu"]) -> MachineLimits:
    """Measure the first GPU that this process may use, or the processor: about 20 s.

    Raises ConfigError without a GPU, or when it has not enough free memory: a server on it would also spoil the measurement.
    """
    import torch

    on_gpu, chosen = hardware == "gpu", SIZES[hardware]
    device = torch.device("cuda:0" if on_gpu else "cpu")
    if on_gpu:
        _check_free(torch, chosen)
    identity = gpu_identity() if on_gpu else None
    with torch.inference_mode(), sampling() as samples:
        copy, read = _bandwidths(torch, device, chosen.buffer_bytes)
        bf16 = _matmul_rates(torch, device, chosen.matrix)
        fp8 = _fp8_rates(torch, device, chosen.matrix) if on_gpu and torch.cuda.get_device_capability(device) >= (8, 9) else None
        memory_clock = memory_clock_mhz()
    figures = samples.figures(None)
    return MachineLimits(
        allocation=origin.allocation,
        measured_at=datetime.now(UTC),
        device=identity.label if identity else origin.host_cpu,
        gpu_uuids=identity.uuids if identity else (),
        driver=identity.driver if identity else None,
        torch=torch.__version__,
        memory_bytes=_memory_bytes(torch, on_gpu),
        copy_bytes_per_s=copy,
        read_bytes_per_s=read,
        bf16_flop_per_s=bf16,
        fp8_flop_per_s=fp8,
        sm_clock_mhz_mean=figures["gpu_sm_clock_mhz_mean"],
        memory_clock_mhz=memory_clock,
        power_w_mean=figures["gpu_power_w_mean"],
    )


def _check_free(torch: Any, sizes: Sizes) -> None:
    if not torch.cuda.is_available():
        raise ConfigError("hardware", "gpu", "a GPU that torch can use; there is none here")
    free, total = torch.cuda.mem_get_info()
    needed = 3 * sizes.buffer_bytes
    if free < needed:
        raise ConfigError("gpu", f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free", f"a GPU with {needed / 2**30:.0f} GiB free and nothing running on it")


def _memory_bytes(torch: Any, on_gpu: bool) -> int:
    if on_gpu:
        return int(torch.cuda.mem_get_info()[1])
    import psutil

    return int(psutil.virtual_memory().total)


def _bandwidths(torch: Any, device: Any, size: int) -> tuple[tuple[float, ...], dict[str, tuple[float, ...]]]:
    """(copy, read by reader), bytes per second."""
    source = torch.empty(size // 4, dtype=torch.float32, device=device).fill_(1.0)
    other = torch.empty_like(source)
    copy = _rates(torch, device, lambda: other.copy_(source), 2 * size)
    read = {"sum": _rates(torch, device, source.sum, size), "maximum": _rates(torch, device, source.max, size)}
    # A decode step of one request: a vector times weights.
    width = 8192
    weights = source.view(torch.bfloat16).view(-1, width)
    vector = torch.ones(1, width, dtype=torch.bfloat16, device=device)
    read["vector x weights"] = _rates(torch, device, lambda: torch.nn.functional.linear(vector, weights), size)
    return copy, read


def _matmul_rates(torch: Any, device: Any, n: int) -> tuple[float, ...]:
    """Operations per second of a bfloat16 product of n x n matrices of random numbers: zeros would take less power."""
    a, b = (torch.randn(n, n, dtype=torch.bfloat16, device=device) for _ in range(2))
    return _rates(torch, device, lambda: torch.matmul(a, b), 2 * n**3)


def _fp8_rates(torch: Any, device: Any, n: int) -> tuple[float, ...]:
    """The same in FP8 (e4m3) with a scale for each row and column, as a W8A8 layer has them."""
    a, b = (torch.randn(n, n, device=device).to(torch.float8_e4m3fn) for _ in range(2))
    rows, columns = torch.ones(n, 1, device=device), torch.ones(1, n, device=device)

    def product() -> Any:
        return torch._scaled_mm(a, b.t(), scale_a=rows, scale_b=columns, out_dtype=torch.bfloat16, use_fast_accum=True)

    return _rates(torch, device, product, 2 * n**3)


def _rates(torch: Any, device: Any, work: Callable[[], Any], amount: float) -> tuple[float, ...]:
    """`amount` over the time of one `work()`, for each of REPEATS; each repeats the work for about REPEAT_S."""

    def timed(times: int) -> float:
        _wait(torch, device)
        began = time.perf_counter()
        for _ in range(times):
            work()
        _wait(torch, device)
        return time.perf_counter() - began

    timed(2)  # kernels are loaded and chosen at the first call
    times = max(1, round(REPEAT_S / timed(1)))
    return tuple(float(round(amount * times / timed(times))) for _ in range(REPEATS))


def _wait(torch: Any, device: Any) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
