"""`specstudy trace` from the plan to the file: which servers, at which load, what is kept of a failure. The profiler itself is vLLM's; see tests/live."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.standin.world import CHAPTER, PROFILE, World

from specstudy import tracing
from specstudy.catalog import load_profile
from specstudy.errors import ConfigError, MeasurementError, RecordError, StudyError
from specstudy.measure import Sampling
from specstudy.measure.trace import Traced
from specstudy.records.trace import KernelTime, read_traces
from specstudy.serving import Server
from specstudy.workloads import Prompt

KERNELS = (KernelTime(name="gemm", kind="matrix products", launches=2, ms=1.5), KernelTime(name="x", kind="other", launches=1, ms=0.25))
Asked = list[tuple[str, int, int]]


@pytest.fixture
def asked(world: World, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """What the profiler was asked for: draft tokens in the server's command line, prompts, max_tokens. The world's servers count as a GPU's."""
    world.profile["hardware"] = "gpu"
    world.write()
    found: Asked = []

    def trace(server: Server, prompts: Sequence[Prompt], folder: Path, how: Sampling) -> Traced:
        assert folder.is_dir() and "--profiler-config" in server.argv
        found.append(("ngram" if any("ngram" in word for word in server.argv) else "none", len(prompts), how.max_tokens))
        if world.options.get("trace-fails") and found[-1][0] == "none":
            raise MeasurementError("the trace marks no two decode steps in a row")
        return Traced(20, 2.0, 0.25, KERNELS)

    monkeypatch.setattr(tracing, "check_device", lambda hardware: None)
    monkeypatch.setattr(tracing, "trace", trace)
    return found


def folder_of(world: World) -> Path:
    return world.root / "results" / PROFILE


def test_each_server_of_the_chapter_is_traced_at_the_load_and_kept(world: World, asked: Asked) -> None:
    told = tracing.trace_chapter(load_profile(PROFILE), CHAPTER, folder_of(world), concurrency=2)
    # 12 steps are skipped at 2 in flight, 4 are cold, 24 traced, 12 to spare; ngram drafts 2 a step. The prompts leave room for 192 tokens.
    assert asked == [("none", 2, 52), ("ngram", 2, 156)]
    kept = read_traces(folder_of(world), CHAPTER, frozenset({told[0].allocation}))
    assert kept == told
    assert [(one.label, one.concurrency, one.workload, one.step_ms, one.idle_ms) for one in kept] == [
        ("baseline", 2, "words", 2.0, 0.25),
        ("ngram K=2", 2, "words", 2.0, 0.25),
    ]
    assert kept[0].ms_of("matrix products") == 1.5 and kept[0].ms_of("attention") == 0
    assert all(one.tpot_ms > 0 and "--profiler-config" not in one.server_argv for one in kept)
    assert read_traces(folder_of(world), CHAPTER, frozenset({"another"})) == []
    assert read_traces(folder_of(world), "04_eagle3", frozenset({told[0].allocation})) == []


def test_a_server_that_isnt_traced_costs_its_own_trace_only(world: World, asked: Asked) -> None:
    world.options["trace-fails"] = {"yes": True}
    with pytest.raises(StudyError, match=r"1 of 2 servers weren't traced.*\nnone: the trace marks no two decode steps"):
        tracing.trace_chapter(load_profile(PROFILE), CHAPTER, folder_of(world))
    assert [path.name.split("-", 3)[3] for path in folder_of(world).glob("trace-*.json")] == ["ngram-k2-words-c1.json"]


def test_what_cant_be_traced_is_refused_before_anything_starts(world: World, asked: Asked) -> None:
    with pytest.raises(ConfigError, match="concurrency: got 7; known: 1, 2"):
        tracing.trace_chapter(load_profile(PROFILE), CHAPTER, folder_of(world), concurrency=7)
    world.profile["hardware"] = "cpu"
    world.write()
    with pytest.raises(ConfigError, match="a profile for a GPU"):
        tracing.trace_chapter(load_profile(PROFILE), CHAPTER, folder_of(world))
    assert asked == [] and world.requests_served() == 0


def test_a_file_that_is_no_trace_is_told(tmp_path: Path) -> None:
    (tmp_path / "trace-c-a-none-chat-c1.json").write_text("{}")
    with pytest.raises(RecordError, match="holds no trace"):
        read_traces(tmp_path, "c", frozenset({"a"}))
