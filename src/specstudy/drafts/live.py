"""What a head really accepts, on a running server, against what its card says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from specstudy.drafts.card import Acceptance, Card
from specstudy.drafts.check import Finding
from specstudy.errors import ConfigError, MeasurementError
from specstudy.measure import StreamClient, drive, read_counters, run_async
from specstudy.measure.counters import Counters, read_settled
from specstudy.serving import Deployment, Server, launch
from specstudy.serving.vllm import vllm_version
from specstudy.workloads import Closed, Prompt

ALLOWED_SHORTFALL = 0.10
ENOUGH_DRAFTS = 200
CHECK = "acceptance"


def claim_of(card: Card, workloads: Sequence[str]) -> Acceptance:
    """The greedy acceptance that the card claims for one of `workloads`, the one with the fewest requests at once.

    Raises ConfigError for a card without one.
    """
    fitting = [one for one in card.acceptance if one.workload in workloads and one.temperature == 0]
    if not fitting:
        claimed = sorted({f"{one.workload} at T = {one.temperature:g}" for one in card.acceptance})
        raise ConfigError("card: acceptance", claimed, f"a greedy acceptance length for a workload of the profile: {', '.join(workloads)}")
    return min(fitting, key=lambda one: (one.concurrency, -one.num_speculative_tokens))


def measured_acceptance(server: Server, prompts: Sequence[Prompt], *, concurrency: int, max_tokens: int) -> Counters:
    """What the server's counters gain while it answers `prompts` greedily.

    Raises MeasurementError when a request fails, or when the server counts requests that aren't ours.
    """

    async def load() -> list[str]:
        async with StreamClient(server.base_url, server.model) as client:
            bodies = [client.body(prompt, max_tokens=max_tokens, temperature=0, seed=0) for prompt in prompts]
            done = await drive(client, bodies, Closed(concurrency), lambda: not server.ended())
        return [outcome.error for outcome in done.outcomes if outcome.error is not None]

    before = read_counters(server.base_url)
    errors = run_async(load())
    if errors:
        server.raise_if_dead()
        raise MeasurementError(f"{len(errors)} of {len(prompts)} requests failed; the first: {errors[0]}")
    return read_settled(server.base_url, before, len(prompts)).since(before)


def check_acceptance(deployment: Deployment, prompts: Sequence[Prompt], claim: Acceptance, log_path: Path, *, max_tokens: int, timeout_s: float) -> Finding:
    """Serve the head, and compare its acceptance length with the card's at the same K on the same workload.

    It fails when it is more than ALLOWED_SHORTFALL below; from fewer than ENOUGH_DRAFTS drafts nothing is
    concluded. Raises ServerError when the server doesn't start, MeasurementError when its figures can't be trusted.
    """
    with launch(deployment, log_path, timeout_s=timeout_s) as server:
        change = measured_acceptance(server, prompts, concurrency=min(8, deployment.max_num_seqs), max_tokens=max_tokens)
    return acceptance_finding(change, claim)


def acceptance_finding(change: Counters, claim: Acceptance) -> Finding:
    """The counters' gain against the card."""
    least = (1 - ALLOWED_SHORTFALL) * claim.acceptance_length
    allowed = f"at least {least:.2f}: the card's {claim.acceptance_length:.2f} ({claim.workload}, K = {claim.num_speculative_tokens}) less 10 %"
    drafts, length = int(change.drafts or 0), change.acceptance_length
    found = f"{length:.2f} tokens a step over {drafts:,} drafts" if length is not None else "no draft at all"
    if length is not None and drafts < ENOUGH_DRAFTS:
        return Finding(CHECK, "not checked", found, f"at least {ENOUGH_DRAFTS} drafts")
    return Finding(CHECK, "ok" if length is not None and length >= least else "fail", found, allowed)


def measured_entries(
    deployment: Deployment, workloads: Mapping[str, Sequence[Prompt]], log_path: Path, *, concurrency: int, max_tokens: int, timeout_s: float
) -> list[Acceptance]:
    """Serve the head, and measure its greedy acceptance on each workload, as entries of its card.

    Raises ServerError when the server doesn't start, MeasurementError when its figures can't be trusted.
    """
    found: list[Acceptance] = []
    with launch(deployment, log_path, timeout_s=timeout_s) as server:
        for name, prompts in workloads.items():
            change = measured_acceptance(server, prompts, concurrency=concurrency, max_tokens=max_tokens)
            if not change.drafts or change.acceptance_length is None:
                raise MeasurementError(f"{deployment.label} drafted nothing on {name}")
            found.append(
                Acceptance(
                    workload=name,
                    num_speculative_tokens=deployment.num_speculative_tokens or 0,
                    concurrency=concurrency,
                    temperature=0,
                    dtype=deployment.dtype,
                    engine_version=vllm_version() or "unknown",
                    acceptance_length=round(change.acceptance_length, 4),
                    per_position=tuple(round(accepted / change.drafts, 4) for accepted in change.accepted_per_position),
                    drafts=int(change.drafts),
                )
            )
    return found


def with_acceptance(card: Card, found: Sequence[Acceptance]) -> Card:
    """The card with these figures in place of older ones of the same measurement."""
    again = {_what(one) for one in found}
    return card.model_copy(update={"acceptance": (*(one for one in card.acceptance if _what(one) not in again), *found)})


def _what(one: Acceptance) -> tuple[object, ...]:
    return one.workload, one.num_speculative_tokens, one.concurrency, one.temperature, one.dtype, one.engine_version
