"""Loaded by vLLM's workers, not by us: random weights that cost what a model's do. `--worker-extension-cls` has a worker import it first.

vLLM's `--load-format dummy` is short of that in three ways:

- Weights stored in fewer than 16 bits stay as the memory was found, or round to zero. Multiplying zeros takes less power, so the
  GPU holds a higher clock than with a model's weights. Here they get random bits.
- Norms get weights near zero. A static FP8 scale would then quantize almost every activation to zero. Here they are one.
- A head is taken to have no lm_head of its own and drafts with the target's, which is up to four times larger. Here it keeps its own.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any

import torch

# Weights of standard deviation 1 / sqrt(inputs) keep activations near one, where a scale of 1/50 makes good use of e4m3's range, 448.
INPUT_SCALE = 0.02
# E8M0: 2^(120 - 127), times the standard deviation of random FP4 numbers, 2.9, is 1 / sqrt(inputs) for about 2,000 inputs.
MX_SCALE = 120
PACKED_NAMES = ("qweight", "qzeros")
log = logging.getLogger("vllm.specstudy")


class RandomWeights:
    """Adds nothing to the worker: the import of this module has done it."""


@torch.no_grad()
def fill(model: torch.nn.Module, seed: int = 0) -> int:
    """Give the parameters named above random values, in place; their number. The weight of a linear layer is (outputs, inputs)."""
    filled = 0
    for number, (path, parameter) in enumerate(model.named_parameters()):
        if parameter.device.type == "meta":
            continue
        generator = torch.Generator(device=parameter.device).manual_seed(seed + number)
        filled += _fill_one(path, parameter.data, generator)
    return filled


def _fill_one(path: str, values: torch.Tensor, generator: torch.Generator) -> bool:
    owner, _, name = path.rpartition(".")
    if values.dtype == torch.float8_e4m3fn:
        drawn = torch.randn(values.shape, dtype=torch.bfloat16, device=values.device, generator=generator)
        values.copy_((drawn * 32).clamp(-448, 448).to(values.dtype))
    elif values.dtype == torch.uint8 and name.endswith("_scale"):
        values.fill_(MX_SCALE)
    elif values.dtype == torch.uint8 or (values.dtype == torch.int32 and name in PACKED_NAMES):
        values.view(torch.uint8).random_(0, 256, generator=generator)
    elif name == "input_scale":
        values.fill_(INPUT_SCALE)
    elif name == "weight_scale" and values.dtype == torch.float32:
        values.fill_(1 / (32 * 8192**0.5))
    elif name == "weight" and values.dim() == 1 and "norm" in owner.rpartition(".")[2]:
        values.fill_(1)
    else:
        return False
    return True


def _extend() -> None:
    loader: Any = importlib.import_module("vllm.model_executor.model_loader.dummy_loader").DummyModelLoader
    load = loader.load_weights

    def load_weights(self: Any, model: torch.nn.Module, model_config: Any) -> None:
        load(self, model, model_config)
        log.info("random weights: %d tensors filled that --load-format dummy leaves alone or near zero", fill(model))

    loader.load_weights = load_weights
    importlib.import_module("vllm.model_executor.models.llama_eagle3").Eagle3LlamaForCausalLM.has_own_lm_head = True


try:
    _extend()
except ModuleNotFoundError as missing:  # pragma: no cover - in a process without vLLM only `fill` is of use
    if (missing.name or "").partition(".")[0] != "vllm":
        raise
