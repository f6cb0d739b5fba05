"""From a target to a head that vLLM loads: prompts, the target's answers, hidden states, training, check, export."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError

from specstudy.catalog.assets import Say
from specstudy.catalog.materialise import target_folder
from specstudy.catalog.models import ShapeSource, Target
from specstudy.catalog.packed import D2T, LM_HEAD, weights_sha256
from specstudy.catalog.paths import check_writable
from specstudy.drafts.answers import Conversation, Job, answer, conversations, prepare, read_job, regenerated_with, wanted
from specstudy.drafts.card import Card, CardTarget, Data, DataSource, NormFlags, RegeneratedWith, StartedFrom, Training, Validation, write_card
from specstudy.drafts.check import check_head, failures
from specstudy.drafts.checkpoint import AUX_IDS, tokenizer_sha256, write_head
from specstudy.drafts.head import build_head, root_mean_square, start_from_target, trainable
from specstudy.drafts.prompts import data_id, evaluation_keys, training_prompts
from specstudy.drafts.recipe import Recipe
from specstudy.drafts.rows import batch_of, by_length, covered, draft_vocabulary, pack, split
from specstudy.drafts.start import read_start
from specstudy.drafts.step import target_states
from specstudy.drafts.training import Progress, train
from specstudy.errors import ConfigError, StoreBusyError, StoreWriteError
from specstudy.workloads.prompts import EVALUATION_SHARE

COPIED = (
    *("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps", "rope_theta", "rope_parameters", "rope_scaling"),
    *("max_position_embeddings", "hidden_act", "attention_bias", "mlp_bias", "vocab_size", "bos_token_id", "eos_token_id"),
)


@dataclass(frozen=True)
class Order:
    """What is to be trained: a name, a target, data, where things go, and the head to start from, if any."""

    name: str
    target: Target
    data: tuple[str, ...]
    recipe: Recipe
    out: Path
    work: Path
    start: str | None = None


def device_of_this_machine() -> torch.device:
    """The GPU where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def regenerate(order: Order, say: Say, part: int = 0, of: int = 1) -> Job:
    """Write the training prompts and the target's answers into the work folder; parts that are there stay.

    Raises ConfigError for data that can't be had and for a target without weights, AssetError when vLLM fails.
    """
    check_order(order)
    folder = target_folder(order.target, say)
    check_fits(order.recipe, folder)
    data = tuple(data_id(name) for name in order.data)
    order.work.mkdir(parents=True, exist_ok=True)
    with FileLock(order.work / "job.lock"):  # two GPUs may begin at the same time; one of them prepares
        if not (order.work / "job.json").exists():
            measured = evaluation_keys(say)
            prompts = training_prompts(order.data, measured, say)
            prepare(order.work, prompts, folder, order.recipe, data=data, compared_with=sorted(set(measured.values())), say=say)
    job = read_job(order.work)
    for name, value in wanted(folder, order.recipe, data).items():
        if getattr(job, name) != value:
            raise ConfigError("work", str(order.work), f"a folder without the answers of another order; there {name} is {getattr(job, name)}, here {value}")
    answer(order.work, "gpu" if device_of_this_machine().type == "cuda" else "cpu", say, part, of)
    return job


def check_order(order: Order) -> None:
    """Raises ConfigError for a target of random weights, whose answers teach nothing, and for a work folder that can't be written."""
    if isinstance(order.target.source, ShapeSource):
        raise ConfigError("target", order.target.name, "a target with weights of its own; those of a shape are random")
    check_writable("work", order.work / "job.json")


def check_fits(recipe: Recipe, folder: Path) -> None:
    """Raises ConfigError for a shape that the target can't have a head of."""
    target = json.loads((folder / "config.json").read_text())
    layers, vocabulary = target["num_hidden_layers"], target["vocab_size"]
    if recipe.layers > layers:
        raise ConfigError("layers", recipe.layers, f"at most the target's {layers}")
    positions = target.get("max_position_embeddings")
    if recipe.long_row_tokens is not None and positions is not None and recipe.long_row_tokens > positions:
        raise ConfigError("long_row_tokens", recipe.long_row_tokens, f"at most the target's {positions} positions")
    if recipe.draft_vocab_size > vocabulary:
        raise ConfigError("draft_vocab_size", recipe.draft_vocab_size, f"at most the target's {vocabulary}")
    if recipe.aux_layers is not None and not all(0 <= layer <= layers for layer in recipe.aux_layers):
        raise ConfigError("aux_layers", recipe.aux_layers, f"layers of the target, 0 to {layers}")


def train_head(order: Order, command: Sequence[str], say: Say) -> Path:
    """Everything from the prompts to the exported folder `order.out`, going on where an earlier run stopped.

    Raises ConfigError, AssetError, and StoreBusyError when another training writes the same head.
    """
    check_order(order)
    order.work.mkdir(parents=True, exist_ok=True)
    checkpoint = order.work / f"head-{order.name}.pt"
    try:
        with FileLock(checkpoint.with_suffix(".lock"), timeout=0):
            return _train_head(order, checkpoint, command, say)
    except Timeout:
        raise StoreBusyError(f"another training of {order.name} is using {order.work}") from None


def _train_head(order: Order, checkpoint: Path, command: Sequence[str], say: Say) -> Path:
    folder, device, start, head = target_folder(order.target, say), device_of_this_machine(), None, None
    if order.start is not None:
        start = read_start(order.start, order.target, folder, order.recipe, say)
        order, head = replace(order, recipe=start.recipe), start.build(folder)
    job = regenerate(order, say)
    recipe, told = order.recipe, conversations(order.work)
    training, validation = split(told)
    target = load_frozen(folder, device)
    if start is None or head is None:
        draft_vocab, mask_token = draft_vocabulary(told, recipe.draft_vocab_size, target.config.vocab_size)
        torch.manual_seed(recipe.seed)
        head = build_head(recipe, folder, draft_vocab, mask_token).to(device)
        start_from_target(head, target, _scale(head, target, training, recipe, device))
    else:
        draft_vocab, mask_token, head = start.vocabulary, start.mask_token, head.to(device)
        say(f"starting from {start.said.name}, weights {start.said.weights_sha256[:12]}")
    share = covered(told, draft_vocab)
    say(f"{len(told):,} answers of {sum(len(one.answer) for one in told):,} tokens; the draft vocabulary covers {share:.2%} of them")
    say(f"training {recipe.method} on {device.type}: {sum(one.numel() for one in trainable(head)) / 1e6:.1f} M parameters")
    began = None if start is None else start.said.weights_sha256
    progress = train(head, target, (training, validation), draft_vocab, recipe, checkpoint, say, began)
    config, tensors = exported(head, recipe, draft_vocab, mask_token, folder)
    card = make_card(order, job, told, head, config, progress, share, command, None if start is None else start.said)
    try:
        return _put(order.out, config, tensors, card.model_copy(update={"weights_sha256": weights_sha256(tensors)}), folder, say)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StoreWriteError(f"{order.out} can't be written: {reason}; the training is in {checkpoint}, the same command exports it again") from error


def _put(out: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor], card: Card, target: Path, say: Say) -> Path:
    scratch = out.parent / f".{out.name}.partial"  # what lies at `out` is whole, and passed
    shutil.rmtree(scratch, ignore_errors=True)
    write_head(scratch, config, tensors)
    write_card(card, scratch)
    failed = list(failures(check_head(scratch, target, card)))
    if failed:
        raise ConfigError("head", str(scratch), "; ".join(f"{one.check}: {one.found}, allowed {one.allowed}" for one in failed))
    scratch.rename(out)
    say(f"{out}: every check passed")
    return out


def load_frozen(folder: Path, device: torch.device) -> Any:
    """The target for hidden states: bfloat16 on a GPU, float32 on a CPU, where bfloat16 is slow."""
    from transformers import AutoModelForCausalLM

    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    target: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa")
    return target.to(device).eval().requires_grad_(False)


def _scale(head: Any, target: Any, told: list[Conversation], recipe: Recipe, device: torch.device) -> float:
    import numpy as np

    some = told[: 4 * recipe.rows]
    batch = batch_of(some, pack(some, recipe.row_tokens, recipe.seed)[:1], recipe.shape, np.random.default_rng(recipe.seed)).to(device)
    states = target_states(target, batch, head.target_layer_ids)
    return root_mean_square(states.aux[..., -states.final.shape[-1] :], batch.docs)


def exported(head: Any, recipe: Recipe, draft_vocab: torch.Tensor, mask_token: int, folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """(config.json, tensors in bfloat16) in vLLM's own form, not the library's.

    vLLM 0.26.0's reader of the library's form drops fc_norm and norm_output of a P-EAGLE head.
    """
    given = json.loads((folder / "config.json").read_text())
    layers = [int(layer) for layer in head.target_layer_ids]
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        **{name: given[name] for name in COPIED if name in given},
        "num_hidden_layers": recipe.layers,
        "intermediate_size": recipe.intermediate_size,
        "draft_vocab_size": len(draft_vocab),
        "tie_word_embeddings": False,
        "norm_before_residual": False,
        # Both places: runner V2 reads the first, V1 the second.
        AUX_IDS: layers,
        "eagle_config": {"use_aux_hidden_state": True, AUX_IDS: layers},
        "torch_dtype": "bfloat16",
        **{name: True for name, on in recipe.switches.items() if on},
    }
    left_out = ("embed_tokens.", "verifier_", "lm_head.", "t2d", "d2t", "mask_hidden")
    tensors = {name: value.detach().to("cpu", torch.bfloat16).contiguous() for name, value in head.state_dict().items() if not name.startswith(left_out)}
    tensors[LM_HEAD] = head.lm_head.weight.detach().to("cpu", torch.bfloat16).contiguous()
    tensors[D2T] = draft_vocab.cpu() - torch.arange(len(draft_vocab))
    if recipe.method == "peagle":
        config |= {"pard_token": mask_token, "parallel_drafting": True}
        tensors["mask_hidden"] = head.mask_hidden.detach().to("cpu", torch.bfloat16).flatten().contiguous()
    return config, tensors


def make_card(
    order: Order,
    job: Job,
    told: list[Conversation],
    head: Any,
    config: dict[str, Any],
    progress: Progress,
    share: float,
    command: Sequence[str],
    started_from: StartedFrom | None,
) -> Card:
    """The card of a head that was just trained; acceptance is measured later."""
    recipe, folder = order.recipe, target_folder(order.target)
    target = json.loads((folder / "config.json").read_text())
    tokens = sum(len(one.prompt) + len(one.answer) for one in told)
    return Card(
        name=order.name,
        method=recipe.method,
        target=CardTarget(
            name=order.target.name,
            hidden_size=target["hidden_size"],
            num_hidden_layers=target["num_hidden_layers"],
            vocab_size=target["vocab_size"],
            tokenizer_sha256=tokenizer_sha256(folder) or "",
        ),
        aux_layers=tuple(head.target_layer_ids),
        norm_flags=NormFlags.of(config),
        licence=order.target.licence,
        command=shlex.join(command),
        data=Data(
            sources=tuple(_source(name, told, recipe) for name in sorted({one.source for one in told})),
            evaluation_share=EVALUATION_SHARE,
            temperatures=recipe.temperatures,
            regenerated_with=RegeneratedWith(**regenerated_with()),
            prompts_sha256=job.prompts_sha256,
            compared_with=job.compared_with,
        ),
        training=Training(
            method=recipe.method,
            library=f"speculators {version('speculators')}",
            steps=progress.step,
            **_steps(told, recipe),
            started_from=started_from,
            tokens_seen=progress.tokens,
            epochs=round(progress.tokens / tokens, 2),
            seconds=round(progress.seconds, 1),
            device=torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
            learning_rate=recipe.learning_rate,
            loss=f"cross entropy, {recipe.hard_share:g} against the target's argmax and the rest against its distribution; "
            f"depth weight {recipe.depth_weight:g}, {recipe.depth} depths; draft vocabulary covers {share:.2%} of the answers",
            seed=recipe.seed,
            parameters=sum(one.numel() for one in trainable(head)),
            loss_curve=tuple(progress.loss_curve),
            validation=tuple(Validation.model_validate(one) for one in progress.validation),
        ),
    )


def _source(name: str, told: list[Conversation], recipe: Recipe) -> DataSource:
    own = [one for one in told if one.source == name]
    prompts, tokens = len({one.prompt.tobytes() for one in own}), sum(len(one.answer) for one in own)
    return DataSource(name=name, prompts=prompts, answers=len(own), answer_tokens=tokens, long_answers=len(by_length(own, recipe)[1]))


def _steps(told: list[Conversation], recipe: Recipe) -> dict[str, Any]:
    """Tokens that a step has room for, over all kinds of step, and the rows in words."""
    short, long, every = recipe.shape, recipe.long_shape, recipe.long_every
    if long is None or not by_length(told, recipe)[1]:
        return {"tokens_per_step": short.rows * short.tokens, "rows": f"{short.rows} of {short.tokens:,} tokens"}
    mean = ((every - 1) * short.rows * short.tokens + long.rows * long.tokens) / every
    words = f"{short.rows} of {short.tokens:,} tokens; of 1 in {every} steps {long.rows} of {long.tokens:,}"
    return {"tokens_per_step": mean, "rows": words}


def command_line(argv: Sequence[str] | None = None) -> list[str]:
    """The command that was given, without this machine's paths: of --out and --data the name stays, --work goes."""
    given = [word for one in (sys.argv[1:] if argv is None else argv) for word in (one.split("=", 1) if one.startswith("--") else [one])]
    kept: list[str] = []
    for option, value in zip(["", *given], given, strict=False):
        if option == "--work":
            kept.pop()
        else:
            kept.append(Path(value).name if option in ("--out", "--data", "--from") else value)
    return ["specstudy", *kept]
