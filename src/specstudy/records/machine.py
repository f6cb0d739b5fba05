"""What a machine can do at best: memory bandwidth and matrix rates, measured once in an allocation and kept beside its records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from specstudy.errors import RecordError
from specstudy.records.files import write_model

Rates = Annotated[tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...], Field(min_length=1)]


class MachineLimits(BaseModel):
    """Rates of one device, every repeat of each; the limit is the best, so that nothing can be above it by luck alone.

    Bytes are counted once for each byte that is read or written, so a copy moves twice its size. Operations count a
    multiply-add as two.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    allocation: str = Field(description="that of the records that it belongs to")
    measured_at: AwareDatetime
    device: str = Field(description="the GPU's name, else the processor's")
    gpu_uuids: tuple[str, ...] = ()
    driver: str | None = None
    torch: str
    memory_bytes: int = Field(gt=0, description="the device's memory, as the runtime gives it to a process")
    copy_bytes_per_s: Rates
    read_bytes_per_s: dict[str, Rates] = Field(min_length=1, description="by what reads: a decode step reads weights and writes next to nothing")
    bf16_flop_per_s: Rates
    fp8_flop_per_s: Rates | None = Field(default=None, description="None where the device has no FP8 matrix product")
    sm_clock_mhz_mean: float | None = None
    memory_clock_mhz: int | None = None
    power_w_mean: float | None = None

    @property
    def read_limit(self) -> float:
        """Bytes per second, the best reader's best."""
        return max(max(rates) for rates in self.read_bytes_per_s.values())

    @property
    def copy_limit(self) -> float:
        """Bytes per second, read and written ones together."""
        return max(self.copy_bytes_per_s)

    @property
    def bandwidth(self) -> float:
        """What no step can exceed, in bytes per second: the better of reading and copying."""
        return max(self.read_limit, self.copy_limit)

    @property
    def bf16_limit(self) -> float:
        """Operations per second."""
        return max(self.bf16_flop_per_s)

    @property
    def fp8_limit(self) -> float:
        """Operations per second; the bfloat16 rate where there is no FP8."""
        return max(self.fp8_flop_per_s or self.bf16_flop_per_s)


def limits_path(folder: Path, allocation: str) -> Path:
    """Where the limits of an allocation lie in a profile's results folder."""
    return folder / f"limits-{allocation}.json"


def write_limits(folder: Path, limits: MachineLimits) -> Path:
    """Keep them beside the records, replacing earlier ones of the same allocation. Raises RecordError."""
    path = limits_path(folder, limits.allocation)
    write_model(path, limits, indent=1)
    return path


def read_limits(folder: Path, allocation: str) -> MachineLimits | None:
    """The limits measured in an allocation; None if they weren't. Raises RecordError for a file that is something else."""
    path = limits_path(folder, allocation)
    if not path.is_file():
        return None
    try:
        found = MachineLimits.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise RecordError(f"{path} holds no limits: {str(error).splitlines()[0]}") from error
    if found.allocation != allocation:
        raise RecordError(f"{path} holds the limits of allocation {found.allocation}")
    return found
