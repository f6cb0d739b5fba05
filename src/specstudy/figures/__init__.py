"""Tables to figures."""

from specstudy.figures.picture import Picture, badge
from specstudy.figures.plots import acceptance_by_position, speedup, throughput, where_time_goes
from specstudy.figures.prose import baseline_conclusion, headline, source_note, speculation_conclusion
from specstudy.figures.tables import Table, acceptance_table, latency_table, ratio_text, speedup_table, throughput_table, versions_table, with_interval
from specstudy.figures.text import Text

__all__ = [
    "Picture",
    "Table",
    "Text",
    "acceptance_by_position",
    "acceptance_table",
    "badge",
    "baseline_conclusion",
    "headline",
    "latency_table",
    "ratio_text",
    "source_note",
    "speculation_conclusion",
    "speedup",
    "speedup_table",
    "throughput",
    "throughput_table",
    "versions_table",
    "where_time_goes",
    "with_interval",
]
