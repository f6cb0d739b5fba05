"""Tables to figures."""

from specstudy.figures.acceptance import (
    acceptance_by_context,
    acceptance_by_position,
    acceptance_by_workload,
    context_table,
    drift_conclusion,
    position_table,
    workload_table,
)
from specstudy.figures.along import along_conclusion, along_table
from specstudy.figures.beside import beside_published_conclusion, beside_published_table
from specstudy.figures.costs import change_text, cost_conclusion, latency_change_table, memory_table, rejection_table
from specstudy.figures.decode import decode_conclusion, decode_table
from specstudy.figures.device import gpu_table, power_note
from specstudy.figures.elsewhere import elsewhere_conclusion, elsewhere_table
from specstudy.figures.imposed import imposed_table
from specstudy.figures.limits import limit_lines, machine_table, share_figure, share_table, two_limits_table
from specstudy.figures.parallel import best_k_ratio, best_speedup, published_ratio, ratio_map, step_time
from specstudy.figures.parallel_tables import best_k_table, drafting_table, inflection_table, parallel_conclusion, same_k_table
from specstudy.figures.picture import Panels, Picture, badge
from specstudy.figures.plots import speedup, throughput, where_time_goes
from specstudy.figures.price_list import token_price_picture, token_price_table
from specstudy.figures.prose import baseline_conclusion, engine_note, source_note, speculation_conclusion
from specstudy.figures.published import (
    published_acceptance_figure,
    published_acceptance_table,
    published_heads_table,
    published_peagle_table,
    silent_killers_table,
)
from specstudy.figures.runners import baselines_on_two_runners, on_another_runner
from specstudy.figures.stack import Shown, Stack
from specstudy.figures.tables import Table, acceptance_table, latency_table, ratio_text, speedup_table, throughput_table, versions_table, with_interval
from specstudy.figures.text import Text
from specstudy.figures.trace import trace_figure, trace_lines, trace_table

__all__ = [
    "Panels",
    "Picture",
    "Shown",
    "Stack",
    "Table",
    "Text",
    "acceptance_by_context",
    "acceptance_by_position",
    "acceptance_by_workload",
    "acceptance_table",
    "along_conclusion",
    "along_table",
    "badge",
    "baseline_conclusion",
    "baselines_on_two_runners",
    "beside_published_conclusion",
    "beside_published_table",
    "best_k_ratio",
    "best_k_table",
    "best_speedup",
    "change_text",
    "context_table",
    "cost_conclusion",
    "decode_conclusion",
    "decode_table",
    "drafting_table",
    "drift_conclusion",
    "elsewhere_conclusion",
    "elsewhere_table",
    "engine_note",
    "gpu_table",
    "imposed_table",
    "inflection_table",
    "latency_change_table",
    "latency_table",
    "limit_lines",
    "machine_table",
    "memory_table",
    "on_another_runner",
    "parallel_conclusion",
    "position_table",
    "power_note",
    "published_acceptance_figure",
    "published_acceptance_table",
    "published_heads_table",
    "published_peagle_table",
    "published_ratio",
    "ratio_map",
    "ratio_text",
    "rejection_table",
    "same_k_table",
    "share_figure",
    "share_table",
    "silent_killers_table",
    "source_note",
    "speculation_conclusion",
    "speedup",
    "speedup_table",
    "step_time",
    "throughput",
    "throughput_table",
    "token_price_picture",
    "token_price_table",
    "trace_figure",
    "trace_lines",
    "trace_table",
    "two_limits_table",
    "versions_table",
    "where_time_goes",
    "with_interval",
    "workload_table",
]
