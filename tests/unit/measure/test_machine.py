"""Rates are amounts over times; what can't be measured is refused or left out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from specstudy.cli import app
from specstudy.errors import ConfigError
from specstudy.measure import machine
from specstudy.measure.machine import Sizes, measure_limits
from specstudy.records.machine import MachineLimits
from specstudy.records.provenance import Provenance

ORIGIN = Provenance(allocation="a" * 12, git_sha="abc", packages={}, host_cpu="a processor", host_cpus=2)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "SIZES", {"cpu": Sizes(2**16, 32), "gpu": machine.SIZES["gpu"]})
    monkeypatch.setattr(machine, "REPEAT_S", 0.001)


def test_a_rate_is_the_amount_over_the_time_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that only work moves on, by 2 ms each, and less as it warms up: 5 of them make a repeat of 10 ms."""
    now = [0.0]
    done = [0]

    def work() -> None:
        done[0] += 1
        now[0] += 0.002 if done[0] > 2 else 1.0

    monkeypatch.setattr(machine.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(machine, "REPEAT_S", 0.01)
    rates = machine._rates(torch, torch.device("cpu"), work, 1_000_000)
    assert rates == pytest.approx([5e8] * machine.REPEATS)
    assert done[0] == 2 + 1 + 5 * machine.REPEATS


def test_a_processor_has_bandwidth_and_products_but_no_fp8() -> None:
    found = measure_limits(ORIGIN, "cpu")
    assert (found.allocation, found.device, found.gpu_uuids) == ("a" * 12, "a processor", ())
    assert set(found.read_bytes_per_s) == {"sum", "maximum", "vector x weights"}
    assert all(len(rates) == machine.REPEATS for rates in (found.copy_bytes_per_s, found.bf16_flop_per_s, *found.read_bytes_per_s.values()))
    assert found.fp8_flop_per_s is None
    assert found.torch == torch.__version__


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="hardware: got 'gpu'"):
        measure_limits(ORIGIN, "gpu")


def test_the_command_keeps_them_beside_the_profiles_records(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["limits", "--results-dir", str(tmp_path)])
    assert done.exit_code == 0, done.output
    (path,) = tmp_path.rglob("*.json")
    limits = MachineLimits.model_validate_json(path.read_text())
    assert path == tmp_path / "cpu-smollm2" / f"limits-{limits.allocation}.json"
