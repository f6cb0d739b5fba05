"""Lines that mean different things look different and have different names."""

from __future__ import annotations

from tests.standin.synthetic import repeats

from specstudy import figures
from specstudy.analysis import Variant
from specstudy.figures.style import looks, short_labels

PLAIN, TUNED = Variant("none", None, None, "default"), Variant("none", None, None, "tuned")
HEADS = [Variant("eagle3", "one", k, name) for name in ("default", "tuned") for k in (3, 5)]


def test_variants_of_the_engine_are_told_apart() -> None:
    every = [PLAIN, TUNED, *HEADS]
    found = looks(every)
    assert len({(look.color, look.marker, look.linestyle, look.fill) for look in found.values()}) == len(every)
    assert list(short_labels(every).values()) == [
        "default",
        "tuned",
        "EAGLE-3 K=3, default",
        "EAGLE-3 K=5, default",
        "EAGLE-3 K=3, tuned",
        "EAGLE-3 K=5, tuned",
    ]


def test_without_variants_a_family_keeps_its_look() -> None:
    plain, three, five = Variant("none", None, None), Variant("eagle3", "one", 3), Variant("eagle3", "one", 5)
    found = looks([plain, five, three])
    assert (found[three].linestyle, found[five].linestyle) == ("-", "--")
    assert short_labels([plain, three]) == {plain: "baseline", three: "EAGLE-3 K=3"}


def test_four_k_of_a_family_differ_in_marker_alone() -> None:
    found = looks([Variant("eagle3", "one", k) for k in (1, 3, 5, 7)])
    assert len({(look.keywords["markerfacecolor"], look.keywords.get("fillstyle")) for look in found.values()}) == 4


def test_a_bar_for_each_engine_variant_of_a_load() -> None:
    """Two variants at one load: two bars, each named."""
    times = {"queue_wait_ms_mean": 10.0, "ttft_ms_mean": 30.0, "gpu": "NVIDIA H200"}
    cells = [repeats([e2e] * 3, "e2e_ms_mean", engine_variant=name, concurrency=8, **times) for name, e2e in (("fp8", 100.0), ("awq", 200.0))]
    picture = figures.where_time_goes(cells)
    assert isinstance(picture, figures.Picture)
    assert "fp8, chat c=8: 10 ms waiting, 20 ms prefill, 70 ms decode" in picture.alt
    assert "awq, chat c=8: 10 ms waiting, 20 ms prefill, 170 ms decode" in picture.alt
