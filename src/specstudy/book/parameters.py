"""What papermill may set on a page; it makes numbers and truth values of what looks like one."""

from __future__ import annotations

from specstudy.errors import ConfigError

MODES = ("recorded", "live")


def check_parameters(profile: object = None, mode: object = "recorded", results_dir: object = None) -> None:
    """Raises ConfigError for a mode that isn't one, and for a profile or a folder that isn't text: `-p results_dir 2026` gives a number."""
    for field, value in (("profile", profile), ("results_dir", results_dir)):
        if value is not None and not isinstance(value, str):
            raise ConfigError(field, value, "text, or None; papermill keeps it as text with -r in place of -p")
    if mode not in MODES:
        raise ConfigError.unknown("mode", mode, MODES)
