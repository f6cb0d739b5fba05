"""Tensors that a head must have, with their shapes."""

from __future__ import annotations

from specstudy.catalog.packed import D2T, LM_HEAD
from specstudy.drafts.checkpoint import Head

Shapes = dict[str, tuple[int, ...]]


def expected_shapes(head: Head, hidden: int) -> Shapes:
    """Tensors by name for a target of hidden size H = `hidden`.

    Sizes that a check of its own compares (columns of fc, rows of lm_head and d2t, rows of q and k) are
    taken from the weights, so that one fault is reported once. Norms before fc and mask_hidden are left out.
    """
    config, tensors = head.config, head.tensors
    attention = {letter: _rows(head, f"layers.0.self_attn.{letter}_proj.weight", hidden) for letter in "qk"}
    inner = int(config.get("intermediate_size") or 0)
    shapes: Shapes = {
        "fc.weight": (hidden, tensors["fc.weight"].shape[-1] if "fc.weight" in tensors else head.num_aux * hidden),
        "norm.weight": (hidden,),
        LM_HEAD: (_rows(head, LM_HEAD, int(config.get("draft_vocab_size") or 0)), hidden),
    }
    if D2T in tensors or config.get("draft_vocab_size") not in (None, config.get("vocab_size")):
        shapes[D2T] = (_rows(head, D2T, int(config.get("draft_vocab_size") or 0)),)
    if "embed_tokens.weight" in tensors:
        shapes["embed_tokens.weight"] = (int(config.get("vocab_size") or 0), hidden)
    for index in range(int(config.get("num_hidden_layers") or 1)):
        shapes |= _layer(index, hidden, inner, attention)
    return shapes


def _layer(index: int, hidden: int, inner: int, attention: dict[str, int]) -> Shapes:
    read = 2 * hidden if index == 0 else hidden  # the first layer reads the token's embedding beside the hidden state
    at = f"layers.{index}"
    norms = ["input_layernorm", "post_attention_layernorm", *(["hidden_norm"] if index == 0 else [])]
    return {
        **{f"{at}.{norm}.weight": (hidden,) for norm in norms},
        f"{at}.self_attn.q_proj.weight": (attention["q"], read),
        f"{at}.self_attn.k_proj.weight": (attention["k"], read),
        f"{at}.self_attn.v_proj.weight": (attention["k"], read),
        f"{at}.self_attn.o_proj.weight": (hidden, attention["q"]),
        f"{at}.mlp.gate_proj.weight": (inner, hidden),
        f"{at}.mlp.up_proj.weight": (inner, hidden),
        f"{at}.mlp.down_proj.weight": (hidden, inner),
    }


def _rows(head: Head, name: str, otherwise: int) -> int:
    return len(head.tensors[name]) if name in head.tensors else otherwise
