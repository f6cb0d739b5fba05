"""What ships is what was measured: the records' own command lines against the rendered containers'."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from specstudy.analysis import speedups
from specstudy.catalog import load_profile, recorded_dir
from specstudy.deploy import objects
from specstudy.deploy.measured import good_records, gpus_of, longest_request_s, newest_version, placeless, weights_gib
from specstudy.deploy.render import resolved, shipped_overlays, slower
from specstudy.deploy.wanted import Wanted, resolve
from specstudy.errors import ConfigError
from specstudy.records import Record
from specstudy.study import open_study

OVERLAYS = shipped_overlays()
EAGLE3 = {"profile": "h200-smollm2", "method": "eagle3", "draft": "smollm2-135m-eagle3", "num_speculative_tokens": 3}


def records() -> list[Record]:
    return list(good_records(load_profile("h200-smollm2"), recorded_dir()))


def without_places(words: list[str]) -> list[str]:
    """The words after the interpreter without what says where a model lies or a server listens, found here by other means than the product's."""
    kept, skip = [], False
    for word in words[1:]:
        if skip:
            skip = False
        elif word in ("--model", "--host", "--port"):
            skip = True
        elif word.startswith("{"):
            kept.append(str(sorted((key, str(value)) for key, value in json.loads(word).items() if key != "model")))
        else:
            kept.append(word)
    return kept


@pytest.mark.parametrize("name", [name for name, wanted in OVERLAYS.items() if not wanted.unmeasured])
def test_a_container_runs_the_command_line_of_a_record(name: str) -> None:
    found = resolve(OVERLAYS[name])
    container = objects.deployment(found)["spec"]["template"]["spec"]["containers"][0]
    ours = without_places([*container["command"], *container["args"]])
    same = [one for one in records() if without_places(list(one.server_argv)) == ours]
    assert same
    assert {one.method for one in same} == {found.deployment.method}
    assert container["image"] == f"vllm/vllm-openai:v{max(one.engine_version for one in same)}"


@pytest.mark.parametrize("name", OVERLAYS)
def test_what_was_not_measured_says_so(name: str) -> None:
    found = resolve(OVERLAYS[name])
    notes = objects.deployment(found)["spec"]["template"]["metadata"]["annotations"]
    assert (notes["specstudy/evidence"] == "not measured") == (found.evidence is None)
    if not OVERLAYS[name].unmeasured:
        assert notes["specstudy/evidence"].startswith("real: ")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"num_speculative_tokens": 9}, "method"),
        ({"tensor_parallel_size": 3}, "method"),
        ({"engine_version": "0.32.0"}, "engine_version"),
        ({"draft": "nope"}, "draft"),
        ({"method": "peagle"}, "draft"),
        ({"method": "none", "draft": None, "num_speculative_tokens": None, "draft_id": "a/b"}, "draft_id"),
        ({"profile": "cpu-smollm2"}, "profile"),
        ({"profile": "nope"}, "profile"),
    ],
)
def test_what_no_record_measured_is_refused(changes: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigError) as refused:
        resolve(Wanted.model_validate({**EAGLE3, **changes}))
    assert refused.value.field == field


def test_it_is_rendered_when_told() -> None:
    found = resolve(Wanted.model_validate({**EAGLE3, "num_speculative_tokens": 9, "unmeasured": True}))
    assert found.evidence is None
    assert found.deployment.num_speculative_tokens == 9


def test_what_one_version_did_is_no_evidence_for_another() -> None:
    other = Wanted.model_validate({**EAGLE3, "engine_version": "0.32.0", "unmeasured": True})
    notes = objects.deployment(resolve(other))["metadata"]["annotations"]
    assert notes["specstudy/evidence"] == "not measured"
    same = objects.deployment(resolve(other.model_copy(update={"engine_version": "0.26.0"})))["metadata"]["annotations"]
    assert same["specstudy/evidence"].startswith("real: 04_eagle3, vllm 0.26.0")


def test_weights_from_another_place_are_named() -> None:
    notes = objects.deployment(resolve(Wanted.model_validate({**EAGLE3, "model_id": "a/target", "draft_id": "a/draft"})))["metadata"]["annotations"]
    assert notes["specstudy/configuration"] == "h200-smollm2 smollm2-135m-eagle3-k3, target from a/target, draft from a/draft"


def test_a_place_is_blanked_and_nothing_else() -> None:
    argv = ["python", "-m", "x", "--model", "/a", "--host", "h", "--port", "1", "--speculative-config", '{"model": "/b", "method": "eagle3"}', "--dtype", "y"]
    blanked = '{"method": "eagle3", "model": "*"}'
    assert placeless(argv) == ("-m", "x", "--model", "*", "--host", "*", "--port", "*", "--speculative-config", blanked, "--dtype", "y")


def test_the_longest_request_fills_the_context_at_the_slowest_pace() -> None:
    """By hand: 200 ms to the first token, then 6,000 tokens at 10 ms: 60.2 s, in whole minutes 2; 5,980 tokens are exactly one."""
    one, other = records()[:2]
    slow = one.model_copy(update={"ttft_ms_p99": 200.0, "tpot_ms_p99": 4.0, "tpot_ms_p90": 99.0})
    slower = other.model_copy(update={"ttft_ms_p99": None, "ttft_ms_p90": 100.0, "tpot_ms_p99": None, "tpot_ms_p90": 10.0})
    assert (longest_request_s([slow, slower], 6000), longest_request_s([slow, slower], 5980)) == (120, 60)
    assert longest_request_s([], 1000) is None


def test_gpus_are_counted_as_the_engine_spreads_them() -> None:
    argv = ["python", "--tensor-parallel-size", "2", "--pipeline-parallel-size", "3", "--dtype", "bfloat16"]
    assert (gpus_of(argv), gpus_of(argv[:3]), gpus_of(argv[:1])) == (6, 2, 1)


def test_weights_of_a_server_over_several_gpus_are_those_of_all_of_them() -> None:
    one = records()[0].model_copy(update={"weights_gib": 34.0})
    two = one.model_copy(update={"server_argv": [*one.server_argv, "--tensor-parallel-size", "2"]})
    assert (weights_gib([one]), weights_gib([one, two]), weights_gib([])) == (34.0, 68.0, None)


def test_the_newest_version_is_the_newest_and_not_the_last_by_letters() -> None:
    older, newer = (records()[0].model_copy(update={"engine_version": version}) for version in ("0.9.1", "0.26.0"))
    assert newest_version([newer, older]) == "0.26.0"


@pytest.mark.parametrize(
    ("given", "words"), [(None, ["--tensor-parallel-size", "2"]), (2, ["--tensor-parallel-size", "2"]), (4, ["--tensor-parallel-size", "4"]), (1, [])]
)
def test_the_profiles_tensor_parallelism_holds_unless_another_is_given(given: int | None, words: list[str]) -> None:
    fields = {"profile": "h100-llama-3.3-70b", "unmeasured": True, "engine_version": "0.26.0", "longest_request_s": 60, "weights_gib": 68}
    found = resolve(Wanted.model_validate({**fields, "tensor_parallel_size": given}))
    args = objects.arguments(found)
    assert [word for at, word in enumerate(args) if "--tensor-parallel-size" in (word, args[at - 1])] == words
    assert found.gpus == int(words[-1] if words else 1)


def test_a_manifest_says_what_was_measured_over_the_baseline() -> None:
    """The figures are those of the chapter's own table."""
    found = {name: resolve(one).evidence for name, one in shipped_overlays().items() if name in ("none", "eagle3", "ngram")}
    assert all(found.values())
    assert found["none"] is not None and found["none"].over_baseline == ""
    eagle3, ngram = found["eagle3"], found["ngram"]
    assert eagle3 is not None and ngram is not None
    expected = [
        one
        for one in speedups(open_study("04_eagle3", "h200-smollm2").cells)
        if (one.cell.variant.draft, one.cell.variant.num_speculative_tokens) == ("smollm2-135m-eagle3", 5)
    ]
    assert eagle3.over_baseline == ", ".join(
        f"{one.cell.load.label} {one.ratio.estimate:.2f} ({one.ratio.low:.2f} to {one.ratio.high:.2f})" for one in expected
    )
    assert "under 0.95" in ngram.over_baseline
    assert [line.partition(":")[0] for line in slower(resolved({name: OVERLAYS[name] for name in ("eagle3", "ngram")}))] == ["ngram"]


def test_a_manifest_says_that_another_head_of_that_name_was_measured() -> None:
    found = resolve(OVERLAYS["eagle3"])
    assert found.evidence is not None
    name = found.evidence.records[0].draft_folder
    assert name is not None
    argv = tuple(word.replace(name, f"smollm2-135m-eagle3-{'0' * 16}") for word in found.evidence.records[0].server_argv)
    other = [one.model_copy(update={"server_argv": argv}) for one in found.evidence.records]
    changed = replace(found, evidence=replace(found.evidence, records=tuple(other)))
    said = objects.deployment(changed)["metadata"]["annotations"]["specstudy/evidence"]
    assert said.endswith(", with other files of smollm2-135m-eagle3 than are shipped now")
    elsewhere = replace(changed, wanted=changed.wanted.model_copy(update={"draft_id": "somebody/head"}))
    assert "other files" not in objects.deployment(elsewhere)["metadata"]["annotations"]["specstudy/evidence"]
