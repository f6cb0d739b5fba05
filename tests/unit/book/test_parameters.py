"""Parameters as papermill sets them: a clear error for each page before anything is read or started."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from specstudy.book import open_chapter, open_costs, open_full_size, open_quantization, open_scaling
from specstudy.errors import ConfigError

PAGES: dict[str, Callable[..., object]] = {
    "chapter": lambda **given: open_chapter("04_eagle3", **given),
    "costs": open_costs,
    "quantization": open_quantization,
    "scaling": open_scaling,
}
BAD = [("profile", 7), ("profile", True), ("profile", "nope"), ("results_dir", 2026), ("results_dir", 1.5), ("mode", 1), ("mode", None), ("mode", "fast")]


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(("field", "value"), BAD)
def test_a_bad_parameter_is_named(page: str, field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: got {value!r}"):
        PAGES[page](**{field: value})


def test_the_full_size_section_refuses_a_folder_that_is_a_number() -> None:
    with pytest.raises(ConfigError, match=r"^results_dir: got 2026"):
        open_full_size("05_peagle", results_dir=2026)  # type: ignore[arg-type]
