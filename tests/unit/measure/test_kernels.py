"""Kernels that the engine compiles while it serves: read from its log, and what measuring makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.standin.engine import StandIn
from tests.unit.measure.test_cell import FACTS, prompts, repeat

from specstudy.measure import Measured, Sampling, measure, record_of
from specstudy.measure.kernels import KernelLog
from specstudy.records import Record
from specstudy.workloads import Closed

# From vLLM 0.26.0's log of a run on one H200; the pid and the time don't matter. The third is of --jit-monitor-verbose, by its source.
WATCHED = (
    "(EngineCore pid=2427) INFO 11-30 00:05:34 [jit_monitor.py:79] Kernel JIT monitor activated; monitored JIT compilations during inference "
    "will use mode=warn.\n"
)
TOPK = (
    "(EngineCore pid=2427) WARNING 11-30 00:07:05 [jit_monitor.py:135] Triton kernel JIT compilation during inference: _topk_forward. "
    "This causes a latency spike; consider extending warmup to cover this shape/config.\n"
)
VERBOSE = TOPK.replace("_topk_forward.", "_topk_forward (constexprs={BLOCK=32}; signature={x='*bf16'}; extra_compile_info={}; key='k').")
CUTE = "WARNING 11-30 00:07:06 [jit_monitor.py:135] CuTeDSL JIT compilation during inference: gemm. This causes a latency spike; consider …\n"
OTHER = '(APIServer pid=1) INFO:     127.0.0.1:5 - "GET /metrics HTTP/1.1" 200 OK\n'


def write(path: Path, *lines: str) -> None:
    with path.open("a") as log:
        log.writelines(lines)


def test_what_was_appended_is_counted_and_nothing_twice(tmp_path: Path) -> None:
    path = tmp_path / "log"
    write(path, OTHER, WATCHED, TOPK)
    log = KernelLog(path)
    assert log.compiled() == 0  # the one before we began
    write(path, TOPK, OTHER, VERBOSE, CUTE)
    assert log.compiled() == 3
    assert log.compiled() == 0


def test_a_line_that_is_being_written_is_counted_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "log"
    write(path, WATCHED)
    log = KernelLog(path)
    write(path, TOPK, TOPK[:90])
    assert log.compiled() == 1
    write(path, TOPK[90:])
    assert log.compiled() == 1


def test_only_what_was_appended_is_read(tmp_path: Path) -> None:
    """What was read is overwritten by lines that would count; the log's beginning isn't looked at again."""
    path = tmp_path / "log"
    write(path, WATCHED, OTHER * 5)
    log = KernelLog(path)
    size = path.stat().st_size
    path.write_text((TOPK * 5)[: size - 1] + "\n")
    assert log.compiled() == 0


def test_an_engine_that_does_not_watch_tells_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log"
    write(path, OTHER)
    log = KernelLog(path)
    assert log.compiled() is None
    write(path, WATCHED, TOPK)
    assert log.compiled() == 1


def measured(standin: StandIn, *, warmups: int, after: int, times: int) -> Measured:
    """12 requests after `warmups` warm-ups, at 2 in flight; the stand-in compiles at `times` requests, the first `after` left out."""
    standin.order(chunk_delay_s=0.001, faults={"compile_kernel": {"after": after, "times": times}})
    return measure(standin.server, prompts(12), prompts(warmups, "warm-up"), Closed(2), Sampling(9, 0.0, 5))


def bodies(standin: StandIn) -> list[str]:
    return [str(entry["body"]["messages"][0]["content"]) for entry in standin.journal()]


def count(standin: StandIn) -> tuple[int, int]:
    """(warm-ups, measured requests) that the stand-in was sent."""
    sent = bodies(standin)
    return sum("warm-up" in one for one in sent), sum("measured" in one for one in sent)


@pytest.mark.parametrize(
    ("after", "times", "warmups_sent", "tries", "still"),
    [
        (0, 0, 2, 1, 0),  # nothing is compiled
        (0, 2, 4, 1, 0),  # during the first warm-up round, so there is a second
        (0, 6, 6, 1, 0),  # in all three, after which it goes on
        (2, 1, 2, 2, 0),  # in the first try
        (2, 13, 2, 3, 0),  # in the first two
        (2, 999, 2, 3, 12),  # always: the last try is kept and says so
        (0, 999, 6, 3, 12),
    ],
)
def test_what_is_not_steady_is_measured_again(standin: StandIn, after: int, times: int, warmups_sent: int, tries: int, still: int) -> None:
    found = measured(standin, warmups=2, after=after, times=times)
    assert found.error is None
    assert count(standin) == (warmups_sent, 12 * tries)
    assert (found.figures["tries_discarded"], found.figures["kernels_compiled"]) == (tries - 1, still)
    assert [row.prompt_id for row in found.requests] == [prompt.key[:16] for prompt in prompts(12)]
    assert {row.record_id for row in found.requests} == {found.figures["record_id"]}


def test_each_try_sends_the_same_requests(standin: StandIn) -> None:
    measured(standin, warmups=2, after=2, times=1)
    tries = [entry["body"] for entry in standin.journal() if "measured" in str(entry["body"])]
    by_seed = [sorted(one, key=lambda body: body["seed"]) for one in (tries[:12], tries[12:])]
    assert by_seed[0] == by_seed[1]


def test_a_failed_repeat_is_not_measured_again(standin: StandIn) -> None:
    standin.order(faults={"compile_kernel": {"after": 2}, "http_500": {"after": 5, "times": 1}})
    found = repeat(standin, Closed(2))
    assert found.error is not None
    record = record_of(found, FACTS)
    assert (record.status, record.tries_discarded) == ("failed", 0)
    assert record.kernels_compiled is not None and record.kernels_compiled > 0


def test_an_older_record_says_nothing_of_kernels(standin: StandIn) -> None:
    new = record_of(measured(standin, warmups=2, after=0, times=0), FACTS)
    kept: dict[str, Any] = new.model_dump(mode="json")
    for name in ("kernels_compiled", "tries_discarded", "decode_tokens_per_s", "decode_share"):
        del kept[name]
    old = Record.model_validate(kept)
    assert (old.kernels_compiled, old.tries_discarded, old.decode_tokens_per_s, old.decode_share) == (None, 0, None, None)


def test_of_a_log_that_was_removed_or_cut_short_nothing_is_said(tmp_path: Path) -> None:
    path = tmp_path / "log"
    write(path, WATCHED, OTHER * 5)
    log = KernelLog(path)
    path.write_text(TOPK)
    assert log.compiled() is None  # what stood between is lost
    write(path, TOPK)
    assert log.compiled() == 1
    path.unlink()
    assert log.compiled() is None
    assert KernelLog(path).compiled() is None
