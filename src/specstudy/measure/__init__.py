"""One cell: warm up, drive the load, read the counters, sample the GPU, give back one record per repeat."""

from specstudy.measure.cell import Measured, Sampling, measure, record_of, unserved
from specstudy.measure.client import Outcome, StreamClient
from specstudy.measure.counters import Counters, read_counters
from specstudy.measure.gpu import check_device, gpu_identity, gpu_uuids
from specstudy.measure.load import drive, run_async

__all__ = [
    "Counters",
    "Measured",
    "Outcome",
    "Sampling",
    "StreamClient",
    "check_device",
    "drive",
    "gpu_identity",
    "gpu_uuids",
    "measure",
    "read_counters",
    "record_of",
    "run_async",
    "unserved",
]
