"""A GPU's profile on a machine without one is refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from specstudy.catalog import load_profile
from specstudy.errors import ConfigError
from specstudy.measure import check_device, gpu_identity
from specstudy.study import run_chapter

without_gpu = pytest.mark.skipif(gpu_identity() is not None, reason="this machine has a GPU")


def test_a_cpus_profile_runs_anywhere() -> None:
    check_device("cpu")


@without_gpu
def test_a_gpus_profile_needs_one_and_nothing_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "h200-smollm2"
    with pytest.raises(ConfigError, match="hardware: got 'gpu'; a GPU"):
        run_chapter(load_profile("h200-smollm2"), "03_baseline", folder)
    assert not folder.exists()
