"""How near a measured decode step comes to the least time that the machine allows, and what bounds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from pydantic import ValidationError

from specstudy.analysis.cells import Cell
from specstudy.analysis.families import family_of
from specstudy.analysis.roofline import Bound, Server, StepLimit, step_limit, turning_point
from specstudy.analysis.stats import Interval, mean_interval
from specstudy.analysis.weights import PRECISIONS, Precision
from specstudy.catalog import Draft, load_draft, load_target, project_root
from specstudy.catalog.models import PackedSource, PrunedSource, ShapeSource
from specstudy.catalog.shapes import Architecture, Shape, load_shape
from specstudy.errors import ConfigError
from specstudy.records.machine import MachineLimits
from specstudy.records.schema import Record
from specstudy.serving.checks import read_config

# Under half of the limit's rate, most of a step is spent on something that the limit doesn't know.
OVERHEAD_BELOW = 0.5
# Chunks are steps as long as they carry what a step delivers; merged ones carry more.
CHUNK_IS_STEP_WITHIN = 0.05


@dataclass(frozen=True)
class Share:
    """A cell's decode step beside its limit.

    `step_ms` is the median pause between chunks, so that a step which also processed somebody's prompt doesn't count; where
    chunks were merged it is TPOT times acceptance length, which holds those too. `sequences`: requests that were decoding
    at once, on average; `context`: their mean length half-way through the answer, in tokens.
    """

    cell: Cell
    server: Server
    limit: StepLimit
    step_ms: Interval
    sequences: float
    context: float
    machine: MachineLimits

    @property
    def share(self) -> Interval:
        """Limit over measured: 1 would be a step that takes no longer than it must."""
        return self.of_step(self.limit.total_s * 1e3)

    def of_step(self, ms: float) -> Interval:
        """A time in ms over the measured step's; the upper end is inf where the step's lower end isn't above 0."""
        low = self.step_ms.low
        return Interval(ms / self.step_ms.estimate, ms / self.step_ms.high, inf if low <= 0 else ms / low, self.step_ms.n)

    @property
    def bound(self) -> Bound | Literal["overhead"]:
        """What the step's time is spent on for the greater part."""
        return self.limit.target.bound if self.share.estimate >= OVERHEAD_BELOW else "overhead"

    @property
    def turns_at(self) -> int | None:
        """Sequences from which the target's pass would be bound by products, at this K and context; None for never."""
        return turning_point(self.server, self.machine, self.context)


def shares(cells: Sequence[Cell], limits: Mapping[str, MachineLimits]) -> list[Share]:
    """One for each closed-loop cell whose allocation has measured limits and whose target's sizes are known."""
    return [share for cell in cells if (machine := limits.get(cell.allocation)) and (share := share_of(cell, machine))]


def share_of(cell: Cell, machine: MachineLimits) -> Share | None:
    """None for an open loop, a target without a shape, or a cell whose step isn't known, see `step_ms`."""
    server, step = server_of(cell.records[-1]), step_ms(cell)
    if server is None or step is None or not cell.load.concurrency or cell.requests.empty:
        return None
    sequences = cell.load.concurrency * _decoding_share(cell)
    context = float((cell.requests["prompt_tokens"] + cell.requests["completion_tokens"] / 2).mean())
    return Share(cell, server, step_limit(server, machine, max(1, round(sequences)), context), step, sequences, context, machine)


def _decoding_share(cell: Cell) -> float:
    """Part of a request's time after it left the queue: the rest of the requests in flight wait for a slot or for cache."""
    wait, whole = cell.interval("queue_wait_ms_mean"), cell.interval("e2e_ms_mean")
    return 1.0 if wait is None or whole is None else 1 - min(1.0, wait.estimate / whole.estimate)


def step_ms(cell: Cell) -> Interval | None:
    """Milliseconds of a decode step, with the interval over repeats.

    None where no repeat tells, and for a method that drafts in some steps only: neither its acceptance length nor its K is every step's.
    """
    family = family_of(cell.variant)
    if family.method != "none" and not family.drafts_every_step:
        return None
    steps = [step for record in cell.records if (step := _step_ms(record)) is not None]
    return mean_interval(steps) if steps else None


def _step_ms(record: Record) -> float | None:
    delivered = 1.0 if record.method == "none" else record.acceptance_length
    if delivered is None:
        return record.chunk_gap_ms_p50
    carried = record.tokens_per_chunk_mean
    if record.chunk_gap_ms_p50 and carried and abs(carried / delivered - 1) <= CHUNK_IS_STEP_WITHIN:
        return record.chunk_gap_ms_p50
    return None if record.tpot_ms_mean is None else record.tpot_ms_mean * delivered


def server_of(record: Record) -> Server | None:
    """What was served, from the catalog; None where a size isn't there."""
    shape = target_shape(record.target)
    precision = precision_of(record)
    if shape is None or precision is None:
        return None
    kv_bits = 8 if record.kv_cache_dtype.startswith("fp8") else PRECISIONS["float32"].rest_bits if record.dtype == "float32" else 16
    return Server(shape, precision, kv_bits, record.method, draft_shape(record.draft), record.num_speculative_tokens or 0)


def precision_of(record: Record) -> Precision | None:
    """How the weights of a record's server were stored; None for a way that isn't known."""
    name = record.quantization
    if name is None:
        return PRECISIONS["float32" if record.dtype == "float32" else "bf16"]
    if name.startswith("awq"):
        return PRECISIONS["awq"]
    if name == "fp8" and (record.linear_kernel or "").startswith("Marlin"):
        return PRECISIONS["fp8-marlin"]
    return PRECISIONS.get(name)


def target_shape(name: str) -> Shape | None:
    """The sizes of a target of the catalog; None for somebody else's, or one without."""
    try:
        target = load_target(name)
    except ConfigError:
        return None
    given = target.source.shape if isinstance(target.source, ShapeSource) else target.shape
    return None if given is None else load_shape(given)


def draft_shape(name: str | None) -> Shape | None:
    """The sizes of a draft of the catalog; None for somebody else's, or one from the hub: then its passes aren't counted."""
    try:
        draft = None if name is None else load_draft(name)
    except ConfigError:
        return None
    if draft is None:
        return None
    if isinstance(draft.source, ShapeSource):
        return load_shape(draft.source.shape)
    if isinstance(draft.source, PackedSource):
        return _head_shape(draft, draft.source)
    target = target_shape(draft.target)
    if isinstance(draft.source, PrunedSource) and target is not None:
        kinds = target.architecture.layer_types
        kept = {"num_hidden_layers": len(draft.source.layers), "layer_types": kinds and tuple(kinds[layer] for layer in draft.source.layers)}
        return target.model_copy(update={"name": draft.name, "architecture": target.architecture.model_copy(update=kept)})
    return None


def _head_shape(draft: Draft, source: PackedSource) -> Shape | None:
    """From the head's own config.json; None for one without the usual sizes."""
    try:
        config = read_config(str(project_root() / source.path), "draft")
    except ConfigError:
        return None  # a checkout without this head
    sizes = {field: config[field] for field in Architecture.model_fields if field in config}
    layers = config.get("eagle_aux_hidden_state_layer_ids") or config.get("eagle_config", {}).get("eagle_aux_hidden_state_layer_ids") or ()
    try:
        return Shape(
            name=draft.name,
            title=draft.title,
            kind="head",
            licence=draft.licence,
            sources=(f"{source.path}/config.json",),
            architecture=Architecture.model_validate(sizes),
            config={},
            hidden_states_read=len(layers) or None,
        )
    except ValidationError:
        return None
