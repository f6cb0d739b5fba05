"""Imposed acceptance: the rates that make up a length, and which published row a profile may name."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from specstudy.catalog import MethodSpec, load_profile
from specstudy.catalog.imposed import constant_rate, imposed, rates_by_position
from specstudy.catalog.published import published_acceptance
from specstudy.errors import ConfigError
from specstudy.serving import deploy
from specstudy.serving.vllm import speculative_config

DATA = Path(__file__).parents[3] / "data"
FAMILY = "llama-3.3-70b/specforge-eagle3/mtbench"


@pytest.fixture(autouse=True)
def _this_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECSTUDY_ROOT", str(DATA.parent))


@pytest.mark.parametrize(
    ("length", "k", "rate"),
    [
        (1.5, 1, 0.5),  # 1 + p
        (1.75, 2, 0.5),  # 1 + 0.5 + 0.25
        (1.875, 3, 0.5),
        (3.439, 3, 0.9),  # 1 + 0.9 + 0.81 + 0.729
        (1.0, 5, 0.0),
        (6.0, 5, 1.0),
    ],
)
def test_the_constant_rate_by_hand(length: float, k: int, rate: float) -> None:
    assert constant_rate(length, k) == pytest.approx(rate, abs=1e-9)
    assert 1 + sum(rates_by_position(rate, k)) == pytest.approx(length)


@pytest.mark.parametrize(("length", "k"), [(0.99, 3), (4.01, 3)])
def test_a_length_that_k_cannot_have_is_refused(length: float, k: int) -> None:
    with pytest.raises(ConfigError, match="from 1 to K \\+ 1"):
        constant_rate(length, k)


def spec(**more: Any) -> MethodSpec:
    fields = {"method": "eagle3", "draft": "d", "num_speculative_tokens": [3], "imposes": {"fixed": FAMILY}, **more}
    return MethodSpec.model_validate(fields)


def test_a_published_length_is_taken_as_it_is_and_named() -> None:
    """2.961 and 3.618 are SpecForge's own figures for MT-Bench with 3 and 5 steps (its raw data, batch 8)."""
    found = imposed(spec(), "fixed", 3)
    assert found.acceptance_length == 2.961
    assert 1 + sum(found.rates) == pytest.approx(2.961)
    assert found.source == f"{FAMILY}/k3, at a constant rate by position"
    assert imposed(spec(), "fixed", 5).acceptance_length == 3.618


def test_published_positions_are_taken_as_they_are_with_the_length_that_they_make_up() -> None:
    """AMD publishes 0.76, 0.56, 0.43 for K = 3 beside a mean of 2.80: 1 + 0.76 + 0.56 + 0.43 = 2.75."""
    found = imposed(spec(imposes={"fixed": "minimax-m3/amd-eagle3.1/speedbench"}), "fixed", 3)
    assert (found.rates, found.acceptance_length) == ((0.76, 0.56, 0.43), 2.75)
    assert found.source == "minimax-m3/amd-eagle3.1/speedbench/k3, by position as published"


def test_every_published_length_can_be_imposed() -> None:
    """As vLLM takes it: K shares from 0 to 1 that don't rise, here rounded as they are sent, and make up the length."""
    for row in published_acceptance():
        k = row.num_speculative_tokens
        if k is None or row.method not in ("eagle3", "eagle3.1", "peagle"):
            continue
        found = imposed(spec(method=row.method.removesuffix(".1"), num_speculative_tokens=[k], imposes={"fixed": row.id.rpartition("/")[0]}), "fixed", k)
        fields = {"target": "t", "target_path": "/t", "hardware": "gpu", "max_model_len": 64, "max_num_seqs": 1, "random_weights": True}
        fields |= {"method": row.method.removesuffix(".1"), "draft": "d", "draft_path": "/d", "num_speculative_tokens": k}
        deployment = deploy(**fields, imposed_acceptance_length=found.acceptance_length, imposed_acceptance_rates=found.rates)
        config = speculative_config(deployment)
        assert config is not None
        rates = config["synthetic_acceptance_rates"]
        assert isinstance(rates, list) and len(rates) == k
        assert all(0 <= later <= earlier <= 1 for earlier, later in pairwise([1.0, *rates]))
        assert 1 + sum(rates) == pytest.approx(row.acceptance_length, abs=0.06), row.id


def test_another_k_is_modelled_from_a_row_and_says_so() -> None:
    found = imposed(spec(modelled={1: 3}), "fixed", 1)
    # 1 + p + p^2 + p^3 = 2.961 has p = 0.80199: 1 + 0.80199 + 0.64319 + 0.51583 = 2.96101.
    assert found.acceptance_length == pytest.approx(1.802, abs=1e-9)
    assert found.rates == pytest.approx((0.80199,), abs=1e-5)
    assert found.source == f"modelled from {FAMILY}/k3 at its constant rate, 0.802"


@pytest.mark.parametrize(
    ("more", "workload", "k", "says"),
    [
        ({}, "fixed", 2, "imposes: got .*mtbench/k2.*there are k3, k5, k7"),
        ({}, "mix", 3, "imposes: got .'fixed'.*published rows for workload mix"),
        ({"imposes": {"fixed": "nobody/knows/this"}}, "fixed", 3, "there are none"),
        ({"method": "peagle"}, "fixed", 3, "a published row of method peagle; there are none"),
        ({"modelled": {5: 3}}, "fixed", 5, "modelled: got .5: 3.; only K without a published row"),
        ({"modelled": {1: 4}}, "fixed", 1, "mtbench/k4"),
    ],
)
def test_what_is_not_published_is_refused(more: dict[str, Any], workload: str, k: int, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        imposed(spec(**more), workload, k)


def profile(tmp_path: Path, name: str, change: Any) -> Path:
    content = yaml.safe_load((DATA / "profiles" / f"{name}.yaml").read_text())
    change(content)
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def eagle3(content: dict[str, Any]) -> dict[str, Any]:
    method: dict[str, Any] = next(one for one in content["chapters"]["04_eagle3"]["methods"] if one["method"] == "eagle3")
    return method


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("h200-llama-3.3-70b-shape", lambda c: eagle3(c).pop("imposes"), "imposes: got None; published rows for workload fixed"),
        ("h200-llama-3.3-70b-shape", lambda c: eagle3(c)["imposes"].pop("sharegpt-mix"), "published rows for workload sharegpt-mix"),
        ("h200-llama-3.3-70b-shape", lambda c: eagle3(c).pop("modelled"), "mtbench/k1"),
        ("h200-llama-3.3-70b-shape", lambda c: eagle3(c)["imposes"].update(fixd=FAMILY), "imposes: got 'fixd'; known: fixed, sharegpt-mix"),
        ("h200-llama-3.3-70b-shape", lambda c: eagle3(c)["modelled"].update({9: 3}), "modelled: got 9; one of the method's K: 3, 5, 7, 1"),
        (
            "h200-llama-3.3-70b-shape",
            lambda c: eagle3(c)["imposes"].update(fixed="gpt-oss-20b/redhat-eagle3/mtbench"),
            "imposes.fixed: got 'gpt-oss-20b/redhat-eagle3/mtbench'; published rows of the target's own shape: llama-3.3-70b/",
        ),
        ("h200-smollm2", lambda c: eagle3(c).update(imposes={"chat": FAMILY}), "acceptance is imposed on drafts with random weights alone"),
        ("h200-llama-3.3-70b-shape", lambda c: c.update(evidence="real"), "workloads.fixed.dataset: got 'random'; a dataset of texts"),
        ("h200-smollm2", lambda c: c.update(evidence="shape"), "random or sharegpt_lengths: random weights can't read"),
        ("h200-llama-3.3-70b-shape", lambda c: c.update(target="smollm2-135m-instruct"), "target: got 'gguf_wheel'; a source of kind shape"),
        ("h200-smollm2", lambda c: c.update(target="llama-tiny-shape"), "target: got 'shape'; a source of kind shape for evidence shape, and only there"),
    ],
)
def test_a_shape_imposes_and_a_real_profile_never_does(tmp_path: Path, name: str, change: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_profile(str(profile(tmp_path, name, change)))
