"""The scaling lab as chapter 08 runs it: on a CPU over paced stand-ins, on a GPU over vLLM replicas that share it, or on the user's cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import specstudy
from specstudy.catalog import Draft, Profile, load_draft, load_profile, load_target
from specstudy.catalog.materialise import target_folder
from specstudy.deploy import drain
from specstudy.deploy.rules import rule_groups
from specstudy.errors import ConfigError
from specstudy.measure import check_device
from specstudy.plan import deployment_of
from specstudy.progress import tell
from specstudy.records.schema import Method
from specstudy.scaling.balancer import Balancer
from specstudy.scaling.binaries import need
from specstudy.scaling.experiment import LoadSpec, Place, Replica, run_load
from specstudy.scaling.lab import Lab, LabSpec, lab
from specstudy.scaling.objects import APP, PORT
from specstudy.scaling.policy import HpaPolicy
from specstudy.scaling.record import ScalingRun, ScalingStore, ServerKind
from specstudy.scaling.scenarios import SHIPPED, tried_policy
from specstudy.serving import check_files
from specstudy.serving.vllm import vllm_argv, vllm_env, vllm_version
from specstudy.workloads.prompts import Prompt

WINDOW_S, SLOTS_WINDOW_S = 15.0, 60.0  # of the shipped recording rules
DRAIN_LIMIT_S = 60
# A request of the stand-in takes 40 ms to its first token and 19 ms for each of the other 29: 0.59 s in a slot.
STANDIN_SLOTS, STANDIN_TOKENS, STANDIN_START_S = 4, 30, 5.0
STANDIN_PACE = ("--first-ms", "40", "--token-ms", "19", "--cold-start-s", f"{STANDIN_START_S:g}")
# Two slots of four in use on one replica, then six: three replicas' worth. Of slower ones fewer, as the floor allows for fewer.
STANDIN_RATE = 3.4


@dataclass(frozen=True)
class Wanted:
    """One run. `high_s`: how long the load is tripled. `rate`: requests/s before and after; by default the profile's.

    `server`: what serves; by default stand-ins for a CPU's profile, vLLM for a GPU's. `slowdown`: how much slower tokens come from a full replica
    than from one a quarter full; by default the largest that the records have, and 1 for stand-ins, whose pace it sets.
    """

    profile: str = "cpu-smollm2"
    policy: str = SHIPPED
    method: Method = "none"
    draft: str | None = None
    num_speculative_tokens: int | None = None
    low_s: float = 60
    high_s: float = 180
    after_s: float = 180
    rate: float | None = None
    sync_s: float = 15
    seed: int = 0
    server: ServerKind | None = None
    max_replicas: int = 8
    slowdown: float | None = None

    def stages(self, rate: float) -> tuple[tuple[float, float], ...]:
        """1x, 3x, 1x."""
        return (rate, self.low_s), (round(3 * rate, 6), self.high_s), (rate, self.after_s)


@dataclass(frozen=True)
class Prepared:
    """Everything that a run needs, checked before anything starts."""

    wanted: Wanted
    spec: LabSpec
    replica: Replica
    load: LoadSpec

    @property
    def policy(self) -> HpaPolicy:
        """What the autoscaler is told."""
        return self.spec.policy

    @property
    def label(self) -> str:
        """Policy and speculation method, for logs and their folder."""
        return self.policy.name if self.replica.method == "none" else f"{self.policy.name}-{self.replica.method}-k{self.replica.num_speculative_tokens}"


def prepare(wanted: Wanted) -> Prepared:
    """Stand-ins or vLLM, as `wanted` says. Raises ConfigError or AssetError; nothing is started."""
    profile = load_profile(wanted.profile)
    server = wanted.server or ("stand-in" if profile.hardware == "cpu" else "real")
    if server == "real":
        return _vllm(wanted, profile)
    if wanted.method != "none" or wanted.draft is not None:
        name, given = ("method", wanted.method) if wanted.method != "none" else ("draft", wanted.draft)
        raise ConfigError(name, given, "none with stand-ins, which hold no model; vLLM serves with --server real")
    return _standin(wanted)


def _standin(wanted: Wanted) -> Prepared:
    argv = ("python", "-m", "specstudy.scaling.standin", "--port", str(PORT), "--served-model-name", "words", "--max-num-seqs", str(STANDIN_SLOTS))
    slowdown = 1.0 if wanted.slowdown is None else wanted.slowdown
    pace = STANDIN_PACE if slowdown == 1 else (*STANDIN_PACE, "--slowdown", f"{slowdown:g}")
    replica = Replica("stand-in", "words", "paced stand-in", specstudy.__version__, STANDIN_SLOTS, argv + pace)
    spec = _spec(wanted, replica, {}, slowdown, STANDIN_START_S)
    load = LoadSpec(wanted.stages(wanted.rate or STANDIN_RATE / slowdown), (Prompt.user("Say something."),), STANDIN_TOKENS, seed=wanted.seed)
    return Prepared(wanted, spec, replica, load)


def _vllm(wanted: Wanted, profile: Profile) -> Prepared:
    from specstudy.book.lab_vllm import lab_profile, lab_prompts, recorded_slowdown, usual_rate

    found, start_s = lab_profile(profile)
    folder = target_folder(load_target(found.target), tell)
    deployment = deployment_of(
        found,
        str(folder),
        method=wanted.method,
        draft=wanted.draft,
        draft_path=_draft_path(wanted, found.target),
        num_speculative_tokens=wanted.num_speculative_tokens,
    )
    check_files(deployment)
    version = vllm_version()
    if version is None:
        raise ConfigError("engine", "vllm", "an engine that is installed in this environment")
    argv = tuple(vllm_argv(deployment, PORT))
    slots = found.engine.max_num_seqs
    replica = Replica("real", found.target, "vllm", version, slots, argv, wanted.method, wanted.draft, wanted.num_speculative_tokens)
    prompts, max_tokens = lab_prompts(found)
    slowdown = recorded_slowdown(found, profile.engine.max_num_seqs) if wanted.slowdown is None else wanted.slowdown
    spec = _spec(wanted, replica, vllm_env(deployment), slowdown, start_s, found.engine.start_timeout_s)
    load = LoadSpec(wanted.stages(wanted.rate or usual_rate(found, slowdown)), prompts, max_tokens, seed=wanted.seed)
    return Prepared(wanted, spec, replica, load)


def check_draft(wanted: Wanted, target: str) -> Draft | None:
    """The draft that `wanted` names, None for none. Raises ConfigError for one that isn't known, or is for another method or target."""
    if wanted.draft is None:
        return None
    known = load_draft(wanted.draft)
    if (known.method, known.target) != (wanted.method, target):
        allowed = f"a draft for {wanted.method} of {target}; this one is for {known.method} of {known.target}"
        raise ConfigError("draft", wanted.draft, allowed)
    return known


def _draft_path(wanted: Wanted, target: str) -> str | None:
    from specstudy.catalog.materialise import draft_folder

    known = check_draft(wanted, target)
    return None if known is None else str(draft_folder(known, tell))


def _spec(wanted: Wanted, replica: Replica, env: dict[str, str], slowdown: float, start_s: float, start_timeout_s: float = 60) -> LabSpec:
    """`slowdown`, `start_s`: what the policy takes a full replica's, and a start, to be. `start_timeout_s`: when a start counts as failed."""
    policy = tried_policy(wanted.policy, replica.slots, start_s, slowdown).with_at_most(wanted.max_replicas)
    wait_ms = next((one.target for one in policy.metrics if one.kind == "Value"), 500.0)
    pre_stop = ("python", str(Path(drain.__file__)), "2", str(DRAIN_LIMIT_S), f"http://127.0.0.1:{PORT}")
    return LabSpec(policy, replica.argv, pre_stop, rule_groups(wait_ms), env, sync_s=wanted.sync_s, start_s=start_timeout_s)


def place_of(running: Lab) -> Place:
    """The lab as an experiment's place."""
    spec = running.spec
    periods = spec.sync_s, WINDOW_S, SLOTS_WINDOW_S, spec.scrape_s
    return Place(
        running.cluster, APP, APP, running.prometheus.query, partial(Balancer, running.ready), *periods, running.raise_if_dead, lambda: running.agent.restarts
    )


def run_lab(wanted: Sequence[Wanted], results: Path) -> list[ScalingRun]:
    """Run each in a lab of its own and keep it under `results`/PROFILE. Raises ConfigError before anything starts."""
    prepared, binaries = [prepare(one) for one in wanted], need()
    profiles = [load_profile(one.wanted.profile) for one in prepared]
    for one, profile in zip(prepared, profiles, strict=True):
        if one.replica.server == "real":
            check_device(profile.hardware)
    runs = []
    for one, profile in zip(prepared, profiles, strict=True):
        folder = results / profile.name
        with ScalingStore.opened(folder) as store:
            minutes = sum(length for _, length in one.load.stages) / 60
            logs = folder / "logs" / f"lab-{one.label}"
            tell(f"{one.label}: {minutes:.1f} min of load; logs: {logs}")
            with lab(binaries, logs, one.spec) as running:
                finished = run_load(place_of(running), one.replica, one.policy, one.load, profile=folder.name)
            store.keep(finished.run, finished.requests, finished.samples)
            runs.append(finished.run)
            tell(summary(finished.run))
    return runs


def summary(run: ScalingRun) -> str:
    """One line on a finished run."""

    def seconds(value: float | None) -> str:
        return "never" if value is None else f"{value:.0f} s"

    facts: dict[str, Any] = {
        "decided": seconds(run.decided_s),
        f"{run.replicas_needed} ready": seconds(run.enough_ready_s),
        "recovered": seconds(run.recovered_s),
        "most": run.replicas_max,
        "fewest while high": run.replicas_low_while_high,
        "at the minimum again": seconds(run.back_to_min_s),
        "scale-downs": run.scale_downs,
        "lost": run.failed,
        "within the SLO": f"{run.goodput_share or 0:.1%}",
    }
    return f"{run.policy.name}: " + ", ".join(f"{name} {value}" for name, value in facts.items())
