"""Loaded by vLLM's workers, not by us: a head with random weights keeps the lm_head of its own size.

vLLM learns from a checkpoint whether a head brings an lm_head of its own; without a checkpoint it takes it for granted that
there is none, and drafts with the target's. A published head's is smaller, up to four times, so each drafted token would cost
too much. `--worker-extension-cls` has a worker import this module before it builds the models.
"""

from __future__ import annotations

import importlib


class KeepsOwnLmHead:
    """Adds nothing to the worker: the import of this module has done it."""


importlib.import_module("vllm.model_executor.models.llama_eagle3").Eagle3LlamaForCausalLM.has_own_lm_head = True
