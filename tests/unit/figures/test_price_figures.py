"""The figures and tables on cost: their numbers by hand, their evidence, and what they say without records."""

from __future__ import annotations

import io
import math
import re

import numpy as np
import pytest
from PIL import Image
from tests.standin.synthetic import cell, record, repeats, request

from specstudy.analysis import Cell, Interval
from specstudy.catalog.prices import gpu_prices, middle_offer, own_price, token_prices
from specstudy.figures import Picture, Table, Text, token_price_picture, token_price_table
from specstudy.figures.price import change_table, cost_picture, cost_table, price_text, usd_text, utilization_table
from specstudy.figures.price_list import bill_table, break_even_table, gpu_price_table
from specstudy.figures.price_text import cost_lines

OFFERS = gpu_prices("NVIDIA H200")
NEBIUS = middle_offer(OFFERS).charged  # 4.50 an hour: 1,250 tokens/s cost a dollar a million


def loads(scale: float = 1.0, **same: object) -> list[Cell]:
    """125 and 1,250 tokens/s at two concurrencies, always the same: ten dollars and one dollar at scale 1."""
    shared = {"gpu": "NVIDIA H200", **same}
    return [repeats([scale * base] * 3, concurrency=c, **shared) for c, base in ((1, 125.0), (8, 1250.0))]


def both() -> list[Cell]:
    return [*loads(), *loads(2.0, method="eagle3", draft="a head", num_speculative_tokens=3)]


def uncut(picture: Picture) -> bool:
    pixels = np.asarray(Image.open(io.BytesIO(picture.png)).convert("L"))
    return all(border.min() > 200 for border in (pixels[:2], pixels[-2:], pixels[:, :2], pixels[:, -2:]))


def test_the_picture_tells_its_costs_and_its_price() -> None:
    picture = cost_picture(both(), NEBIUS)
    assert isinstance(picture, Picture)
    assert picture.evidence == "real"
    assert "$4.50 an hour (Nebius, 2026-09-25)" in picture.alt
    assert "baseline: $10.00 (10.00 to 10.00) at concurrency 1, $1.00 (1.00 to 1.00) at concurrency 8" in picture.alt
    assert "EAGLE-3: $5.00 (5.00 to 5.00) at concurrency 1 (K=3), $0.500 (0.500 to 0.500) at concurrency 8 (K=3)" in picture.alt
    assert uncut(picture)


def test_whole_chapters_render(compared: list[Cell], parallel: list[Cell], small: list[Cell]) -> None:
    for cells in (compared, parallel, small):
        picture = cost_picture(cells, NEBIUS)
        assert isinstance(picture, Picture) and uncut(picture)
        for table in (cost_table(cells, OFFERS, NEBIUS), change_table(cells), utilization_table(cells, NEBIUS)):
            assert isinstance(table, Table) and table.evidence == "real"
            assert not table.frame.isna().any().any() and not re.search(r"\b(nan|inf)\b", repr(table))


def test_a_shapes_costs_are_labelled_shape() -> None:
    cells = loads(evidence="shape", target="llama-3.3-70b-shape")
    picture, table = cost_picture(cells, NEBIUS), cost_table(cells, OFFERS, NEBIUS)
    assert isinstance(picture, Picture) and isinstance(table, Table)
    assert (picture.evidence, table.evidence) == ("shape", "shape")


def test_the_table_holds_the_cheapest_and_the_dearest_offer() -> None:
    table = cost_table(loads(), OFFERS, NEBIUS)
    assert isinstance(table, Table)
    first = table.frame.iloc[0]
    assert first["at $4.50/h"] == "$10.00 (10.00 to 10.00)"
    assert first["at $3.59/h"] == "$7.98"  # 3.59 / 3,600 / 125 x 10^6
    assert first["at $6.30/h"] == "$14.01"  # 6.305
    assert first["tokens/s"] == "125 (125 to 125)"


def test_utilization_divides() -> None:
    table = utilization_table(loads(), NEBIUS)
    assert isinstance(table, Table)
    assert table.frame.iloc[1][["busy 100%", "busy 60%", "busy 30%"]].tolist() == ["$1.00 (1.00 to 1.00)", "$1.67 (1.67 to 1.67)", "$3.33 (3.33 to 3.33)"]


def test_changes_name_ratio_and_verdict() -> None:
    table = change_table(both())
    assert isinstance(table, Table)
    assert table.frame["cost / baseline"].tolist() == ["0.50 (0.50 to 0.50)"] * 2
    assert table.frame["verdict"].tolist() == ["cheaper"] * 2
    assert table.frame["method"].tolist() == ["EAGLE-3 K=3"] * 2


@pytest.mark.parametrize(
    ("interval", "told"),
    [
        (Interval(0.3647, 0.1862, 8.898, 3), "$0.365 (0.186 to 8.90)"),
        (Interval(125.4, 99.94, 151.2, 3), "$125 (99.94 to 151)"),
        (Interval(2.0, 1.0, math.inf, 3), "$2.00 (1.00 to open)"),
        (Interval(2.0, math.nan, math.nan, 1), "$2.00 (one repeat)"),
    ],
)
def test_dollars_are_told_with_their_ends(interval: Interval, told: str) -> None:
    assert usd_text(interval) == told


def test_an_open_end_is_drawn_without_a_bar() -> None:
    picture = cost_picture([repeats([10.0, 1000.0, 3000.0])], NEBIUS)
    assert isinstance(picture, Picture) and "to open)" in picture.alt


def test_your_own_price_is_named_and_has_no_date() -> None:
    assert price_text(own_price(2.0)) == "$2.00 an hour (your own price)"


def test_without_records_there_is_a_sentence() -> None:
    for shown in (cost_picture([], NEBIUS), cost_table([], OFFERS, NEBIUS), utilization_table([], NEBIUS), change_table([]), cost_lines([], NEBIUS, "t")):
        assert isinstance(shown, Text) and shown.markdown.startswith("*")


def test_a_small_models_cost_stands_beside_no_list_price() -> None:
    told = cost_lines(both(), NEBIUS, "smollm2-135m-instruct").markdown
    assert "No list price on file sells tokens of smollm2-135m-instruct" in told
    assert not re.search("Sonnet|GPT", told)


def test_what_is_sold_stands_beside_its_sellers_price_and_the_asked_for_ones() -> None:
    told = cost_lines(both(), NEBIUS, "llama-3.3-70b-shape").markdown
    assert "DeepInfra's Llama 3.3 70B Instruct Turbo at $0.32 a million output tokens, prompts not charged (the same weights), is at 3,906 tokens/s" in told
    # 250 and 2,500 tokens/s at best; 4.50 an hour is 125 tokens/s at 10 dollars, 83 at 15.
    assert "is at 3,906 tokens/s. Measured throughput, each load's best method, GPU always busy: below at concurrency 1, 8." in told
    assert re.search(r"Sonnet 5\.5 at \$10\.00 .* is at 125 tokens/s\..*: above at concurrency 1, 8\.", told)
    assert re.search(r"GPT-5\.4 at \$15\.00 .* is at 83 tokens/s\.", told)


def test_the_sellers_charge_for_the_prompts_too() -> None:
    """Six prompt tokens for three of the answer: 0.32 + 2 x 0.10 dollars; 4.50 an hour over 0.52 is 2,404 tokens/s, and 2,500 are above that."""
    made = [record(repeat=n, record_id=f"{n:016x}", output_tokens_per_s=2500.0, gpu="NVIDIA H200") for n in range(3)]
    counted = cell(made, [request(one.record_id, 0, prompt_tokens=6, completion_tokens=3) for one in made])
    told = cost_lines([counted], NEBIUS, "llama-3.3-70b-shape").markdown
    assert "Turbo at $0.52 a million output tokens with the 2.00 million of prompts before them (the same weights), is at 2,404 tokens/s" in told
    assert re.search(r"is at 2,404 tokens/s\..* above at concurrency \d", told)


def test_a_shapes_random_weights_are_not_said_to_be_the_sold_ones() -> None:
    told = cost_lines(loads(evidence="shape", target="llama-3.3-70b-shape"), NEBIUS, "llama-3.3-70b-shape").markdown
    assert "(the model whose shape this is; measured with random weights), is at 3,906 tokens/s" in told
    assert "the same weights" not in told


def test_the_largest_change_is_the_one_furthest_from_none_whichever_way() -> None:
    """Twice as dear at both loads; half a percent cheaper within the noise is no change."""
    slower = loads(0.5, method="peagle", draft="slow", num_speculative_tokens=3)
    noisy = [repeats([120.0, 125.0, 132.0], concurrency=1, gpu="NVIDIA H200", method="eagle3", draft="even", num_speculative_tokens=3)]
    told = cost_lines([*loads(), *slower, *noisy], NEBIUS, "smollm2-135m-instruct").markdown
    assert "The largest change by a method at one load is slow K=3 at chat c=1: 2.00 (2.00 to 2.00) of its baseline's cost, dearer." in told
    assert "No method's change at any load is told apart from none." in cost_lines([*loads(), *noisy], NEBIUS, "smollm2-135m-instruct").markdown


def test_what_ran_on_another_model_runner_is_left_out_and_named() -> None:
    cells = [*both(), *loads(0.5, method="ngram", num_speculative_tokens=3, model_runner="V2")]
    table = change_table(cells)
    assert isinstance(table, Table)
    assert table.frame["method"].tolist() == ["EAGLE-3 K=3"] * 2
    assert "another model runner than the baseline: ngram." in table.note
    assert "since it ran on another model runner: ngram." in cost_lines(cells, NEBIUS, "smollm2-135m-instruct").markdown
    assert "model runner" not in cost_lines(both(), NEBIUS, "smollm2-135m-instruct").markdown


def test_conclusions_hold_the_computed_numbers() -> None:
    told = cost_lines(both(), NEBIUS, "smollm2-135m-instruct").markdown
    assert "Of the loads measured, the cheapest output tokens come from a head K=3 at chat c=8, the highest load: $0.500 (0.500 to 0.500) a million" in told
    assert "$1.67 (1.67 to 1.67) if it serves in 30 % of the paid time" in told
    assert "$10.00 (10.00 to 10.00) at chat c=1 and $1.00 (1.00 to 1.00) at chat c=8, 10.0 times less" in told
    assert "a head, cost over its own baseline's: cheaper: 0.50 (0.50 to 0.50) at chat c=1 (K=3), 0.50 (0.50 to 0.50) at chat c=8 (K=3)." in told


def test_price_lists_are_published_and_whole() -> None:
    picture = token_price_picture()
    assert picture.evidence == "published" and uncut(picture)
    assert all(f"{row.model} ({row.provider}) ${row.usd_per_1m_output:.2f}" in picture.alt for row in token_prices())
    for table in (token_price_table(), gpu_price_table(("H200", "H100")), break_even_table("H200"), bill_table({"chat": 0.5})):
        assert table.evidence == "published"
        assert not table.frame.isna().any().any()


def test_it_is_said_how_many_prices_are_copies() -> None:
    """Of the 14 list prices five stand on the sellers' own sites: three Sonnets, GPT-5.6 Sol, GPT-OSS-20B."""
    assert "9 of 14 were read in somebody else's copy of the seller's list" in token_price_table().note
    assert "All 6 were read in somebody else's copy" in gpu_price_table(("H200",)).note


def test_bills_add_the_prompts() -> None:
    rows = bill_table({"chat": 0.5}).frame.set_index("model")
    assert rows.loc["Claude Sonnet 5.5"].tolist() == ["$10.00", "$11.00"]  # 10 + 0.5 x 2
    assert rows.loc["GPT-5.4"].tolist() == ["$15.00", "$16.25"]  # 15 + 0.5 x 2.50


def test_break_even_holds_the_anchors() -> None:
    rows = break_even_table("H200").frame.set_index("output price")
    assert rows.loc["$10.00", "at $4.50/h, Nebius"] == "125"
    assert rows.loc["$15.00", "at $4.50/h, Nebius"] == "83"
    assert "Claude Sonnet 4.6" in rows.loc["$15.00", "asked for"] and "GPT-5.4" in rows.loc["$15.00", "asked for"]


def test_the_cheapest_names_what_it_isnt_told_apart_from() -> None:
    """Over the cheapest, 200, 210 and 190 tokens/s, one with 199, 212 and 188 is nothing told apart from; one with half is."""
    own: dict[str, object] = {"method": "eagle3", "draft": "a-head", "concurrency": 8}
    near, half = ([199.0, 212.0, 188.0], [100.0, 105.0, 95.0])
    cells = [repeats([50.0, 50.0, 50.0], concurrency=8), repeats([200.0, 210.0, 190.0], num_speculative_tokens=3, **own)]
    cells += [repeats(values, num_speculative_tokens=k, **own) for k, values in ((5, near), (7, half))]
    told = cost_lines(cells, NEBIUS, "smollm2-135m-instruct").markdown
    assert "if it serves in 30 % of the paid time; not told apart there from a-head K=5." in told
