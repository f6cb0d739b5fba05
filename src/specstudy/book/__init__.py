"""What the book's pages call: a chapter's records under whichever profile has some, what they cost, the heads' cards, the first page's answers."""

from specstudy.book.answers import answers, recorded_table
from specstudy.book.chapter import Chapter, baseline_note, open_chapter, open_full_size, runner_note
from specstudy.book.cost import Costs, open_costs
from specstudy.book.heads import Heads, shipped_heads
from specstudy.book.limits import cell_shares, machine_limits, step_traces
from specstudy.book.quantization import Quantization, open_quantization
from specstudy.book.scaling import Scaling, open_scaling

__all__ = [
    "Chapter",
    "Costs",
    "Heads",
    "Quantization",
    "Scaling",
    "answers",
    "baseline_note",
    "cell_shares",
    "machine_limits",
    "open_chapter",
    "open_costs",
    "open_full_size",
    "open_quantization",
    "open_scaling",
    "recorded_table",
    "runner_note",
    "shipped_heads",
    "step_traces",
]
