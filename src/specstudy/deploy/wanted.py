"""What is to be rendered, and what it comes to: the Deployment, where its models lie, its evidence, its times."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, model_validator

from specstudy.catalog import MethodSpec, Profile, load_draft, load_profile, load_target
from specstudy.catalog.models import HubSource, StrictModel
from specstudy.catalog.paths import recorded_dir
from specstudy.deploy.measured import (
    Evidence,
    evidence_for,
    evidence_of,
    good_records,
    gpus_of,
    longest_request_s,
    measured_methods,
    newest_version,
    weights_gib,
)
from specstudy.errors import ConfigError
from specstudy.plan import deployment_of
from specstudy.records.schema import Method
from specstudy.scaling.policy import BEYOND_COLD_STARTS_S, LARGEST_STEP, LONGEST_PERIOD_S
from specstudy.serving import Deployment
from specstudy.serving.vllm import vllm_argv

MODELS = "/models"
HUB_ID = r"^[\w.-]+(/[\w.-]+)?$"  # a repository's name, its owner's before it
SETTLE_S = 10  # for Service, proxies and clients to stop sending; nothing in Kubernetes bounds it, so it is a choice
INT32 = 2**31 - 1  # the API's type for replicas
STOP_S = 30  # for vLLM's processes to end after SIGTERM, once drained


class Wanted(StrictModel):
    """One overlay: a profile's target with one method, as `specstudy deploy render` is told."""

    profile: str
    method: Method = "none"
    draft: str | None = None
    num_speculative_tokens: int | None = Field(default=None, ge=1)
    prompt_lookup_min: int | None = None
    prompt_lookup_max: int | None = None
    tensor_parallel_size: int | None = Field(default=None, ge=1, le=16, description="by default the profile's flag of that name, else 1")
    model_id: str | None = Field(default=None, pattern=HUB_ID, description="hub id of the target, instead of the catalog's place for it")
    draft_id: str | None = Field(default=None, pattern=HUB_ID, description="hub id of the draft")
    engine_version: str | None = Field(default=None, pattern=r"^\d+(\.\d+)+$", description="vLLM's, like 0.26.0; by default the one that was measured")
    unmeasured: bool = Field(default=False, description="render even what no record measured")
    longest_request_s: float | None = Field(default=None, gt=0, allow_inf_nan=False, description="by default from the records")
    weights_gib: float | None = Field(default=None, gt=0, allow_inf_nan=False, description="of target and draft together; by default from the records")
    cold_start_s: float = Field(
        default=120,
        gt=0,
        allow_inf_nan=False,
        description="from a pod's creation to its readiness; the policy's period follows it, and the API server allows none beyond half an hour",
    )
    largest_step: int = Field(default=LARGEST_STEP, ge=2, le=100, description="times the load may rise at once and be answered by one scale-out")
    min_replicas: int = Field(default=1, ge=1)
    max_replicas: int = Field(default=8, ge=1, le=INT32)

    @model_validator(mode="after")
    def _replicas(self) -> Wanted:
        if self.max_replicas < self.min_replicas:
            raise ConfigError("max_replicas", self.max_replicas, f"at least min_replicas, {self.min_replicas}")
        return self

    @model_validator(mode="after")
    def _period(self) -> Wanted:
        longest_s = (LONGEST_PERIOD_S - BEYOND_COLD_STARTS_S) / (self.largest_step - 1)
        if self.cold_start_s > longest_s:
            allowed = f"at most {longest_s:g} with a largest_step of {self.largest_step}: the autoscaler's period follows it, and the API server allows none "
            raise ConfigError("cold_start_s", self.cold_start_s, allowed + f"beyond {LONGEST_PERIOD_S} s")
        return self


@dataclass(frozen=True)
class Resolved:
    """What a Wanted comes to. `hub`: whether a replica fetches a model from the hub. Times in seconds."""

    wanted: Wanted
    profile: Profile
    deployment: Deployment
    evidence: Evidence | None
    engine_version: str
    hub: bool
    longest_request_s: float
    weights_gib: float

    @property
    def gpus(self) -> int:
        """GPUs of one replica, as the command line spreads it."""
        return gpus_of(vllm_argv(self.deployment, 0, self.engine_version))

    @property
    def drain_limit_s(self) -> int:
        """A request may have to wait for a slot as long as another one runs, and then run itself."""
        return math.ceil(2 * self.longest_request_s)

    @property
    def grace_s(self) -> int:
        """terminationGracePeriodSeconds; the preStop hook's time is part of it."""
        return SETTLE_S + self.drain_limit_s + STOP_S


def resolve(wanted: Wanted, results: Path | None = None) -> Resolved:
    """Fill in what the profile and the records say. Raises ConfigError for what can't be served or, unless told, wasn't measured."""
    profile = load_profile(wanted.profile)
    if profile.hardware != "gpu":
        raise ConfigError("profile", profile.name, "a profile for a GPU: a replica asks for nvidia.com/gpu")
    if profile.evidence != "real":
        raise ConfigError("profile", profile.name, "a profile with real weights; this one's are random, it answers nothing")
    if wanted.cold_start_s >= profile.engine.start_timeout_s:
        patience = f"less than {profile.engine.start_timeout_s:g}, the start_timeout_s of {profile.name}, after which the startup probe has a pod killed"
        raise ConfigError("cold_start_s", wanted.cold_start_s, patience)
    records = list(good_records(profile, results or recorded_dir()))
    tried = [_deployment(wanted, profile, env, spec) for env, spec in _offers(wanted, profile)]
    found = [(deployment, evidence) for deployment in tried if (evidence := evidence_for(deployment, records)) is not None]
    if not found and not wanted.unmeasured:
        argued = f"{wanted.method}, draft {wanted.draft}, K {wanted.num_speculative_tokens}, tensor parallel {wanted.tensor_parallel_size}"
        there = f"what a record of {profile.name} measured, and with its command line ({measured_methods(records)})"
        raise ConfigError("method", argued, f"{there}; --unmeasured renders it all the same, and says so in it")
    deployment, evidence = found[0] if found else (tried[0], None)
    near = evidence.records if evidence else tuple(records)
    version = wanted.engine_version or newest_version(near)
    if version is None:
        raise ConfigError("engine_version", None, "vLLM's version: no record of this profile says one")
    if evidence is not None:
        of_version = tuple(record for record in near if record.engine_version == version)  # what one version did is no evidence for another
        if not of_version and not wanted.unmeasured:
            raise ConfigError("engine_version", version, f"a measured one, like {evidence.engine_version}; or --unmeasured")
        evidence, near = (evidence_of(of_version, records), of_version) if of_version else (None, near)
    longest = wanted.longest_request_s or longest_request_s(near, deployment.max_model_len)
    if longest is None:
        raise ConfigError("longest_request_s", None, "seconds: no record of this profile says how long a request takes")
    weights = wanted.weights_gib or weights_gib(near)
    if weights is None:
        raise ConfigError("weights_gib", None, "GiB: no record of this profile says how large the models are, and memory and volume follow from it")
    hub = any(path is not None and not path.startswith("/") for path in (deployment.target_path, deployment.draft_path))
    return Resolved(wanted, profile, deployment, evidence, version, hub, longest, weights)


def _offers(wanted: Wanted, profile: Profile) -> list[tuple[dict[str, str], MethodSpec | None]]:
    """(environment, method as the profile has it) of each chapter that measures the method; the bare method if none does."""
    found: list[tuple[dict[str, str], MethodSpec | None]] = []
    for chapter in profile.chapters.values():
        for spec in chapter.methods:
            k = wanted.num_speculative_tokens
            if (spec.method, spec.draft) == (wanted.method, wanted.draft) and (k is None or k in spec.num_speculative_tokens):
                found.append((chapter.env, spec))
    return found or [({}, None)]


def _deployment(wanted: Wanted, profile: Profile, env: dict[str, str], spec: MethodSpec | None) -> Deployment:
    k = wanted.num_speculative_tokens
    if k is None and spec is not None and len(spec.num_speculative_tokens) == 1:
        k = spec.num_speculative_tokens[0]
    deployment = deployment_of(
        profile,
        _target_place(wanted, profile),
        chapter_env=env,
        method=wanted.method,
        draft=wanted.draft,
        draft_path=_draft_place(wanted, profile),
        num_speculative_tokens=k,
        prompt_lookup_min=wanted.prompt_lookup_min or (spec.prompt_lookup_min if spec else None),
        prompt_lookup_max=wanted.prompt_lookup_max or (spec.prompt_lookup_max if spec else None),
    )
    return _spread(deployment, wanted.tensor_parallel_size)


def _spread(deployment: Deployment, gpus: int | None) -> Deployment:
    """Over so many GPUs by tensor parallelism, whatever the profile's flags say; as they say for None."""
    flag = "tensor-parallel-size"
    stated = {name: value for name, value in deployment.flags.items() if name.replace("_", "-").removeprefix("--") == flag}
    if gpus is None or gpus == int(next(iter(stated.values()), 1)):
        return deployment
    kept = {name: value for name, value in deployment.flags.items() if name not in stated}
    return deployment.model_copy(update={"flags": kept if gpus == 1 else {**kept, flag: gpus}})


def _target_place(wanted: Wanted, profile: Profile) -> str:
    source = load_target(profile.target).source
    if wanted.model_id is not None:
        return wanted.model_id
    return source.repo_id if isinstance(source, HubSource) else f"{MODELS}/{profile.target}"


def _draft_place(wanted: Wanted, profile: Profile) -> str | None:
    if wanted.draft is None:
        if wanted.draft_id is not None:
            raise ConfigError("draft_id", wanted.draft_id, "a draft too: the id says only where it lies")
        return None
    known = load_draft(wanted.draft)
    if (known.method, known.target) != (wanted.method, profile.target):
        raise ConfigError("draft", wanted.draft, f"a draft for {wanted.method} of {profile.target}; this one is for {known.method} of {known.target}")
    if wanted.draft_id is not None:
        return wanted.draft_id
    return known.source.repo_id if isinstance(known.source, HubSource) else f"{MODELS}/{wanted.draft}"
