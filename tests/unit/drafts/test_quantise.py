"""The quantiser against its theory, and against values worked out by hand."""

from __future__ import annotations

import pytest
import torch

from specstudy.catalog.packed import GROUP, dequantise
from specstudy.drafts.pack import quantise
from specstudy.errors import ConfigError

LARGEST = {8: 127, 4: 7}  # the integer that the scale of a group's largest magnitude gives it, on the shorter side


def weights(seed: int, spread: float, tail: bool) -> torch.Tensor:
    made = torch.Generator().manual_seed(seed)
    values = torch.randn(48, 128, generator=made)
    return (spread * (values**3 if tail else values)).bfloat16()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("seed", "spread", "tail"), [(0, 0.02, False), (1, 0.02, True), (2, 1e-12, False), (3, 3e4, True)])
def test_the_error_of_a_group_is_within_the_bound(bits: int, seed: int, spread: float, tail: bool) -> None:
    # Rounding to integers times s errs by at most s / 2 a value where nothing is cut off, so a group of n has an error of norm
    # sqrt(n) s / 2 at most, with s = peak / largest rounded up to bf16 (a factor below 1 + 2^-7). A better scale only
    # lowers that. The product is rounded to bf16 after it: half a unit of 8 significant bits, 2^-8 of its size.
    weight = weights(seed, spread, tail)
    back = dequantise(*quantise(weight, bits), bits)
    assert back.dtype == torch.bfloat16
    n = GROUP[bits]
    given, got = weight.double().view(48, -1, n), back.double().view(48, -1, n)
    scale = given.abs().amax(-1) / LARGEST[bits] * (1 + 2**-7)
    bound = n**0.5 * scale / 2 + 2**-8 * got.norm(dim=-1) * (1 + 2**-7)
    assert ((given - got).norm(dim=-1) <= bound).all()


def test_the_search_beats_the_largest_magnitude_as_scale() -> None:
    # Round to nearest with peak / 7, worked out in double precision, without any rounding of the scale.
    weight = weights(5, 0.02, False)
    grouped = weight.double().view(48, -1, 32)
    scale = grouped.abs().amax(-1, keepdim=True) / 7
    plain = (grouped - (grouped / scale).round() * scale).square().sum()
    ours = (weight.double() - dequantise(*quantise(weight, 4), 4).double()).square().sum()
    assert ours < 0.9 * plain


@pytest.mark.parametrize(("bits", "low", "high", "unit"), [(8, -127, 127, 2.0**-10), (4, -8, 7, 2.0**-6), (4, -7, 8, 2.0**-6)])
def test_multiples_of_a_power_of_two_come_back_exactly(bits: int, low: int, high: int, unit: float) -> None:
    made = torch.Generator().manual_seed(0)
    integers = torch.randint(low, high + 1, (16, 128), generator=made).float()
    integers[:, :: GROUP[bits]], integers[:, 1 :: GROUP[bits]] = low, high  # each group reaches both ends
    weight = (integers * unit).bfloat16()
    assert torch.equal(dequantise(*quantise(weight, bits), bits), weight)


def test_two_values_share_a_byte_the_even_column_in_the_low_half() -> None:
    weight = torch.zeros(1, 32, dtype=torch.bfloat16)
    weight[0, :4] = torch.tensor([7.0, -8.0, 1.0, 0.0])
    integers, scale = quantise(weight, 4)
    # Stored as value + 8: 15 and 0, 9 and 8, then eights.
    assert integers[0].tolist() == [15 + 16 * 0, 9 + 16 * 8, *[8 + 16 * 8] * 14]
    assert scale.tolist() == [[1.0]]


@pytest.mark.parametrize("bits", [4, 8])
def test_nothing_but_zeros_stays_zero(bits: int) -> None:
    weight = torch.zeros(2, 128, dtype=torch.bfloat16)
    weight[1, 0] = 1.0
    back = dequantise(*quantise(weight, bits), bits)
    assert torch.equal(back[0], weight[0])
    assert back[1, 1:].abs().max() == 0
    assert float(back[1, 0]) == pytest.approx(1.0, rel=2**-7)


@pytest.mark.parametrize(("bits", "columns"), [(8, 96), (4, 48)])
def test_columns_that_groups_do_not_divide_are_refused(bits: int, columns: int) -> None:
    with pytest.raises(ConfigError, match=rf"{columns} input columns"):
        quantise(torch.zeros(4, columns), bits)
