"""How long a stand-in's token takes, by hand."""

from __future__ import annotations

import pytest

from specstudy.scaling.standin import Pace, arguments


@pytest.mark.parametrize(
    ("slots", "slowdown", "running", "wanted"),
    [
        (4, 1.0, 4, 0.020),
        (4, 2.0, 1, 0.020),  # alone
        (4, 2.0, 2, 0.020 * 4 / 3),  # a third of the way
        (4, 2.0, 4, 0.040),  # every slot busy
        (1, 2.0, 1, 0.020),  # one slot is never fuller than that
    ],
)
def test_a_token_takes_longer_the_fuller_the_server(slots: int, slowdown: float, running: int, wanted: float) -> None:
    assert Pace(slots, 0.04, 0.02, slowdown, running).next_s() == pytest.approx(wanted)


def test_without_the_flag_a_full_server_is_as_quick() -> None:
    assert arguments(["--port", "1", "--served-model-name", "m"]).slowdown == 1
