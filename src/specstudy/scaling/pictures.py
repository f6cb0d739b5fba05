"""Scaling runs and simulations to figures and tables. Each figure says what it rests on: vLLM, stand-ins, or a simulation."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from specstudy.figures.picture import RC, SIZE_IN, Kind, Picture, canvas
from specstudy.figures.style import legend_above
from specstudy.figures.tables import DASH, Table
from specstudy.figures.text import NO_RECORDS, Text, bullets
from specstudy.scaling.policy import UTILISATION
from specstudy.scaling.record import ScalingRun
from specstudy.scaling.scenarios import SHIPPED, TRIED
from specstudy.scaling.views import RunView

SETTLED_S = 60.0  # the end of the high load, when a run has had time to settle
DECIDED_WITHIN_S = 30.0  # the bound on a scale-out
SAMPLING_S = 1.0  # between two samples
AT_THE_STEP_S = 2 * SAMPLING_S
BLUE, ORANGE, GREEN, BLACK, PINK = "#0072B2", "#D55E00", "#009E73", "#000000", "#CC79A7"


def kind_of(run: ScalingRun) -> Kind:
    """The badge of a run."""
    return "real" if run.server == "real" else "stand-in"


def seconds(value: float | None) -> str:
    """Like 12 s; a dash for what never happened."""
    return DASH if value is None else f"{value:.0f} s"


def timeline(view: RunView | None) -> Picture | Text:
    """Replicas, queue wait, TTFT and goodput over the time of one run, with the step, the decision and the recovery marked."""
    if view is None:
        return NO_RECORDS
    run, samples = view.run, view.samples
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(SIZE_IN[0], 7.4), layout="constrained")
        panels = figure.subplots(4, 1, sharex=True)
    replicas, wait, ttft, goodput = panels
    replicas.step(samples["at_s"], samples["replicas"], where="post", color=BLUE, label="asked for")
    replicas.step(samples["at_s"], samples["ready"], where="post", color=ORANGE, linestyle="--", label="ready")
    replicas.set_ylabel("replicas")
    replicas.set_ylim(0, 1.5 * max(3, samples["replicas"].max()))  # room for the marks
    replicas.yaxis.set_major_locator(MaxNLocator(integer=True))
    wait.plot(samples["at_s"], samples["queue_wait_ms"] / 1e3, color=BLUE, label="mean over 15 s")
    targets = [one.target for one in run.policy.metrics if one.kind == "Value"]
    for target in targets:
        wait.axhline(target / 1e3, color="#444444", linestyle=":", linewidth=1, label="target")
    wait.set_ylabel("queue wait (s)")
    ttft.plot(*_seconds(view.ttft_median()), color=BLUE, label="p50, 5 s")
    ttft.plot(*_seconds(view.ttft_percentile(99)), color=ORANGE, linestyle="--", marker=".", label="p99, 300 requests")
    ttft.axhline(run.slo_ttft_ms / 1e3, color="#444444", linestyle=":", linewidth=1, label="SLO")
    ttft.set_ylabel("TTFT (s)")
    times, arrived, good = view.goodput()
    goodput.step(times, arrived, where="mid", color="#777777", linestyle="--", label="arrived")
    goodput.step(times, good, where="mid", color=GREEN, label="first token within the SLO")
    goodput.set_ylabel("requests/s")
    goodput.set_xlabel("time since the load began (s)")
    for axes in panels:
        _stages(axes, run)
        axes.set_ylim(bottom=0)
        legend_above(axes, columns=3)
    _marks(replicas, view)
    alt = (
        f"Four panels over time. The load triples at {run.step_s:.0f} s and falls back at {run.fall_s:.0f} s. {run_facts(view)} "
        f"Longest mean queue wait {samples['queue_wait_ms'].max() / 1e3:.1f} s."
    )
    return Picture.of(figure, "The load triples: what happens?", alt, kind_of(run))


def _seconds(series: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    return series[0], series[1] / 1e3


def _stages(axes: Axes, run: ScalingRun) -> None:
    axes.axvspan(run.step_s, run.fall_s, color="#f0f0f0", zorder=0)


def _marks(axes: Axes, view: RunView) -> None:
    """Where the scale-out was decided and where latency was good again."""
    run = view.run
    top = axes.get_ylim()[1]
    for at, text, height in ((run.decided_s, "decided", 0.93), (view.recovered_s, "recovered", 0.79)):
        if at is not None:
            axes.axvline(run.step_s + at, color=BLACK, linewidth=0.8)
            axes.annotate(
                f"{text} +{at:.0f} s",
                (run.step_s + at, top * height),
                xytext=(4, 0),
                textcoords="offset points",
                fontsize=9,
                bbox={"facecolor": "#ffffff", "alpha": 0.8, "pad": 1, "edgecolor": "none"},
            )


def run_facts(view: RunView) -> str:
    """One sentence of figures on a run."""
    run = view.run
    facts = (
        f"Scale-out decided {seconds(run.decided_s)} after the step" if run.decided_s is not None else "No scale-out decided",
        f"{run.replicas_needed} replicas, the fewest that suffice, ready {_after(run.enough_ready_s)}" if run.replicas_needed else "",
        f"latency good again {_after(view.recovered_s)}",
        f"at most {run.replicas_max} replicas",
        f"back at the minimum {seconds(run.back_to_min_s)} after the load fell"
        if run.back_to_min_s is not None
        else f"not back at the minimum {run.stages[2][1]:.0f} s after the load fell",
        f"replicas' processes ended by themselves: {run.replica_restarts}" if run.replica_restarts else "",
        f"{run.failed} of {run.num_prompts:,} requests lost.",
    )
    return "; ".join(fact for fact in facts if fact)


def _after(value: float | None) -> str:
    return "never" if value is None else f"after {value:.0f} s"


def side_by_side(views: Sequence[RunView], high_s: float) -> Picture:
    """Ready replicas and median TTFT of runs at one load, counted from the step; grey: the time that all were at 3x, a mark where one's 3x ended."""
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(SIZE_IN[0], 4.6), layout="constrained")
        replicas, ttft = figure.subplots(2, 1, sharex=True)
    told = []
    for view, colour, style in zip(views, (BLUE, ORANGE, GREEN, PINK, BLACK), ("-", "--", ":", "-.", "--"), strict=False):
        run, name = view.run, "no speculation" if view.run.method == "none" else view.method
        replicas.step(view.samples["at_s"] - run.step_s, view.samples["ready"], where="post", color=colour, linestyle=style, label=name)
        times, medians = view.ttft_median()
        ttft.plot(times - run.step_s, medians / 1e3, color=colour, linestyle=style, label=name)
        for axes in (replicas, ttft):
            axes.axvline(run.fall_s - run.step_s, color=colour, linestyle=style, linewidth=0.8)
        told.append(f"{name}: 3x for {run.fall_s - run.step_s:.0f} s, at most {view.samples['ready'].max():.0f} ready")
    replicas.set_ylabel("replicas ready")
    replicas.yaxis.set_major_locator(MaxNLocator(integer=True))
    ttft.axhline(views[0].run.slo_ttft_ms / 1e3, color="#444444", linestyle=":", linewidth=1, label="SLO")
    ttft.set_ylabel("TTFT p50, 5 s (s)")
    ttft.set_xlabel("time since the step (s); grey: 3x in all runs,\nvertical: its end in one, dotted: SLO")
    for axes in (replicas, ttft):
        axes.axvspan(0, high_s, color="#f0f0f0", zorder=0)
        axes.set_ylim(bottom=0)
    legend_above(replicas, columns=1)
    alt = f"Ready replicas and median time to first token since the load tripled, {len(views)} runs. {'; '.join(told)}."
    return Picture.of(figure, "The load triples: what does speculation change?", alt, kind_of(views[0].run))


def policies_figure(found: Sequence[RunView], question: str = "Which policy holds while the load is high?") -> Picture | Text:
    """Replicas over time, a panel for each policy that was run on the same servers."""
    shown = [view for view in found if view.run.server == found[0].run.server and not view.samples.empty] if found else []
    if not shown:
        return NO_RECORDS
    shown.sort(key=lambda view: (view.label != SHIPPED, list(TRIED).index(view.run.policy.name) if view.run.policy.name in TRIED else 99))
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(SIZE_IN[0], 0.6 + 1.25 * len(shown)), layout="constrained")
        panels = figure.subplots(len(shown), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    told = []
    for axes, view in zip(panels, shown, strict=True):
        axes.step(view.samples["at_s"], view.samples["replicas"], where="post", color=BLUE)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
        if view.run.replicas_needed:
            axes.hlines(view.run.replicas_needed, view.run.step_s, view.run.fall_s, color=ORANGE, linestyle=":", linewidth=1.5)
        _stages(axes, view.run)
        axes.set_ylim(0, 1.05 * max(view.samples["replicas"].max() for view in shown))
        axes.set_title(view.label, fontsize=10, loc="left")
        told.append(f"{view.label}: at most {view.run.replicas_max}, scaled down {view.run.scale_downs} times")
    panels[-1].set_xlabel("time since the load began (s); grey: 3x load, dotted: needed")
    panels[len(shown) // 2].set_ylabel("replicas asked for")
    alt = f"Replicas over time for {len(shown)} policies. {'; '.join(told)}."
    return Picture.of(figure, question, alt, kind_of(shown[0].run))


def policies_table(found: Sequence[RunView], told: str = "") -> Table | Text:
    """What each policy did, failures included; `told`: what the note adds."""
    if not found:
        return NO_RECORDS
    found = sorted(found, key=lambda view: view.label != SHIPPED)
    alike_s = min(view.run.stages[1][1] for view in found)
    rows = [{"policy": view.label, "verdict": verdict(view.run), **_figures(view, alike_s)} for view in found]
    ideas = " ".join(f"{name}: {TRIED[name].idea}" for name in dict.fromkeys(view.run.policy.name for view in found) if name in TRIED)
    lasted = (
        f" Within SLO: of the requests due in the first {alike_s:.0f} s at 3x, which all runs have. All else is of the whole run, and a longer one has more "
        "time to fail in."
        if len({view.run.stages[1][1] for view in found}) > 1
        else f" Within SLO: of the requests due in the {alike_s:.0f} s at 3x."
    )
    return Table(pd.DataFrame(rows), kind_of(found[0].run), ideas + lasted + told)


def _figures(view: RunView, alike_s: float) -> dict[str, object]:
    run = view.run
    share = view.good_share(run.step_s, run.step_s + alike_s)
    return {
        "1x, 3x, 1x for (s)": stages_text(run),
        "decided": seconds(run.decided_s),
        "enough ready": seconds(run.enough_ready_s),
        "recovered": seconds(view.recovered_s),
        "needed": run.replicas_needed,
        "most": run.replicas_max,
        "fewest at 3x": run.replicas_low_while_high,
        "scale-downs at 3x": view.scale_downs(run.step_s, run.fall_s),
        "after it": view.scale_downs(run.fall_s, float("inf")),
        "back at minimum": seconds(run.back_to_min_s),
        "lost": run.failed,
        "within SLO": DASH if share is None else f"{share:.1%}",
    }


def stages_text(run: ScalingRun) -> str:
    """Like 60, 600, 180: seconds of each stage."""
    return ", ".join(f"{length:.0f}" for _, length in run.stages)


def verdict(run: ScalingRun) -> str:
    """What a policy failed at, by the rules of the chapter; "holds" if at nothing."""
    faults = []
    enough_before = run.enough_ready_s is not None and run.enough_ready_s <= AT_THE_STEP_S
    if not enough_before and (run.decided_s is None or run.decided_s > DECIDED_WITHIN_S):
        faults.append("late")
    if run.replicas_needed is not None and (run.replicas_low_while_high or 0) < run.replicas_needed:
        faults.append("scaled down below the need" if run.replicas_low_while_high is not None else "never had enough")
    if run.replicas_needed is not None and run.replicas_max is not None and run.replicas_max > 2 * run.replicas_needed:
        faults.append("overshoots")
    if run.back_to_min_s is None:
        faults.append("not back in time")
    if run.replica_restarts:
        faults.append("replicas ended by themselves")
    if run.failed:
        faults.append("lost requests")
    return ", ".join(faults) or "holds"


def conclusion(view: RunView | None) -> Text:
    """What the run shows, against what it must reach."""
    if view is None:
        return NO_RECORDS
    run = view.run
    method = "without speculation" if run.method == "none" else f"with {view.method}"
    told = f"vLLM replicas {method}" if run.server == "real" else "paced stand-ins, so its times to first token say nothing of vLLM"
    lines = [f"The run is of {told}; control plane {run.kubernetes_version}, autoscaler every {run.sync_period_s:g} s, a window of {run.metric_window_s:g} s."]
    lines.append(run_facts(view))
    lines.append(_phase(view))
    lines.append(_floor(run))
    lines.append(_shared(view))
    reached = verdict(run)
    over = f"over {run.stages[1][1]:.0f} s at 3x and {run.stages[2][1]:.0f} s after it"
    lines.append(f"It meets every bound of this chapter, {over}." if reached == "holds" else f"It fails a bound of this chapter, {over}: {reached}.")
    return bullets(lines)


def _phase(view: RunView) -> str:
    """When the scale-out would have been decided had the autoscaler's passes lain otherwise; nothing unless the first pass that could have decided it did."""
    run, crossed_s = view.run, view.crossed_s
    if crossed_s is None or run.decided_s is None or not crossed_s <= run.decided_s <= crossed_s + run.sync_period_s + SAMPLING_S:
        return ""
    latest_s = crossed_s + run.sync_period_s
    kept = f"within the {DECIDED_WITHIN_S:.0f} s asked for" if latest_s <= DECIDED_WITHIN_S else f"later than the {DECIDED_WITHIN_S:.0f} s asked for"
    return (
        f"When that is decided hangs on when the autoscaler passes, every {run.sync_period_s:g} s: by the samples a metric was past its target, tolerance "
        f"included, {crossed_s:.0f} s after the step. Had a pass come just before, the next would have decided it {latest_s:.0f} s after the step, {kept}."
    )


def _floor(run: ScalingRun) -> str:
    """What the floor allows for; nothing of a policy without one."""
    floor = run.policy.floor_slots
    if floor is None:
        return ""
    allows = UTILISATION * run.slots / floor
    told = f"a slowdown of {allows:.2f}" if allows > 1.005 else "no slowdown of a full replica"
    return f"Its floor, {floor:.2g} of {run.slots} slots in use a replica, allows for {told}."


def _shared(view: RunView) -> str:
    """What sharing one device costs a request of real replicas; nothing of stand-ins, which share none."""
    run = view.run
    alone, together = view.decode_s(0, run.step_s), view.decode_s(run.fall_s - SETTLED_S, run.fall_s)
    if run.server != "real" or not view.one_machine or not alone or not together:
        return ""
    return (
        f"From its first to its last token a request took {alone:.2f} s before the step and {together:.2f} s in the last {SETTLED_S:.0f} s of the high load "
        f"(medians): all replicas share {run.gpu or f'{run.host_cpus} processors'}, and work in fuller batches. The needed replicas are reckoned with the time "
        + ("of those that found every slot busy." if (run.service_full_s_mean or 0) > (run.service_s_mean or 0) else "before the step.")
    )


def line_figure(xs: Sequence[float], ys: Sequence[tuple[str, Sequence[float]]], *, question: str, x: str, y: str, log: bool = True) -> Picture:
    """Simulated lines over one parameter."""
    figure, axes = canvas()
    told = []
    for (name, values), colour, marker, style in zip(ys, (BLUE, ORANGE, GREEN, PINK), "osD^", ("-", "--", ":", "-."), strict=False):
        axes.plot(xs, values, color=colour, marker=marker, linestyle=style, label=name)
        told.append(f"{name}: " + ", ".join(f"{value:g} at {at:g}" if np.isfinite(value) else f"never at {at:g}" for at, value in zip(xs, values, strict=True)))
    if log:
        axes.set_xscale("log")
        axes.set_xticks(list(xs), [f"{at:g}" for at in xs])
        axes.minorticks_off()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_ylim(bottom=0)
    legend_above(axes)
    return Picture.of(figure, question, f"{y} over {x}. {'; '.join(told)}.", "simulated")
