"""Prices against what their sources say; copied from there by hand."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from specstudy.catalog.prices import Charged, GpuPrice, gpu_prices, hosted_weights_of, middle_offer, own_price, token_prices
from specstudy.errors import ConfigError


@pytest.fixture(autouse=True)
def _this_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECSTUDY_ROOT", str(Path(__file__).parents[3]))


@pytest.mark.parametrize(
    ("row_id", "usd", "read_on"),
    [
        ("h200/runpod-community", 3.59, date(2026, 9, 25)),
        ("h200/nebius", 4.50, date(2026, 9, 25)),
        ("h200/runpod-secure", 4.59, date(2026, 9, 25)),
        ("h200/coreweave", 50.44 / 8, date(2026, 9, 20)),
        ("h100/runpod-community", 2.69, date(2026, 11, 9)),
        ("h100/lambda", 4.29, date(2026, 9, 25)),
        ("h100/lambda-8", 3.99, date(2026, 9, 20)),
        ("h100/aws", 55.04 / 8, date(2026, 11, 9)),
        ("h100/gcp", 10.9791, date(2026, 9, 26)),
        ("h100/azure", 12.29, date(2026, 11, 9)),
    ],
)
def test_a_gpu_hour_is_its_sources(row_id: str, usd: float, read_on: date) -> None:
    (row,) = [row for row in gpu_prices() if row.id == row_id]
    assert (row.usd_per_gpu_hour, row.read_on) == (pytest.approx(usd, abs=1e-4), read_on)


@pytest.mark.parametrize(
    ("row_id", "given", "output"),
    [
        ("anthropic/sonnet-4.6", 3, 15),
        ("anthropic/sonnet-5", 2, 10),
        ("anthropic/sonnet-5.5", 2, 10),
        ("openai/gpt-5.4", 2.50, 15),
        ("openai/gpt-5.4-mini", 0.75, 4.50),
        ("openai/gpt-6.1-sol", 2, 10),
        ("deepinfra/llama-3.3-70b-turbo", 0.10, 0.32),
        ("wandb/gpt-oss-20b", 0.05, 0.20),
    ],
)
def test_a_token_price_is_its_sources(row_id: str, given: float, output: float) -> None:
    (row,) = [row for row in token_prices() if row.id == row_id]
    assert (row.usd_per_1m_input, row.usd_per_1m_output) == (given, output)


def test_no_list_sells_a_sonnet_4_7() -> None:
    assert not [row for row in token_prices() if "4.7" in row.model]


def test_offers_belong_to_the_gpu_that_a_record_names() -> None:
    assert {row.gpu for row in gpu_prices("NVIDIA H200")} == {"H200"}
    assert {row.gpu for row in gpu_prices("8 x NVIDIA H100 80GB HBM3")} == {"H100"}
    assert gpu_prices("NVIDIA GH200 480GB") == []
    assert gpu_prices("NVIDIA A10") == []
    assert gpu_prices("NVIDIA H200X") == []  # another card, whose name begins like one that is on the list, as L40S does like L40
    prices = [row.usd_per_gpu_hour for row in gpu_prices("NVIDIA H200")]
    assert prices == sorted(prices)


@pytest.mark.parametrize(
    "name",
    ["NVIDIA H100 PCIe", "NVIDIA H100 NVL", "2 x NVIDIA H200 NVL", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA GH200 144G HBM3e"],
)
def test_another_card_of_the_same_generation_has_no_price(name: str) -> None:
    """The offers on file are all of SXM cards, whose memory and power the others do not have."""
    assert gpu_prices(name) == []


def offer(number: int, usd: float) -> GpuPrice:
    page = "https://a"
    return GpuPrice.model_validate(
        {
            "id": f"h200/p{number}",
            "provider": f"p{number}",
            "gpu": "H200",
            "card": "NVIDIA H200",
            "offer": "one",
            "usd_per_gpu_hour": usd,
            "min_gpus": 1,
            "commitment": "on demand",
            "price_page": page,
            "read_on": "2026-11-29",
            "source": page,
            "note": None,
        }
    )


@pytest.mark.parametrize(("prices", "middle"), [([3.0, 1.0, 2.0], 2.0), ([4.0, 1.0, 3.0, 2.0], 3.0), ([5.0], 5.0)])
def test_the_middle_offer_is_a_real_one_and_of_two_the_dearer(prices: list[float], middle: float) -> None:
    assert middle_offer([offer(number, usd) for number, usd in enumerate(prices)]).usd_per_gpu_hour == middle


def test_without_an_offer_there_is_no_middle() -> None:
    with pytest.raises(ConfigError, match=r"gpu_hours\.csv"):
        middle_offer([])


def test_your_own_price_says_so() -> None:
    assert own_price(2.0) == Charged(2.0, "your own price")
    assert offer(0, 4.5).charged == Charged(4.5, "p0, 2026-11-29")


@pytest.mark.parametrize("usd", [0, -1, float("inf"), float("nan"), "2,5", True])
def test_a_price_that_is_none_is_refused(usd: Any) -> None:
    with pytest.raises(ConfigError, match="usd_per_gpu_hour"):
        own_price(usd)


def test_a_bill_holds_the_prompts() -> None:
    (sonnet,) = [row for row in token_prices() if row.id == "anthropic/sonnet-5.5"]
    assert sonnet.bill_per_1m_output(2.0) == pytest.approx(10 + 2 * 2)  # two input tokens at 2 dollars a million each
    assert sonnet.bill_per_1m_output(0.0) == pytest.approx(10)


def test_only_a_target_whose_weights_somebody_sells_has_a_like_for_like_price() -> None:
    assert [row.id for row in hosted_weights_of("llama-3.3-70b-shape")] == ["deepinfra/llama-3.3-70b-turbo"]
    assert [row.id for row in hosted_weights_of("gpt-oss-20b-shape")] == ["wandb/gpt-oss-20b"]
    assert [row.id for row in hosted_weights_of("llama-3.3-70b-awq-shape")] == [row.id for row in hosted_weights_of("llama-3.3-70b")] != []
    assert hosted_weights_of("llama-3.3-70b-my-finetune") == hosted_weights_of("smollm2-135m-instruct") == []


HEADER = "id,provider,gpu,card,offer,usd_per_gpu_hour,min_gpus,commitment,price_page,read_on,source,note"
GOOD = "h200/a,A,H200,NVIDIA H200,one,4.5,1,on demand,https://a,2026-11-29,https://a,"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([GOOD.replace("4.5", "0")], "line 2: usd_per_gpu_hour"),
        ([GOOD.replace("2026-11-29", "")], "line 2: read_on"),
        ([GOOD.replace("2026-11-29,https://a", "2026-11-29,somewhere")], "line 2: source"),
        ([GOOD, GOOD], "gpu_hours.csv: id: got 'h200/a'; each id once"),
        ([GOOD + ",more"], "line 2: got ['more']; no more fields than the first line names"),
        ([], "gpu_hours.csv: got 'no row'; a line of names, then at least one row"),
    ],
)
def test_a_price_without_date_source_or_amount_is_refused(lines: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data" / "profiles").mkdir(parents=True)
    (tmp_path / "data" / "prices").mkdir()
    (tmp_path / "data" / "prices" / "gpu_hours.csv").write_text("\n".join([HEADER, *lines]))
    monkeypatch.setenv("SPECSTUDY_ROOT", str(tmp_path))
    with pytest.raises(ConfigError) as caught:
        gpu_prices()
    assert message in str(caught.value)


def test_a_copy_of_a_list_is_told_from_the_list() -> None:
    own = {row.id: not row.second_hand for row in token_prices()}
    assert own["anthropic/sonnet-5.5"] and own["wandb/gpt-oss-20b"]  # platform.claude.com, wandb.ai
    assert not own["openai/gpt-5.4"]  # read in GitHub's table for Copilot
    assert all(row.second_hand for row in gpu_prices())


def test_a_file_that_is_no_text_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data" / "profiles").mkdir(parents=True)
    (tmp_path / "data" / "prices").mkdir()
    (tmp_path / "data" / "prices" / "gpu_hours.csv").write_bytes(HEADER.encode() + b"\n\xff")
    monkeypatch.setenv("SPECSTUDY_ROOT", str(tmp_path))
    with pytest.raises(ConfigError, match=r"gpu_hours\.csv: got 'unreadable'; a CSV file in UTF-8"):
        gpu_prices()
