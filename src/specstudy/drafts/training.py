"""The training loop: a frozen target, one head, a budget of steps or minutes, a checkpoint to go on from."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specstudy.catalog.assets import Say
from specstudy.drafts.answers import Conversation
from specstudy.drafts.head import CHUNK, Batch, States, depth_states, frozen_rows_loss, loss_step, output_rows, trainable
from specstudy.drafts.recipe import Recipe
from specstudy.drafts.rows import batch_of, pack
from specstudy.errors import AssetError

CLIP = 1.0
TELL_EVERY_S = 15.0
CURVE_SHARE = 0.01  # of the budget: a loss curve has about a hundred points


@dataclass
class Progress:
    """How far training is; all of it is in the checkpoint."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    loss_curve: list[tuple[int, float]] = field(default_factory=list)
    validation: list[dict[str, Any]] = field(default_factory=list)

    def share(self, recipe: Recipe) -> float:
        """Share of the budget that is spent, 0 to 1."""
        steps = self.step / recipe.steps if recipe.steps else 0.0
        minutes = self.seconds / 60 / recipe.minutes if recipe.minutes else 0.0
        return min(1.0, max(steps, minutes))


def learning_rate(recipe: Recipe, share: float) -> float:
    """Linear warm-up, then a cosine down to a twentieth."""
    if share < recipe.warmup_share:
        return recipe.learning_rate * (share + 0.1 * recipe.warmup_share) / (1.1 * recipe.warmup_share)
    return recipe.learning_rate * (0.525 + 0.475 * math.cos(math.pi * (share - recipe.warmup_share) / (1 - recipe.warmup_share)))


def target_states(target: Any, batch: Batch, layers: Sequence[int]) -> States:
    """Run the frozen target over packed rows, each document seeing itself alone.

    Layer i stands for what enters layer i, as vLLM counts auxiliary layers.
    """
    with torch.no_grad():
        seen = target.model(
            input_ids=batch.ids,
            position_ids=batch.positions,
            attention_mask=batch.row_mask()[:, None] | torch.eye(batch.ids.shape[1], dtype=torch.bool, device=batch.ids.device),
            output_hidden_states=True,
            use_cache=False,
        )
    return States(torch.cat([seen.hidden_states[layer] for layer in layers], dim=-1), seen.last_hidden_state)


def kept_anchors(recipe: Recipe, anchors: int) -> list[int] | None:
    """peagle: anchors that each depth keeps (COD, ratio and floor of the recipe); None for a head that drafts one after another."""
    if recipe.method != "peagle":
        return None
    return [anchors] + [max(1, round(anchors * max(recipe.drop_ratio**depth, recipe.drop_floor))) for depth in range(1, recipe.depth)]


def batch_loss(head: Any, batch: Batch, states: States, recipe: Recipe, rows: Tensor, step: Callable[..., Any]) -> Tensor:
    """Mean loss over anchors and depths, weighted by depth_weight to the power of the depth."""
    kept = kept_anchors(recipe, batch.anchors.shape[1])
    found, finals, weights = [], [], []
    for depth, state in enumerate(depth_states(head, batch, states.aux, kept)):
        at, there = batch.label_at(depth)
        at, there = at[:, : state.shape[1]], there[:, : state.shape[1]]
        found.append(state[there])
        finals.append(states.final.gather(1, at[..., None].expand(-1, -1, states.final.shape[-1]))[there])
        weights.append(torch.full((len(found[-1]),), recipe.depth_weight**depth, device=state.device))
    weight = torch.cat(weights)
    weight = weight / weight.sum().clamp(min=1e-6)
    short = -len(weight) % CHUNK if weight.is_cuda else 0  # chunks of one size: compiled once
    padded = [torch.cat([values, values.new_zeros(short, *values.shape[1:])]) for values in (torch.cat(found), torch.cat(finals), weight)]
    loss, _ = frozen_rows_loss(padded[0].to(rows.dtype), rows, padded[1].to(rows.dtype), padded[2], recipe.hard_share, step)
    return loss


def validate(head: Any, target: Any, batches: Sequence[Batch], recipe: Recipe, draft_vocab: Tensor) -> dict[str, Any]:
    """Greedy drafts against the target's greedy answers: share right at each depth given that all before were, and what that accepts.

    expected_acceptance_length counts the target's own token, as vLLM does.
    """
    right, reached, anchors = torch.zeros(recipe.depth), torch.zeros(recipe.depth), 0
    rows = output_rows(head)
    for batch in batches:
        kept = None if recipe.method != "peagle" else [batch.anchors.shape[1]] * recipe.depth
        with torch.no_grad(), _precision(batch.ids.device):
            found = depth_states(head, batch, target_states(target, batch, head.target_layer_ids).aux, kept)
        alive = batch.counts
        anchors += int(alive.sum())
        for depth, state in enumerate(found):
            at, there = batch.label_at(depth)
            with torch.no_grad(), _precision(batch.ids.device):
                proposed = torch.cat([(part @ rows.to(part.dtype).T).argmax(-1) for part in torch.split(state.flatten(0, 1), CHUNK)]).view_as(at)
            same = draft_vocab[proposed] == batch.ids.gather(1, at + 1)
            reached[depth] += float((alive & there).sum())
            alive = alive & there & same
            right[depth] += float(alive.sum())
    accuracy = (right / reached.clamp(min=1)).tolist()
    return {"accuracy_per_position": accuracy, "expected_acceptance_length": 1 + float(right.sum()) / max(1, anchors)}


def train(
    head: Any, target: Any, conversations: tuple[list[Conversation], list[Conversation]], draft_vocab: Tensor, recipe: Recipe, checkpoint: Path, say: Say
) -> Progress:
    """Train until the recipe's budget is spent, from the checkpoint when there is one, which is also written when training is stopped.

    Raises AssetError when the loss is no longer a number.
    """
    device = next(target.parameters()).device
    parameters = trainable(head)
    optimizer = torch.optim.AdamW(parameters, lr=recipe.learning_rate, betas=(0.9, 0.95), weight_decay=recipe.weight_decay, fused=device.type == "cuda")
    progress = _restore(checkpoint, head, optimizer, recipe, say)
    step = torch.compile(loss_step) if device.type == "cuda" else loss_step
    rows = output_rows(head).to(torch.bfloat16 if device.type == "cuda" else torch.float32)
    validation = [batch.to(device) for batch in _validation_batches(conversations[1], recipe)]
    draft_vocab = draft_vocab.to(device)
    meter = _Meter(progress, recipe, say)
    batches = _batches(conversations[0], recipe, progress.step)
    try:
        while progress.share(recipe) < 1:
            batch = next(batches).to(device)
            with _precision(device):
                states = target_states(target, batch, head.target_layer_ids)
                loss = batch_loss(head, batch, states, recipe, rows, step)
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(parameters, CLIP)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(recipe, progress.share(recipe))
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if meter.count(loss, batch.ids.numel()):
                progress.validation.append({"step": progress.step, **validate(head, target, validation, recipe, draft_vocab)})
                meter.validated()
                _keep(checkpoint, head, optimizer, progress, recipe)
        progress.validation.append({"step": progress.step, **validate(head, target, validation, recipe, draft_vocab)})
        meter.validated()
    finally:
        _keep(checkpoint, head, optimizer, progress, recipe)
    return progress


class _Meter:
    """Counts steps and time, draws the loss curve, and says how it goes."""

    def __init__(self, progress: Progress, recipe: Recipe, say: Say) -> None:
        self._progress, self._recipe, self._say = progress, recipe, say
        self._began = time.monotonic() - progress.seconds
        self._told = self._checked = progress.seconds
        self._drawn = progress.share(recipe)
        self._losses: list[Tensor] = []

    def count(self, loss: Tensor, tokens: int) -> bool:
        """After a step; True when it is time to validate. Raises AssetError when the loss is no number."""
        progress = self._progress
        self._losses.append(loss.detach())
        progress.step, progress.tokens = progress.step + 1, progress.tokens + tokens
        if progress.step % 8 == 0 and loss.is_cuda:
            torch.cuda.synchronize()  # else the clock runs ahead of the work
        progress.seconds = time.monotonic() - self._began
        share = progress.share(self._recipe)
        if progress.step == 1 or share - self._drawn >= CURVE_SHARE or share >= 1:
            self._draw(share)
        if progress.seconds - self._told > TELL_EVERY_S or share >= 1:
            self._tell(share)
        if progress.seconds - self._checked > self._recipe.validate_every_s and share < 1:
            self._checked = progress.seconds
            return True
        return False

    def _draw(self, share: float) -> None:
        mean = float(torch.stack(self._losses).mean())
        if not math.isfinite(mean):
            raise AssetError(f"the loss is {mean} at step {self._progress.step}; a lower learning rate may help")
        self._progress.loss_curve.append((self._progress.step, round(mean, 4)))
        self._losses.clear()
        self._drawn = share

    def _tell(self, share: float) -> None:
        progress = self._progress
        self._told = progress.seconds
        left = progress.seconds * (1 - share) / max(share, 1e-3)
        loss, speed = progress.loss_curve[-1][1], progress.tokens / progress.seconds
        self._say(f"step {progress.step:,}: loss {loss:.3f}, {speed:,.0f} tokens/s, {share:.0%} done, {left:.0f} s to go")

    def validated(self) -> None:
        """After a validation: say what it found."""
        last = self._progress.validation[-1]
        accuracy = " ".join(f"{share:.2f}" for share in last["accuracy_per_position"])
        self._say(f"step {last['step']:,}: right at each depth {accuracy}; expected acceptance length {last['expected_acceptance_length']:.3f}")


def _precision(device: torch.device) -> Any:
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def _batches(conversations: Sequence[Conversation], recipe: Recipe, done: int) -> Iterator[Batch]:
    """Batches without end, from step `done` on."""
    step, epoch = 0, 0
    while True:
        rows = pack(conversations, recipe.row_tokens, recipe.seed + epoch)
        order = np.random.default_rng(recipe.seed + epoch).permutation(len(rows))
        for first in range(0, max(1, len(rows) - recipe.rows + 1), recipe.rows):
            chosen = [rows[at] for at in order[first : first + recipe.rows]]
            if step >= done:
                yield batch_of(conversations, chosen, recipe, np.random.default_rng([recipe.seed, step]))
            step += 1
        epoch += 1


def _validation_batches(conversations: Sequence[Conversation], recipe: Recipe) -> list[Batch]:
    rows = pack(conversations, recipe.row_tokens, recipe.seed)[: 4 * recipe.rows]
    groups = [rows[first : first + recipe.rows] for first in range(0, len(rows), recipe.rows)]
    return [batch_of(conversations, group, recipe, np.random.default_rng(recipe.seed)) for group in groups]


def _keep(path: Path, head: Any, optimizer: torch.optim.Optimizer, progress: Progress, recipe: Recipe) -> None:
    partial = path.with_suffix(".partial")
    learned = {name: parameter for name, parameter in head.named_parameters() if parameter.requires_grad}
    torch.save({"head": learned, "optimizer": optimizer.state_dict(), "progress": vars(progress), "recipe": recipe.model_dump()}, partial)
    partial.replace(path)


def _restore(path: Path, head: Any, optimizer: torch.optim.Optimizer, recipe: Recipe, say: Say) -> Progress:
    if not path.exists():
        return Progress()
    kept = torch.load(path, map_location=next(head.parameters()).device, weights_only=True)
    budget = {"steps", "minutes", "validate_every_s"}
    same = {name: value for name, value in kept["recipe"].items() if name not in budget}
    if same != recipe.model_dump(exclude=budget):
        raise AssetError(f"{path} is the checkpoint of another recipe; choose another folder, or remove it to begin anew")
    head.load_state_dict(kept["head"], strict=False)
    optimizer.load_state_dict(kept["optimizer"])
    progress = Progress(**kept["progress"])
    say(f"going on from step {progress.step:,} of {path}")
    return progress
