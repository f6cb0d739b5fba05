"""What the GPU did meanwhile: utilisation, clock, power and energy."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from specstudy.analysis import Cell
from specstudy.figures.tables import Table, with_interval
from specstudy.figures.text import NO_RECORDS, Text

SLOWER = 0.1
NO_GPU = Text("*No GPU was sampled here, so there is no utilisation, power or energy.*")


def power_note(cells: Sequence[Cell]) -> Text:
    """Where the clock was held down: the cells that ran more than SLOWER below the highest clock, with their power."""
    clocks = [
        (cell, clock.estimate, power.estimate)
        for cell in cells
        if (clock := cell.interval("gpu_sm_clock_mhz_mean")) and (power := cell.interval("gpu_power_w_mean"))
    ]
    if not clocks:
        return NO_GPU if cells else NO_RECORDS
    top = max(clock for _, clock, _ in clocks)
    held = [one for one in clocks if one[1] < (1 - SLOWER) * top]
    if not held:
        return Text(f"The SM clock stayed within {SLOWER:.0%} of {top:,.0f} MHz at every load.")
    told = ", ".join(f"{cell.label} at {cell.load.label} {clock:,.0f} MHz" for cell, clock, _ in held)
    low, high = min(power for *_, power in held), max(power for *_, power in held)
    return Text(
        f"The SM clock, {top:,.0f} MHz at its highest, fell by more than {SLOWER:.0%} where most was multiplied: {told}. These cells drew {low:.0f} to "
        f"{high:.0f} W: power, not memory or matrix products alone, bounds them, and random weights need not draw what real ones do."
    )


def gpu_table(cells: Sequence[Cell]) -> Table | Text:
    """NVML's utilisation (%), SM clock (MHz), power (W) and the energy of a token (J) of each cell; a sentence without a GPU."""
    sampled = [cell for cell in cells if cell.interval("gpu_power_w_mean") is not None]
    if not sampled:
        return NO_GPU if cells else NO_RECORDS
    rows = [
        {
            "method": cell.label,
            "load": cell.load.label,
            "utilisation %": with_interval(cell.interval("gpu_utilization_mean"), 0),
            "SM clock MHz": with_interval(cell.interval("gpu_sm_clock_mhz_mean"), 0),
            "power W": with_interval(cell.interval("gpu_power_w_mean"), 0),
            "J/token": with_interval(cell.interval("energy_j_per_token"), 3),
            "memory peak GiB": with_interval(cell.interval("gpu_memory_peak_gib")),
        }
        for cell in sampled
    ]
    note = (
        "NVML's samples over the whole load, ramp and drain included. Its utilisation is the share of time in which some kernel ran, not how much of the "
        "GPU that kernel used: a single small request can show 100 %. Energy is power over time by output tokens, prompts' share included."
    )
    return Table(pd.DataFrame(rows), sampled[0].records[0].evidence, note)
