"""What vLLM's dummy loader leaves at zero is random, what it isn't asked for stays."""

from __future__ import annotations

import pytest
import torch

from specstudy.serving.random_weights import INPUT_SCALE, MX_SCALE, fill


class Layer(torch.nn.Module):
    def __init__(self, **tensors: torch.Tensor) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            self.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=False))


def distinct(tensor: torch.Tensor) -> int:
    return len(tensor.view(torch.uint8).unique())


def test_a_static_fp8_layer_has_weights_and_scales_that_keep_activations_near_one() -> None:
    layer = Layer(weight=torch.zeros(256, 8192).to(torch.float8_e4m3fn), weight_scale=torch.full((1,), -1e-4), input_scale=torch.full((1,), -1e-4))
    assert fill(layer) == 3
    weights = layer.weight.float() * layer.weight_scale
    assert abs(weights.std().item() * 8192**0.5 - 1) < 0.02
    out = torch.randn(16, 8192) @ weights.t()
    assert 0.9 < out.std() < 1.1
    assert layer.input_scale.item() == pytest.approx(INPUT_SCALE) and 6 < INPUT_SCALE * 448 < 12  # six standard deviations fit


def test_packed_integers_get_random_bits() -> None:
    layer = Layer(qweight=torch.zeros(64, 64, dtype=torch.int32), qzeros=torch.zeros(8, 64, dtype=torch.int32), g_idx=torch.arange(64, dtype=torch.int32))
    assert fill(layer) == 2
    assert distinct(layer.qweight) == 256 and distinct(layer.qzeros) > 200
    assert layer.g_idx.tolist() == list(range(64))


def test_mxfp4_experts_get_random_bits_and_one_scale() -> None:
    layer = Layer(w13_weight=torch.zeros(4, 64, 32, dtype=torch.uint8), w13_weight_scale=torch.zeros(4, 64, 2, dtype=torch.uint8))
    assert fill(layer) == 2
    assert distinct(layer.w13_weight) == 256
    assert set(layer.w13_weight_scale.flatten().tolist()) == {MX_SCALE}


def test_norms_are_one_and_what_is_left_stays() -> None:
    model = torch.nn.Module()
    model.input_layernorm = Layer(weight=torch.full((8,), 1e-3))
    model.proj = Layer(weight=torch.full((8, 8), 1e-3), bias=torch.full((8,), 1e-3))
    assert fill(model) == 1
    assert model.input_layernorm.weight.tolist() == [1.0] * 8
    assert model.proj.weight.eq(1e-3).all() and model.proj.bias.eq(1e-3).all()


def test_the_same_values_each_time_and_other_ones_in_each_tensor() -> None:
    def packed() -> Layer:
        return Layer(qweight=torch.zeros(8, 8, dtype=torch.int32), qzeros=torch.zeros(8, 8, dtype=torch.int32))

    first, second = packed(), packed()
    fill(first), fill(second)
    assert first.qweight.equal(second.qweight)
    assert not first.qweight.equal(first.qzeros)
