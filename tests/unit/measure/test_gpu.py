"""GPU figures by hand, and a machine without NVML."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specstudy.measure.gpu import GpuSamples

NO_NVML = """
from specstudy.measure.gpu import gpu_identity, sampling
assert gpu_identity() is None
with sampling() as samples:
    pass
figures = samples.figures(100)
assert set(figures.values()) == {None}, figures
assert samples.elapsed_s >= 0
"""


def test_figures_by_hand() -> None:
    samples = GpuSamples(
        utilization_mean=[50.0, 100.0],
        memory_sum_bytes=[2.0 * 2**30, 3.0 * 2**30, 1.0 * 2**30],
        power_sum_w=[300.0, 500.0],
        sm_clock_mean_mhz=[1500.0, 1700.0],
        temperature_max_c=[60.0, 65.0, 63.0],
        elapsed_s=20.0,
    )
    assert samples.figures(output_tokens=1000) == {
        "gpu_utilization_mean": 75.0,
        "gpu_memory_peak_gib": 3.0,
        "gpu_power_w_mean": 400.0,
        "gpu_sm_clock_mhz_mean": 1600.0,
        "gpu_temperature_c_max": 65.0,
        "energy_j_per_token": 8.0,  # 400 W for 20 s over 1000 tokens
    }


@pytest.mark.parametrize("tokens", [None, 0])
def test_no_tokens_no_energy_per_token(tokens: int | None) -> None:
    figures = GpuSamples(power_sum_w=[300.0], elapsed_s=1.0).figures(tokens)
    assert figures["energy_j_per_token"] is None
    assert figures["gpu_power_w_mean"] == 300


def test_no_samples_no_figures() -> None:
    assert set(GpuSamples(elapsed_s=3.0).figures(100).values()) == {None}


def test_without_a_gpu_everything_is_empty() -> None:
    """In a process that sees no GPU, whatever machine this is; CUDA_VISIBLE_DEVICES empty is how one hides them."""
    subprocess.run([sys.executable, "-W", "error", "-c", NO_NVML], env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, check=True)


PINNED = """
import json, time
from specstudy.measure.gpu import gpu_identity, sampling
with sampling() as samples:
    time.sleep(0.5)
found = gpu_identity()
print(json.dumps([found.label, list(found.uuids), samples.figures(None)["gpu_memory_peak_gib"], samples.figures(None)["gpu_utilization_mean"]]))
"""


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("1", ["GPU 1", ["GPU-bbbb2222-0000"], 2.0, 20.0]),
        (" 2 ", ["GPU 2", ["GPU-bbbb3333-0000"], 3.0, 30.0]),
        ("GPU-bbbb3333-0000", ["GPU 2", ["GPU-bbbb3333-0000"], 3.0, 30.0]),
        ("GPU-aaaa", ["GPU 0", ["GPU-aaaa1111-0000"], 1.0, 10.0]),  # CUDA takes the beginning of a UUID
        ("2,0", ["2 x GPU 2", ["GPU-bbbb3333-0000", "GPU-aaaa1111-0000"], 4.0, 20.0]),
        (None, ["3 x GPU 0", ["GPU-aaaa1111-0000", "GPU-bbbb2222-0000", "GPU-bbbb3333-0000"], 6.0, 20.0]),
    ],
)
def test_the_visible_devices_are_sampled_and_no_other(visible: str | None, expected: list[object]) -> None:
    """Against a stand-in for NVML with three devices, whose readings tell which of them was asked."""
    env = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    env["PYTHONPATH"] = str(Path(__file__).parents[2] / "standin" / "nvml")
    if visible is not None:
        env["CUDA_VISIBLE_DEVICES"] = visible
    done = subprocess.run([sys.executable, "-W", "error", "-c", PINNED], env=env, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == expected
