"""Is a draft head what its card says? Each check is one way in which acceptance is known to fall without any error.

What vLLM does with a wrong head: it loads it, drafts badly, and gives the target's text all the same, only slower. The
faults are those of vllm#38111 and vllm#43482 (norms in the weights that are never applied), SpecForge#879 (meaning of
norm_output), vllm#40551 (auxiliary layers read from the top level only), and of heads trained for another vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch

from specstudy.catalog.packed import D2T, LM_HEAD, ids_of, weights_sha256
from specstudy.drafts.card import Card, NormFlags
from specstudy.drafts.checkpoint import AUX_IDS, PARALLEL_TOKENS, Head, check_types, head_dim, read_head, read_json, rope, tokenizer_sha256
from specstudy.drafts.shapes import expected_shapes
from specstudy.errors import ConfigError

Verdict = Literal["ok", "fail", "not checked"]
PARALLEL_METHODS = frozenset({"peagle"})
# What vLLM 0.26 to 0.32 register for EAGLE-3 over a dense decoder; a plain name gets the prefix Eagle3 there.
ARCHITECTURES = frozenset({"LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Qwen3ForCausalLM"})


@dataclass(frozen=True)
class Finding:
    """One check: what was found, and what is allowed."""

    check: str
    verdict: Verdict
    found: str
    allowed: str


@dataclass(frozen=True)
class Subject:
    """What a check looks at."""

    head: Head
    target: Mapping[str, Any]
    target_folder: Path
    card: Card | None


Answer = tuple[bool | None, str, str]  # True is ok, None not checked; then what was found and what is allowed
Check = Callable[[Subject], Answer]


def check_head(folder: Path, target_folder: Path, card: Card | None = None) -> list[Finding]:
    """Every check that needs no server, in a fixed order.

    Without a card the checks that compare with it are "not checked". Raises ConfigError where the head's or
    the target's files can't be read at all, and for a field of either config.json that has the wrong type.
    """
    target = read_json(target_folder / "config.json", "target")
    for name in ("hidden_size", "num_hidden_layers", "vocab_size"):
        if not isinstance(target.get(name), int):
            raise ConfigError(f"target: {name}", target.get(name), "a number: the study's heads belong to text models")
    check_types(target, "target: config.json")
    subject = Subject(read_head(folder), target, target_folder, card)
    return [_finding(name, check(subject)) for name, check in CHECKS.items()]


def _finding(name: str, answer: Answer) -> Finding:
    passed, found, allowed = answer
    return Finding(name, "not checked" if passed is None else "ok" if passed else "fail", found, allowed)


def findings_table(findings: list[Finding]) -> pd.DataFrame:
    """A row for each finding, for a chapter."""
    return pd.DataFrame([(one.check, one.verdict, one.found, one.allowed) for one in findings], columns=["check", "verdict", "found", "allowed"])


def _architecture(subject: Subject) -> Answer:
    names = list(subject.head.config.get("architectures") or [])
    known = [name for name in names if name in ARCHITECTURES or f"Eagle3{name}" in ARCHITECTURES]
    return len(names) == 1 == len(known), ", ".join(names) or "none", f"one of {', '.join(sorted(ARCHITECTURES))}"


def _method(subject: Subject) -> Answer:
    signs = _parallel_signs(subject.head)
    found = "drafts in parallel" if all(signs.values()) else "some signs of P-EAGLE" if any(signs.values()) else "drafts one token after the other"
    if subject.card is None:
        return None, found, "the card's method"
    if any(signs.values()) and not all(signs.values()):
        return None, found, "see parallel drafting"
    return all(signs.values()) == (subject.card.method in PARALLEL_METHODS), found, f"what {subject.card.method} does"


def _vocabulary(subject: Subject) -> Answer:
    sizes = [subject.head.config.get("vocab_size"), subject.target.get("vocab_size")]
    return sizes[0] == sizes[1], f"vocab_size {sizes[0]}", f"the target's, {sizes[1]}"


def _draft_vocabulary(subject: Subject) -> Answer:
    config, tensors = subject.head.config, subject.head.tensors
    whole = int(subject.target["vocab_size"])
    allowed = f"draft_vocab_size rows of lm_head, and as many different ids below {whole} in rising order"
    if LM_HEAD not in tensors:
        return None, f"no {LM_HEAD}", allowed
    rows, said = len(tensors[LM_HEAD]), config.get("draft_vocab_size") or config.get("vocab_size")
    if rows != said:
        return False, f"{rows} rows of lm_head, draft_vocab_size {said}", allowed
    ids = ids_of(tensors.get(D2T))
    if ids is None:
        return rows == whole, f"{rows} rows of lm_head and no d2t", allowed if rows != whole else f"{whole} rows, or d2t"
    if len(ids) != rows:
        return False, f"{len(ids)} ids in d2t, {rows} rows of lm_head", allowed
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= whole:
        return False, f"ids from {low} to {high}", allowed
    falls = int((ids.diff() <= 0).sum())
    return falls == 0, f"{rows:,} ids from {low} to {high}" + (f", {falls} not above the one before" if falls else ""), allowed


def _target(subject: Subject) -> Answer:
    names = ("hidden_size", "num_hidden_layers", "vocab_size")
    found = {name: subject.target[name] for name in names}
    if subject.card is None:
        return None, _flat(found), "the card's target"
    wanted = {name: getattr(subject.card.target, name) for name in names}
    return found == wanted, _flat(found), f"the card's {subject.card.target.name}: {_flat(wanted)}"


def _tokenizer(subject: Subject) -> Answer:
    found = tokenizer_sha256(subject.target_folder)
    if subject.card is None or found is None:
        return None, "no tokenizer.json with the target" if found is None else f"the target's is {found[:12]}", "the card's tokenizer"
    wanted = subject.card.target.tokenizer_sha256
    return found == wanted, f"the target's is {found[:12]}", f"the card's, {wanted[:12]}"


def _hidden_size(subject: Subject) -> Answer:
    found, wanted = subject.head.config.get("hidden_size"), subject.target.get("hidden_size")
    return found == wanted, f"hidden_size {found}", f"the target's, {wanted}"


def _attention_heads(subject: Subject) -> Answer:
    config = subject.head.config
    queries, keys = (subject.head.tensors.get(f"layers.0.self_attn.{name}_proj.weight") for name in "qk")
    width, heads = head_dim(config), config.get("num_attention_heads")
    groups = config.get("num_key_value_heads") or heads
    if queries is None or keys is None or not (width and heads and groups):
        return None, "q_proj, k_proj or their numbers are missing", "num_attention_heads and num_key_value_heads times head_dim"
    wanted = (int(heads) * width, int(groups) * width)
    same = head_dim(subject.target) == width
    found = f"head_dim {width}; {len(queries)} rows of q_proj, {len(keys)} of k_proj"
    return same and wanted == (len(queries), len(keys)), found, f"head_dim {head_dim(subject.target)} like the target; {wanted[0]} and {wanted[1]} rows"


def _rope(subject: Subject) -> Answer:
    found, wanted = rope(subject.head.config), rope(subject.target)
    return found == wanted, _flat(found), f"the target's: {_flat(wanted)}"


def _flat(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items())


def _context(subject: Subject) -> Answer:
    found, wanted = subject.head.config.get("max_position_embeddings"), subject.target.get("max_position_embeddings")
    if found is None or wanted is None:
        return None, f"max_position_embeddings {found}", f"at least the target's, {wanted}"
    return found >= wanted, f"max_position_embeddings {found}", f"at least the target's, {wanted}"


def _fc_input(subject: Subject) -> Answer:
    head, hidden = subject.head, int(subject.target["hidden_size"])
    wanted = head.num_aux * hidden
    allowed = f"{head.num_aux} hidden states of {hidden}: {wanted} columns"
    if "fc.weight" not in head.tensors:
        return None, "no fc.weight", allowed
    return head.tensors["fc.weight"].shape[-1] == wanted, f"{head.tensors['fc.weight'].shape[-1]} columns", allowed


def _aux_layers(subject: Subject) -> Answer:
    config, layers = subject.head.config, int(subject.target["num_hidden_layers"])
    nested_config = subject.head.eagle_config
    top, nested = config.get(AUX_IDS), nested_config.get(AUX_IDS)
    found = f"{top} at the top level, {nested} in eagle_config"
    if nested_config.get("use_aux_hidden_state", True) is not True:
        return False, "use_aux_hidden_state is off", "on: else fc is never applied"
    if subject.card is not None and top == nested and top != list(subject.card.aux_layers):
        return False, found, f"the card's, {list(subject.card.aux_layers)}"
    allowed = f"the same ids at both places, rising, from 0 to {layers}"  # vLLM sorts them: others would reach the wrong part of fc
    ids = [layer for layer in top if isinstance(layer, int)] if isinstance(top, list) else []
    good = bool(ids) and ids == top == nested == sorted(set(ids)) and ids[0] >= 0 and ids[-1] <= layers
    return good, found, allowed


def _norm_weights(subject: Subject) -> Answer:
    head = subject.head
    has, said, nested = *_norms(head), head.eagle_config
    pieces = {name for name in head.tensors if name.startswith("fc_norm.")}
    if all(said.values()) or all(has.values()):
        return False, "fc_norm and norm_before_fc together", "at most one of them"
    if unread := [name for name in ("fc_norm", "norm_output", "norm_before_residual") if name in nested and name not in head.config]:
        return False, f"{', '.join(unread)} in eagle_config only", "at the top level, where vLLM reads it"
    if pieces and pieces != {f"fc_norm.{i}.weight" for i in range(head.num_aux)}:
        return False, ", ".join(sorted(pieces)), f"one fc_norm for each of {head.num_aux} hidden states"
    for name, present in has.items():
        if present and not said[name]:
            return False, f"{name} in the weights, not in config.json: it would not be applied", "both or neither"
        if said[name] and not present:
            return False, f"{name} in config.json, not in the weights: it would be applied untrained", "both or neither"
    return True, ", ".join(name for name, present in has.items() if present) or "no norm before fc", "the same in weights and config.json"


def _norms(head: Head) -> tuple[dict[str, bool], dict[str, bool]]:
    """The norms before fc: those that the weights have, and those that config.json names."""
    flags = NormFlags.of(head.config)
    has = {"fc_norm": any(name.startswith("fc_norm.") for name in head.tensors), "norm_before_fc": "input_norm.weight" in head.tensors}
    return has, {"fc_norm": flags.fc_norm, "norm_before_fc": flags.norm_before_fc}


def _norm_flags(subject: Subject) -> Answer:
    found = NormFlags.of(subject.head.config).model_dump()
    if subject.card is None or subject.card.norm_flags is None:
        return None, _flat(found), "the card's norm_flags; norm_output and norm_before_residual have no weight that would show them"
    wanted = subject.card.norm_flags.model_dump()
    has, said = _norms(subject.head)
    # Where weights and config.json disagree, the check before this one has said so.
    settled = [name for name in wanted if name not in has or has[name] == said[name]]
    wrong = [name for name in settled if found[name] != wanted[name]]
    return not wrong, _flat({name: found[name] for name in wrong or settled}), f"the card's: {_flat(wanted)}"


def _parallel_signs(head: Head) -> dict[str, bool]:
    token = any(head.config.get(name) is not None for name in PARALLEL_TOKENS)
    return {"mask_hidden": "mask_hidden" in head.tensors, "pard_token": token, "parallel_drafting": head.config.get("parallel_drafting") is True}


def _parallel(subject: Subject) -> Answer:
    head, signs = subject.head, _parallel_signs(subject.head)
    allowed = "mask_hidden in the weights, pard_token (or ptd_token_id) and parallel_drafting in config.json, or none of them"
    if not any(signs.values()):
        return True, "nothing of P-EAGLE", allowed
    if missing := [name for name, there in signs.items() if not there]:
        return False, f"without {', '.join(missing)}", allowed
    tokens = [head.config[name] for name in PARALLEL_TOKENS if head.config.get(name) is not None]
    if not all(0 <= int(token) < int(subject.target["vocab_size"]) for token in tokens):
        return False, f"mask token {tokens}", f"below the target's vocab_size, {subject.target['vocab_size']}"
    mask = head.tensors["mask_hidden"]
    if mask.numel() != head.num_aux * int(subject.target["hidden_size"]):
        return False, f"mask_hidden of {mask.numel()}", f"{head.num_aux} hidden states of {subject.target['hidden_size']}"
    return bool(mask.any()), f"mask token {tokens[0]}, mask_hidden of {mask.numel()}" + ("" if mask.any() else ", all zero"), "a trained mask_hidden"


def _tensors(subject: Subject) -> Answer:
    shapes = expected_shapes(subject.head, int(subject.target["hidden_size"]))
    have = {name: tuple(tensor.shape) for name, tensor in subject.head.tensors.items() if not name.startswith(("fc_norm.", "input_norm.", "mask_hidden"))}
    wrong = [f"no {name}" for name in sorted(shapes.keys() - have.keys())]
    wrong += [f"unknown {name}" for name in sorted(have.keys() - shapes.keys())]
    wrong += [f"{name} {list(have[name])}, not {list(shapes[name])}" for name in sorted(shapes.keys() & have.keys()) if have[name] != shapes[name]]
    more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
    return not wrong, "; ".join(wrong[:3]) + more if wrong else f"{len(subject.head.tensors)} tensors", "what config.json and the target's sizes ask for"


def _weights(subject: Subject) -> Answer:
    found, said = weights_sha256(subject.head.tensors), None if subject.card is None else subject.card.weights_sha256
    if said is None:
        return None, found[:12], "the card's, which states none"
    return found == said, found[:12], f"the card's, {said[:12]}: else its acceptance is another head's"


def _finite(subject: Subject) -> Answer:
    bad = [name for name, tensor in subject.head.tensors.items() if name != LM_HEAD and tensor.is_floating_point() and not tensor.isfinite().all()]
    return not bad, f"nan or inf in {', '.join(bad)}" if bad else "finite", "finite weights"


def _lm_head(subject: Subject) -> Answer:
    rows = subject.head.tensors.get(LM_HEAD)
    if rows is None:
        return None, f"no {LM_HEAD}", "finite rows, none all zero"
    bad = int((~rows.isfinite().all(-1) | ~torch.any(rows != 0, -1)).sum())
    return bad == 0, f"{bad} of {len(rows):,} rows with nan, inf or nothing but zeros" if bad else f"{len(rows):,} rows", "finite rows, none all zero"


CHECKS: dict[str, Check] = {
    "architecture": _architecture,
    "method": _method,
    "target": _target,
    "vocabulary": _vocabulary,
    "draft vocabulary": _draft_vocabulary,
    "tokenizer": _tokenizer,
    "hidden size": _hidden_size,
    "attention heads": _attention_heads,
    "rope": _rope,
    "context": _context,
    "fc input": _fc_input,
    "auxiliary layers": _aux_layers,
    "norm weights": _norm_weights,
    "norm flags": _norm_flags,
    "parallel drafting": _parallel,
    "tensors": _tensors,
    "weights": _weights,
    "finite weights": _finite,
    "lm_head rows": _lm_head,
}


def failures(findings: list[Finding]) -> Iterator[Finding]:
    """Those that failed."""
    return (one for one in findings if one.verdict == "fail")
