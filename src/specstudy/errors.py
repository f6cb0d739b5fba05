"""Every error this package raises on purpose.

SpecstudyError
├── ConfigError            what was asked for can't be done; nothing was started (exit status 2)
├── AssetError             a model or dataset isn't there and can't be fetched
├── ServerError            a server didn't start or didn't stay
│   ├── ServerStartError
│   └── ServerDiedError
├── MeasurementError       a figure can't be trusted
│   ├── MetricsUnavailableError
│   ├── MetricsResetError
│   └── ScheduleLagError
├── RecordError            the record store
│   ├── StoreBusyError
│   └── StoreWriteError
└── StudyError             a run ended with cells that failed
"""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import ValidationError


class SpecstudyError(Exception):
    """Root of the tree; `exit_status` is what the command line ends with."""

    exit_status = 1


class ConfigError(SpecstudyError, ValueError):
    """A field holds what can't be used.

    Says which field, what was given and what is allowed, in that order.
    """

    exit_status = 2

    def __init__(self, field: str, got: object, allowed: str) -> None:
        self.field, self.got, self.allowed = field, got, allowed
        super().__init__(f"{field}: got {got!r}; {allowed}")

    @classmethod
    def unknown(cls, field: str, got: object, known: Iterable[str]) -> ConfigError:
        """The error for a name that isn't in a closed list."""
        return cls(field, got, f"known: {', '.join(sorted(known)) or 'none'}")

    @classmethod
    def unwritable(cls, field: str, place: object, error: OSError) -> ConfigError:
        """The error for a folder that the system won't let us make or write."""
        return cls(field, str(place), f"a folder that can be written to ({error.strerror or error})")

    @classmethod
    def from_pydantic(cls, error: ValidationError, where: str) -> ConfigError:
        """The first complaint of a pydantic error, the others counted.

        A ConfigError raised in a validator keeps its own wording.
        """
        first, *others = error.errors()
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, ConfigError):
            return cls(f"{where}: {'.'.join([*map(str, first['loc']), cause.field])}", cause.got, cause.allowed)
        path = ".".join(map(str, first["loc"])) or "(whole)"
        more = f" (and {len(others)} more)" if others else ""
        return cls(f"{where}: {path}", first["input"], f"{first['msg']}{more}")


class AssetError(SpecstudyError):
    """A model or dataset isn't in the cache and couldn't be fetched."""


class ServerError(SpecstudyError):
    """Something is wrong with a serving process: `reason` says what, and the message ends with the last lines of its log, or of the one named."""

    def __init__(self, reason: str, log_tail: str = "", *, log: str = "its log") -> None:
        super().__init__(f"{reason}; {log} ends:\n{log_tail}" if log_tail else reason)
        self.reason = reason


class ServerStartError(ServerError):
    """The server exited, or gave no answer, before it was ready."""


class ServerDiedError(ServerError):
    """The server was ready and then exited."""


class MeasurementError(SpecstudyError):
    """The run finished but its figures would mislead."""


class MetricsUnavailableError(MeasurementError):
    """`/metrics` didn't answer or lacks a counter that the cell needs."""


class MetricsResetError(MeasurementError):
    """A counter went backwards, or counted requests that weren't ours."""


class ScheduleLagError(MeasurementError):
    """The load generator itself was late."""


class RecordError(SpecstudyError):
    """The record store can't be read or written."""


class StoreBusyError(RecordError):
    """Another run holds the results file."""


class StoreWriteError(RecordError):
    """A record couldn't be written in full; what was there before is untouched."""


class StudyError(SpecstudyError):
    """A run ended with failed cells; finished cells are on disk."""
