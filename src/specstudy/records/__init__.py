"""What a measurement is: schema, append-only store, provenance."""

from specstudy.records.provenance import Provenance, portable, provenance, without_port
from specstudy.records.schema import Evidence, Method, Pattern, Record, RequestRow, units_of
from specstudy.records.store import BadLine, Loaded, RecordStore, load_records, load_requests

__all__ = [
    "BadLine",
    "Evidence",
    "Loaded",
    "Method",
    "Pattern",
    "Provenance",
    "Record",
    "RecordStore",
    "RequestRow",
    "load_records",
    "load_requests",
    "portable",
    "provenance",
    "units_of",
    "without_port",
]
