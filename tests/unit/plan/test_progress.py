import pytest

from specstudy import progress as module
from specstudy.progress import Progress, Step


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)

    def step(self, progress: Progress, of: str, seconds: float) -> None:
        progress.start()
        self.now += seconds
        progress.finish(of, of)


def test_what_steps_really_took_corrects_those_of_their_kind_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock(monkeypatch)
    progress = Progress([Step("first", "start", 60), *[Step("chat", "repeat", 10)] * 3, Step("second", "start", 60)])
    assert progress.remaining_s == 150
    clock.step(progress, "first", 120)  # starts take twice as long: 3 x 10 + 2 x 60
    assert progress.remaining_s == 150
    clock.step(progress, "chat", 5)  # and repeats half as long: 2 x 5 + 2 x 60
    assert progress.remaining_s == 130
    assert capsys.readouterr().out == "[1/5] first (about 2 min 30 s left)\n[2/5] chat (about 2 min 10 s left)\n"


def test_steps_that_are_dropped_or_come_on_top(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock(monkeypatch)
    progress = Progress([Step("chat", "repeat", 10), Step("code", "repeat", 20), Step("chat", "repeat", 10), Step("code", "repeat", 20)])
    clock.step(progress, "code", 20)
    progress.drop("chat")  # one of its own is left, whatever was planned between
    assert progress.remaining_s == 20 and progress.left("code") == 1 and progress.left("chat") == 0
    progress.start()
    clock.now += 20
    progress.finish("code", "code", Step("code", "repeat", 25))
    assert progress.remaining_s == 25
    assert capsys.readouterr().out.splitlines()[-1] == "[2/3] code (about 25 s left)"


def test_a_step_that_nobody_expected_is_a_mistake() -> None:
    progress = Progress([Step("chat", "repeat", 10)])
    progress.start()
    with pytest.raises(KeyError, match="code"):
        progress.finish("code", "code")
