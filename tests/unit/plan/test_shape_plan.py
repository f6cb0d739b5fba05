"""A shape's plan: a server for each acceptance that is imposed, with the workloads that it is published for. Nothing is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from specstudy.analysis.weights import PRECISIONS, kv_bytes_per_token, weights_of
from specstudy.catalog import load_draft, load_profile, load_target
from specstudy.catalog.models import HubSource
from specstudy.catalog.published import published_heads
from specstudy.catalog.shapes import load_shape
from specstudy.plan import Plan, cell_facts, deployment_of, make_plan
from specstudy.serving import check_files
from specstudy.serving.vllm import vllm_argv

ROOT = Path(__file__).parents[3]
GIB = 2**30


@pytest.fixture(autouse=True)
def _this_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPECSTUDY_ROOT", str(ROOT))
    monkeypatch.setenv("SPECSTUDY_CACHE", str(tmp_path))


def planned(profile: str, chapter: str) -> Plan:
    return make_plan(load_profile(profile), chapter, lambda text: None)


def test_one_acceptance_for_both_workloads_is_one_server_a_k() -> None:
    plan = planned("h200-llama-3.3-70b-shape", "04_eagle3")
    assert [server.deployment.label.removeprefix("tuned-llama-3.3-70b-eagle3-shape-") for server in plan.servers] == [
        "tuned",
        "k3-al2.961",
        "k5-al3.618",
        "k7-al3.978",
        "k1-al1.802",
    ]
    for server in plan.servers:
        check_files(server.deployment)
        assert server.deployment.random_weights
    baseline, k3, k5, *_ = plan.servers
    assert {cell.workload for cell in baseline.cells} == {cell.workload for cell in k5.cells} == {"fixed", "sharegpt-mix"}
    assert {cell.acceptance_source for cell in baseline.cells} == {None}
    assert {cell_facts(plan, k3.deployment, cell)["acceptance_source"] for cell in k3.cells} == {
        "llama-3.3-70b/specforge-eagle3/mtbench/k3, at a constant rate by position"
    }
    assert cell_facts(plan, k3.deployment, k3.cells[0])["imposed_acceptance_length"] == 2.961


def test_each_data_set_has_the_server_with_its_own_acceptance() -> None:
    plan = planned("h200-gpt-oss-20b-shape", "05_peagle")
    served = {server.deployment.label: {cell.workload for cell in server.cells} for server in plan.servers}
    # Published: P-EAGLE K=7 3.94 / 3.70 / 3.38 and K=3 3.02 / 2.87 / 2.87; EAGLE-3 K=3 2.65 / 2.70 / 2.24 (HumanEval, MT-Bench, SPEED-Bench code).
    assert served["gpt-oss-20b-peagle-shape-k7-al3.94"] == {"humaneval"}
    assert served["gpt-oss-20b-peagle-shape-k3-al2.87"] == {"mtbench", "speedbench-code"}
    assert served["gpt-oss-20b-eagle3-shape-k3-al2.24"] == {"speedbench-code"}
    assert len(served) == 1 + 3 + 2 + 3 + 1  # none; P-EAGLE K=7 and 3; EAGLE-3 K=3, and K=7 on one data set
    assert {len(server.cells) for server in plan.servers} == {7, 6}  # P-EAGLE K=3 has two data sets with one acceptance, three loads each


@pytest.mark.parametrize("name", ["h200-llama-3.3-70b", "h100-llama-3.3-70b"])
def test_a_hub_profile_makes_command_lines_without_a_download(name: str) -> None:
    profile = load_profile(name)
    for spec in profile.chapters["04_eagle3"].methods:
        path = None if spec.draft is None else "/models/head"
        for k in spec.num_speculative_tokens or (None,):
            bounds = {"prompt_lookup_min": spec.prompt_lookup_min, "prompt_lookup_max": spec.prompt_lookup_max}
            argv = vllm_argv(
                deployment_of(profile, "/models/target", method=spec.method, draft=spec.draft, draft_path=path, num_speculative_tokens=k, **bounds), 8000
            )
            assert ("--tensor-parallel-size" in argv) == name.startswith("h100")
            assert "--load-format" not in argv


def test_the_hub_drafts_are_published_heads_of_that_target() -> None:
    known = {head.repo_id: head for head in published_heads()}
    for name in ("llama-3.3-70b-specforge-eagle3", "llama-3.3-70b-redhat-eagle3"):
        source = load_draft(name).source
        assert isinstance(source, HubSource)
        assert (known[source.repo_id].method, known[source.repo_id].target) == ("eagle3", "Llama-3.3-70B-Instruct")
    assert isinstance(load_target("llama-3.3-70b").source, HubSource)


@pytest.mark.parametrize(("name", "gpu_gib", "gpus"), [("h200-llama-3.3-70b", 139, 1), ("h100-llama-3.3-70b", 79, 2)])
def test_the_weights_and_the_profiles_load_fit_the_gpus(name: str, gpu_gib: int, gpus: int) -> None:
    """In FP8 with a head in bfloat16; 4 GiB a GPU for activations and CUDA graphs."""
    profile = load_profile(name)
    target, head = load_shape("llama-3.3-70b"), load_shape("llama-3.3-70b-eagle3")
    weights = weights_of(target).size_bytes(PRECISIONS["fp8"]) + weights_of(head).size_bytes(PRECISIONS["bf16"])
    left = gpus * (float(str(profile.engine.flags["gpu-memory-utilization"])) * gpu_gib - 4) * GIB - weights
    longest = max(spec.max_prompt_tokens + spec.max_tokens for spec in profile.workloads.values())
    a_token = kv_bytes_per_token(target.architecture, 16) + kv_bytes_per_token(head.architecture, 16)
    assert left > 64 * longest * a_token
    assert (profile.engine.flags.get("tensor-parallel-size", 1)) == gpus


def test_one_h100_has_room_for_a_few_requests_only() -> None:
    """Why that profile has two."""
    target = load_shape("llama-3.3-70b")
    left = (0.92 * 79 - 4) * GIB - weights_of(target).size_bytes(PRECISIONS["fp8"])
    # Weights 72.66 GB; what is left, 1.0 GiB, holds 80 layers x 2 x 8 heads x 128 x 2 bytes = 327,680 bytes a token.
    assert 3000 < left / 327_680 < 3600
    assert kv_bytes_per_token(target.architecture, 16) == 327_680
