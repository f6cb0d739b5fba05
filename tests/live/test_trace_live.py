"""vLLM's profiler, started as `specstudy trace` starts it: a CPU has no kernels, but marks its steps as a GPU's worker does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specstudy.errors import MeasurementError
from specstudy.measure import Sampling
from specstudy.measure.trace import COLD_STEPS, decode_marks, profiler_flags, read_events, steps_of_load, steps_to_skip, trace
from specstudy.serving import Deployment, launch
from specstudy.workloads import Prompt

START_TIMEOUT_S = 900


@pytest.mark.live
def test_the_steps_that_are_skipped_and_traced_are_those_that_were_asked_for(deployment: Callable[..., Deployment], tmp_path: Path) -> None:
    plain, prompts = deployment(), [Prompt.user("Count to one hundred."), Prompt.user("Count down from ninety.")]
    flags = profiler_flags(tmp_path / "trace", steps_to_skip(2), 6)
    with (
        launch(plain.model_copy(update={"flags": {**plain.flags, **flags}}), tmp_path / "log", timeout_s=START_TIMEOUT_S) as server,
        pytest.raises(MeasurementError, match="none holds a kernel of a GPU"),
    ):
        trace(server, prompts, tmp_path / "trace", Sampling(steps_of_load(2, 6), 0.0, 1))
    (marks,) = [marks for path in (tmp_path / "trace").rglob("*.json*") if (marks := decode_marks(read_events(path), 2))]
    assert COLD_STEPS + 6 <= len(marks) <= COLD_STEPS + 7  # the profiler stops once it has seen one more begin
