"""Other people's figures, shown as such: every table names its sources, and none is mixed with a measurement of ours."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from specstudy.catalog.published import PublishedAcceptance, published_acceptance, published_heads, silent_killers
from specstudy.figures.picture import Picture, canvas
from specstudy.figures.style import legend_above
from specstudy.figures.tables import DASH, Table

SAME_HEAD = "Llama-3.3-70B-Instruct"
# The targets that the study is about; the file holds others too.
SHOWN_TARGETS = ("Llama-3.3-70B-Instruct", "Qwen3-Coder-30B-A3B-Instruct", "gpt-oss-120b", "gpt-oss-20b")
HARNESSES = (("https://arxiv.org/abs/2503.01840", "paper, drafts in trees"), ("SpecForge", "SGLang, K=5, batch 8"))


def published_heads_table() -> Table:
    """Heads that can be had: target, method, K trained for, switches of the configuration, source."""
    rows = [
        {
            "head": row.repo_id,
            "target": row.target,
            "method": row.method,
            "K trained": row.num_speculative_tokens_trained or DASH,
            "layers": row.layers or DASH,
            "configuration": row.config,
            "source": short_source(row.source),
        }
        for row in published_heads()
    ]
    return Table(pd.DataFrame(rows), "published", f"{DASH}: not stated in the source. Full addresses: data/published/heads.csv.", words=True)


def published_acceptance_table() -> Table:
    """Acceptance lengths with linear drafts for the study's targets: a row for each head and dataset, a column for each K."""
    everything = published_acceptance()
    rows = [row for row in everything if row.num_speculative_tokens is not None and row.target in SHOWN_TARGETS]
    table: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        key = (row.head or DASH, row.dataset, row.setup, short_source(row.source))
        table.setdefault(key, {})[f"K={row.num_speculative_tokens}"] = f"{row.acceptance_length:.2f}"
    columns = [f"K={k}" for k in sorted({row.num_speculative_tokens or 0 for row in rows})]
    lines = [
        {"head": head, "dataset": dataset, **{column: values.get(column, DASH) for column in columns}, "set-up": setup, "source": source}
        for (head, dataset, setup, source), values in table.items()
    ]
    note = (
        "Acceptance length in tokens a step, the target's own counted. Engines, temperatures and prompts differ: rows compare within one source only. "
        f"data/published/acceptance.csv has the addresses and other targets, {len(everything)} figures in all."
    )
    return Table(pd.DataFrame(lines), "published", note)


def published_peagle_table() -> Table:
    """Published acceptance of P-EAGLE and EAGLE-3 for GPT-OSS-20B, the pair behind the published throughput curve."""
    rows = [row for row in published_acceptance() if row.target == "gpt-oss-20b" and row.source.endswith("p-eagle.md")]
    table: dict[str, dict[str, str]] = {}
    for row in rows:
        name = "P-EAGLE" if row.method == "peagle" else "EAGLE-3"
        table.setdefault(row.dataset, {})[f"{name} K={row.num_speculative_tokens}"] = f"{row.acceptance_length:.2f}"
    frame = pd.DataFrame([{"dataset": dataset, **values} for dataset, values in table.items()])
    return Table(frame, "published", f"Acceptance length, GPT-OSS-20B, {rows[0].setup}. Source: {rows[0].source}")


def published_acceptance_figure() -> Picture:
    """Acceptance lengths of the EAGLE-3 authors' Llama 3.3 70B head in their paper, and of the one of that name that SGLang's team keeps, under SGLang."""
    figure, axes = canvas(3.4)
    told = []
    for (where, label), (colour, marker) in zip(HARNESSES, (("#009E73", "^"), ("#D55E00", "v")), strict=True):
        points = {row.dataset: row.acceptance_length for row in _authors_head() if where in row.source}
        axes.plot(list(points), list(points.values()), color=colour, marker=marker, linestyle="none", markersize=7, label=label)
        told.append(f"{label}: " + ", ".join(f"{value:.2f} on {dataset}" for dataset, value in points.items()))
    axes.set_ylabel("acceptance length (tokens/step)")
    axes.set_ylim(bottom=1)
    legend_above(axes)
    alt = f"Published acceptance lengths of the EAGLE-3 head of one name for {SAME_HEAD} under two harnesses. {'; '.join(told)}."
    return Picture.of(figure, "One name, two harnesses: is acceptance a property of the head?", alt, "published")


def _authors_head() -> Iterable[PublishedAcceptance]:
    names = ("yuhuili/EAGLE3-LLaMA3.3-Instruct-70B", "lmsys/sglang-EAGLE3-LLaMA3.3-Instruct-70B")
    shown = ("MT-Bench", "HumanEval", "GSM8K")
    return (row for row in published_acceptance() if row.head in names and row.num_speculative_tokens in (None, 5) and row.dataset in shown)


def silent_killers_table() -> Table:
    """What lowers acceptance without an error, where it was reported, and the check that would notice."""
    rows = [{"what goes wrong": row.what, "what one sees": row.noticed_by, "check": row.check, "reported in": row.reference} for row in silent_killers()]
    return Table(pd.DataFrame(rows), "published", "Addresses: data/published/silent_killers.csv.", words=True)


def short_source(address: str) -> str:
    """An address without what every address has, cut at its last parts: enough to recognise it in a narrow table."""
    bare = address.removeprefix("https://").removeprefix("github.com/").removeprefix("huggingface.co/")
    return bare if len(bare) <= 48 else f"{bare.split('/')[0]}/{bare.split('/')[1]} … {bare.split('/')[-1]}"
