"""What quantization saves and costs: memory, speed, answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from specstudy.analysis import Cell, Speedup, mean_interval
from specstudy.analysis.quantization import Fastest, Headroom, fastest_at, of_variant, over_reference, quality_rows, reference_of, variants
from specstudy.analysis.shares import server_of
from specstudy.analysis.weights import kv_bytes_per_token, weights_of
from specstudy.figures.limits import look
from specstudy.figures.picture import Picture, canvas
from specstudy.figures.style import bars, concurrency_axis, legend_above
from specstudy.figures.tables import DASH, Table, number, ratio_text, with_interval
from specstudy.figures.text import Text, bullets, not_measured
from specstudy.records.quality import Quality

GIB = 2**30
VARIANTS = ("fp8", "fp8-marlin", "awq", "awq-marlin", "bf16")
SPEED = "The speed of the variants (chapter 01 of a GPU's profile)"


def memory_figure(found: Sequence[Headroom], model: str) -> Picture:
    """Weights and what they leave on each card, a bar for each precision."""
    figure, axes = canvas(0.42 * len(found) + 1.5)
    labels = [f"{one.card.name}, {one.precision.name}" for one in found]
    weights = [one.weights_bytes / GIB for one in found]
    left = [max(0.0, one.left_bytes) / GIB for one in found]
    axes.barh(labels, weights, color="#0072B2", label="weights")
    axes.barh(labels, left, left=weights, color="#E69F00", label="left")
    for row, one in enumerate(found):
        memory = one.card.memory_bytes / GIB
        axes.plot([memory, memory], [row - 0.4, row + 0.4], color="#000000", linewidth=2, label="the card's memory" if row == 0 else None)
    axes.invert_yaxis()
    axes.set_xlabel("GiB")
    figure.legend(loc="outside upper center", ncols=3, frameon=False, columnspacing=1.0)
    told = [
        f"{label}: weights {taken:.1f} GiB, {f'{rest:.1f} GiB left' if one.fits else 'too much'}"
        for label, taken, rest, one in zip(labels, weights, left, found, strict=True)
    ]
    return Picture.of(figure, f"What do the weights of {model} leave of one card?", f"Bars computed from the architecture. {'; '.join(told)}.", "simulated")


def headroom_table(found: Sequence[Headroom]) -> Table:
    """The same in numbers: tokens of cache at most, and how many cards the weights need."""
    rows = [
        {
            "card": one.card.name,
            "weights in": one.precision.name,
            "weights GB": f"{one.weights_bytes / 1e9:.1f}",
            "weights GiB": f"{one.weights_bytes / GIB:.1f}",
            "left GiB": f"{one.left_bytes / GIB:.1f}" if one.left_bytes > 0 else DASH,
            "KV tokens at most": f"{one.kv_tokens:,}" if one.fits else "doesn't fit",
            "contexts of 8,192": f"{one.kv_tokens // 8192}" if one.fits else DASH,
            "cards at least": f"{one.cards_needed}",
        }
        for one in found
    ]
    note = (
        f"Computed from the published architecture, nothing measured. A token's keys and values take {found[0].kv_bytes_per_token:,.0f} bytes in 16 bits. "
        "At most: activations, CUDA graphs and the runtime itself take their part of what is left, see the servers' own logs below."
    )
    return Table(pd.DataFrame(rows), "simulated", note)


def variant_memory_table(cells: Sequence[Cell]) -> Table | Text:
    """What each server's log says of weights, cache and kernel, beside what the architecture lets expect."""
    rows = []
    for name in variants(cells):
        record = of_variant(cells, name)[0].records[-1]
        server = server_of(record)
        computed = None if server is None else weights_of(server.shape).size_bytes(server.precision) / GIB
        cache = None if server is None or record.kv_cache_tokens is None else record.kv_cache_tokens * kv_bytes_per_token(server.shape.architecture) / GIB
        rows.append(
            {
                "variant": name,
                "quantization": record.quantization or record.dtype,
                "kernel": record.linear_kernel or DASH,
                "weights GiB": number(record.weights_gib, 2),
                "computed GiB": number(computed, 2),
                "KV cache tokens": DASH if record.kv_cache_tokens is None else f"{record.kv_cache_tokens:,}",
                "KV cache GiB": number(cache, 1),
                "memory used": _flag(record.server_argv, "--gpu-memory-utilization"),
                "context": _flag(record.server_argv, "--max-model-len"),
            }
        )
    if not rows:
        return not_measured("Memory of the variants")
    note = "Weights, cache and kernel from the servers' logs; a dash where a log names no kernel of its own, as for unquantized weights."
    return Table(pd.DataFrame(rows), cells[0].records[0].evidence, note)


def _flag(argv: Sequence[str], name: str) -> str:
    return argv[argv.index(name) + 1] if name in argv else "default"


def variant_speed(cells: Sequence[Cell]) -> Picture | Text:
    """Tokens/s over concurrency, a line for each variant."""
    names = variants(cells)
    if not names:
        return not_measured(SPEED)
    figure, axes = canvas(3.4)
    told = []
    for index, name in enumerate(names):
        measured = [(cell.load.concurrency, cell.interval("output_tokens_per_s")) for cell in of_variant(cells, name)]
        points = [(x, interval) for x, interval in measured if x and interval]
        xs, ys = [x for x, _ in points], [interval.estimate for _, interval in points]
        axes.errorbar(xs, ys, yerr=bars([interval for _, interval in points]), label=name, **look(index))
        told.append(f"{name}: " + ", ".join(f"{y:.0f} at concurrency {x}" for x, y in zip(xs, ys, strict=True)))
    concurrency_axis(axes, [cell.load.concurrency for cell in cells if cell.load.concurrency])
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("output tokens/s")
    legend_above(axes, 3)
    alt = f"Output tokens per second over concurrency on logarithmic axes with 95 % intervals. {'; '.join(told)}."
    return Picture.of(figure, "Which quantization serves most, at which load?", alt, cells[0].records[0].evidence)


def variant_table(cells: Sequence[Cell]) -> Table | Text:
    """Tokens/s, TPOT and TTFT of each variant at each load, and the ratio to fp8, or to the first where that wasn't measured."""
    names, reference = variants(cells), reference_of(cells)
    if reference is None:
        return not_measured(SPEED)
    ratios = {id(one.cell): one for one in over_reference(cells, reference)}
    rows = []
    for name in names:
        for cell in of_variant(cells, name):
            one = ratios.get(id(cell))
            rows.append(
                {
                    "variant": name,
                    "load": cell.load.label,
                    "tokens/s": with_interval(cell.interval("output_tokens_per_s")),
                    "TPOT ms": with_interval(cell.interval("tpot_ms_mean"), 2),
                    "TTFT p50 ms": number(cell.percentile("ttft_ms", 50), 0),
                    "wait for a place ms": with_interval(cell.interval("queue_wait_ms_mean"), 0),
                    f"throughput / {reference}": DASH if one is None else f"{ratio_text(one.ratio)}, {one.verdict}",
                    "J/token": with_interval(cell.interval("energy_j_per_token"), 2),
                }
            )
    note = "± is the half-width of the 95 % interval over repeats with other prompts. A ratio is given within one allocation only."
    return Table(pd.DataFrame(rows), cells[0].records[0].evidence, note)


def quality_table(quality: Quality) -> Table:
    """Perplexity and greedy agreement of each form."""
    rows = [
        {
            "model": row.scores.name,
            "what was done": row.scores.recipe,
            "weights MB": f"{row.scores.weights_bytes / 1e6:.0f}",
            "perplexity": f"{row.perplexity.estimate:.2f} ({row.perplexity.low:.2f} to {row.perplexity.high:.2f})",
            "over bf16": DASH if row.perplexity_ratio is None else ratio_text(row.perplexity_ratio),
            "same next token": f"{row.agreement.estimate:.1%}" + (f" ({row.agreement.low:.1%} to {row.agreement.high:.1%})" if row.perplexity_ratio else ""),
            "same answer": f"{row.same_answers} of {row.answers}",
        }
        for row in quality_rows(quality)
    ]
    note = (
        f"{quality.texts}: {sum(quality.scored_tokens):,} tokens. Agreement: of the {sum(quality.answer_tokens):,} tokens of the unquantized model's "
        f"greedy answers. {quality.arithmetic} Calibration: {quality.calibration}. 95 % intervals by resampling texts. "
        f"Measured {quality.created_at:%Y-%m-%d}, commit {quality.git_sha}; {', '.join(f'{name} {version}' for name, version in quality.packages.items())}."
    )
    return Table(pd.DataFrame(rows), "real", note, words=True)


def quality_lines(quality: Quality) -> Text:
    """What each recipe does to perplexity and answers, and whether that is more than the texts' own spread."""
    lines = []
    for row in quality_rows(quality)[1:]:
        ratio = row.perplexity_ratio
        assert ratio is not None
        change = (
            f"perplexity changes by {ratio.estimate - 1:+.1%} ({ratio.low - 1:+.1%} to {ratio.high - 1:+.1%})"
            if ratio.excludes(1.0)
            else f"no difference of perplexity is shown ({ratio.low - 1:+.1%} to {ratio.high - 1:+.1%})"
        )
        before = mean_interval([float(until) for until in row.scores.same_until])
        lines.append(
            f"{row.scores.name}: {change}; {row.agreement.estimate:.1%} of next tokens are the unquantized model's, and an answer is its word for word "
            f"for {before.estimate:.0f} tokens on average, with {row.same_answers} of {row.answers} whole answers the same."
        )
    return bullets(lines)


def quantization_conclusion(cells: Sequence[Cell], found: Sequence[Headroom], failed: Mapping[str, str]) -> Text:
    """What fits by arithmetic, what the unquantized server had, where each variant wins, and what failed or isn't measured.

    `failed` has the reason for each variant of which every try failed.
    """
    lines = [_fit_line(one) for one in found if one.precision.name == "bf16"]
    names, reference = variants(cells), reference_of(cells)
    if reference is None:
        return bullets([*lines, *_failed_lines(failed)])
    lines.append(_unquantized_line(of_variant(cells, "bf16")))
    ratios = {id(one.cell): one for one in over_reference(cells, reference)}
    lines += [_fastest_line(one, ratios, reference) for one in fastest_at(cells)]
    lines += [_beside_line(of_variant(cells, name), ratios, reference) for name in names if name.endswith("marlin")]
    lines += _failed_lines(failed)
    lines += [f"Not measured yet: {name}." for name in VARIANTS if name not in names and name not in failed]
    return bullets(lines)


def _failed_lines(failed: Mapping[str, str]) -> list[str]:
    return [f"{name} was tried and failed: {reason}" for name, reason in failed.items()]


def _unquantized_line(own: Sequence[Cell]) -> str:
    """What was left for the cache on the real card, how many of this chapter's requests that holds, and what was served."""
    record = own[0].records[-1] if own else None
    if record is None or record.kv_cache_tokens is None or all(cell.requests.empty for cell in own):
        return ""
    served = ", ".join(f"{with_interval(cell.interval('output_tokens_per_s'))} at {cell.load.label}" for cell in own)
    each = max(float((cell.requests["prompt_tokens"] + cell.requests["completion_tokens"]).max()) for cell in own)
    return (
        f"Measured, unquantized on {record.gpu}: the server had {record.kv_cache_tokens:,} tokens of KV cache, {record.kv_cache_tokens // each:.0f} requests "
        f"of this chapter's length ({each:.0f} tokens) at once; it served {served} tokens/s."
    )


def _fastest_line(one: Fastest, ratios: Mapping[int, Speedup], reference: str) -> str:
    """The fastest at a load; which others aren't told apart from it, or how far the next one is behind; and its ratio to the reference."""
    told = f"At {one.cell.load.label} {one.cell.label} serves most, {with_interval(one.cell.interval('output_tokens_per_s'))} tokens/s"
    if one.ties:
        told += f", not told apart from {' and '.join(f'{tie.cell.label} ({ratio_text(tie.ratio)} of it)' for tie in one.ties)}"
    elif one.others:
        told += f"; {one.others[0].cell.label} is next, {ratio_text(one.others[0].ratio)} of it"
    own = ratios.get(id(one.cell))
    named = {one.cell.label, *(other.cell.label for other in (one.ties or one.others[:1]))}
    return told + (f"; over {reference} it is {ratio_text(own.ratio)}" if own is not None and reference not in named else "") + "."


def _beside_line(own: Sequence[Cell], ratios: Mapping[int, Speedup], reference: str) -> str:
    """A forced kernel over the reference at each load; that another kernel ran, where the log says so."""
    told = [f"{ratio_text(one.ratio)} at {cell.load.label}, {one.verdict}" for cell in own if (one := ratios.get(id(cell))) is not None]
    kernel = own[0].records[-1].linear_kernel
    wrong = "" if kernel is None or "Marlin" in kernel else f" Its log names {kernel}, so this isn't Marlin's speed."
    return f"{own[0].label} over {reference}: {'; '.join(told)}.{wrong}" if told else wrong.strip()


def _fit_line(one: Headroom) -> str:
    size = f"By arithmetic, unquantized, {one.weights_bytes / 1e9:.1f} GB of weights"
    if not one.fits:
        return f"{size} don't fit on one {one.card.name}: at least {one.cards_needed} of them are needed."
    return (
        f"{size} fit on one {one.card.name} and leave {one.left_bytes / GIB:.1f} GiB, at most {one.kv_tokens:,} tokens of KV cache: "
        f"{one.kv_tokens // 8192} contexts of 8,192 tokens."
    )
