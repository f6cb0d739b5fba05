"""The training loop: a frozen target, one head, a budget of steps or minutes, a checkpoint to go on from."""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specstudy.catalog.assets import Say
from specstudy.drafts.answers import Conversation
from specstudy.drafts.head import CHUNK, Batch, MaskedPlaces, depth_states, output_rows
from specstudy.drafts.recipe import Recipe
from specstudy.drafts.rows import by_length, training_batches, validation_batches
from specstudy.drafts.step import Stepper, precision, target_states
from specstudy.errors import AssetError, StoreWriteError

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


def learning_rate(recipe: Recipe, progress: Progress) -> float:
    """Linear warm-up, and a straight line down to zero, which ends lower than a cosine that stops above it (arXiv 2502.15938)."""
    warm_up = recipe.warmup_steps if recipe.steps is None else min(recipe.warmup_steps, max(1, recipe.steps // 30))
    return recipe.learning_rate * (1 - progress.share(recipe)) * min(1.0, (progress.step + 1) / warm_up)


def validate(head: Any, target: Any, batches: Sequence[Batch], recipe: Recipe, draft_vocab: Tensor) -> dict[str, Any]:
    """Draft along the target's greedy answers as an engine would: after each step go on behind the last token that was right.

    Drafts of min(5, depth) tokens. accuracy_per_position: accepted at each position over steps, as vLLM counts it;
    expected_acceptance_length counts the target's own token. The mean over all places would be higher than both: an engine
    starts its steps where a draft has just failed, and passes easy stretches in few steps.
    """
    length = min(5, recipe.depth)
    accepted, steps = np.zeros(length), 0
    for batch in batches:
        run = accepted_runs(head, target, batch, recipe, draft_vocab).clip(max=length)
        for row, anchors in enumerate(batch.anchors.cpu().numpy()):
            docs = batch.docs[row].cpu().numpy()
            places = np.sort(anchors[batch.counts[row].cpu().numpy()])
            for doc in np.unique(docs[places]):
                for taken in walk(run[row], places[docs[places] == doc]):
                    accepted[:taken] += 1
                    steps += 1
    rates = accepted / max(1, steps)
    return {"accuracy_per_position": [round(float(rate), 4) for rate in rates], "expected_acceptance_length": round(1 + float(rates.sum()), 4)}


def walk(run: np.ndarray[Any, Any], places: np.ndarray[Any, Any]) -> Iterator[int]:
    """Tokens accepted by each step of one answer: places are where a step may begin, rising; run [L] what is accepted there."""
    at = int(places[0])
    while at <= places[-1]:
        yield int(run[at])
        at += int(run[at]) + 1


def accepted_runs(head: Any, target: Any, batch: Batch, recipe: Recipe, draft_vocab: Tensor) -> np.ndarray[Any, Any]:
    """[B, L]: how many tokens drafted from an anchor are the answer's own, one after the other; 0 where there is no anchor."""
    masked = MaskedPlaces.of([batch.anchors.shape[1]] * recipe.depth, batch.ids.device) if recipe.method == "peagle" else None
    rows = output_rows(head)
    with torch.no_grad(), precision(batch.ids.device):
        alive, run = batch.counts, torch.zeros_like(batch.anchors)
        for depth, state in enumerate(depth_states(head, batch, target_states(target, batch, head.target_layer_ids).aux, masked)):
            at, there = batch.label_at(depth)
            best = torch.cat([(part @ rows.to(part.dtype).T).argmax(-1) for part in torch.split(state.flatten(0, 1), CHUNK)]).view_as(at)
            alive = alive & there & (draft_vocab[best] == batch.ids.gather(1, at + 1))
            run += alive
    found = np.zeros(batch.ids.shape, dtype=np.int64)
    np.put_along_axis(found, batch.anchors.cpu().numpy(), np.where(batch.counts.cpu().numpy(), run.cpu().numpy(), 0), axis=1)
    return found


def train(
    head: Any,
    target: Any,
    conversations: tuple[list[Conversation], list[Conversation]],
    draft_vocab: Tensor,
    recipe: Recipe,
    checkpoint: Path,
    say: Say,
    started_from: str | None = None,
) -> Progress:
    """Train until the recipe's budget is spent, from the checkpoint when there is one, which is also written when training is stopped.

    started_from: SHA-256 of the weights that `head` began with, if they are another head's. Raises AssetError when the loss is no
    longer a number, and for a checkpoint of another recipe or another beginning.
    """
    device = next(target.parameters()).device
    stepper = Stepper(head, target, recipe, say)
    progress = _restore(checkpoint, head, stepper.optimizer, recipe, started_from, say)

    def keep() -> None:
        _keep(checkpoint, head, stepper.optimizer, progress, recipe, started_from)

    check = _Check(head, target, conversations[1], recipe, draft_vocab.to(device))
    meter = _Meter(progress, recipe, say)
    batches = training_batches(conversations[0], recipe, progress.step)
    try:
        while progress.share(recipe) < 1:
            batch = next(batches)
            loss = stepper.step(batch, learning_rate(recipe, progress))
            if meter.count(loss, int((batch.docs >= 0).sum())):
                meter.validated(check())
                keep()
        if not progress.validation or progress.validation[-1]["step"] != progress.step:
            meter.validated(check())
    except AssetError:
        raise  # the loss is no number: what is on disk stays as it was
    except BaseException:
        keep()
        raise
    keep()
    return progress


class _Check:
    """Validation on answers that training doesn't see: those of short prompts, and beside them those of long ones."""

    def __init__(self, head: Any, target: Any, conversations: list[Conversation], recipe: Recipe, draft_vocab: Tensor) -> None:
        self._given = head, target, recipe, draft_vocab
        self._batches: list[list[Batch]] = []
        for told, shape in zip(by_length(conversations, recipe), (recipe.shape, recipe.long_shape), strict=True):
            batches = validation_batches(told, shape, recipe.seed) if shape is not None else []
            self._batches.append([batch.to(draft_vocab.device) for batch in batches])

    def __call__(self) -> dict[str, Any]:
        """The fields of a card's `Validation`, but the step."""
        head, target, recipe, draft_vocab = self._given
        short, long = (validate(head, target, batches, recipe, draft_vocab) if batches else None for batches in self._batches)
        if short is None or long is None:
            return short or long or {"accuracy_per_position": [], "expected_acceptance_length": 1.0}
        return {**short, "long_acceptance_length": long["expected_acceptance_length"]}


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

    def validated(self, found: dict[str, Any]) -> None:
        """After a validation: keep what it found, and say it."""
        last = {"step": self._progress.step, **found}
        self._progress.validation.append(last)
        accuracy = " ".join(f"{share:.2f}" for share in last["accuracy_per_position"])
        long = f", {last['long_acceptance_length']:.3f} behind long prompts" if "long_acceptance_length" in last else ""
        self._say(f"step {last['step']:,}: accepted at each position {accuracy}; acceptance length {last['expected_acceptance_length']:.3f}{long}")


def _keep(path: Path, head: Any, optimizer: torch.optim.Optimizer, progress: Progress, recipe: Recipe, started_from: str | None) -> None:
    partial = path.with_suffix(".partial")
    learned = {name: parameter for name, parameter in head.named_parameters() if parameter.requires_grad}
    whole = {"head": learned, "optimizer": optimizer.state_dict(), "progress": vars(progress), "recipe": recipe.model_dump(), "started_from": started_from}
    try:
        torch.save(whole, partial)
        partial.replace(path)
    except (OSError, RuntimeError) as error:  # torch gives a full disk as a RuntimeError
        partial.unlink(missing_ok=True)
        there = "the one before is still there" if path.exists() else "there is none yet"
        raise StoreWriteError(f"the checkpoint {path} can't be written ({str(error).splitlines()[0]}); {there}") from error


def _restore(path: Path, head: Any, optimizer: torch.optim.Optimizer, recipe: Recipe, started_from: str | None, say: Say) -> Progress:
    if not path.exists():
        return Progress()
    try:
        kept = torch.load(path, map_location=next(head.parameters()).device, weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        raise AssetError(f"{path} isn't whole ({str(error).splitlines()[0]}); remove it to begin anew, the answers stay") from error
    budget = {"steps", "minutes", "validate_every_s"}
    same = {name: value for name, value in kept["recipe"].items() if name not in budget}
    if same != recipe.model_dump(exclude=budget):
        raise AssetError(f"{path} is the checkpoint of another recipe; choose another name with --out, or remove it to begin anew; the answers stay")
    if kept.get("started_from") != started_from:
        raise AssetError(f"{path} is the checkpoint of a training with another --from; choose another name with --out, or remove it to begin anew")
    head.load_state_dict(kept["head"], strict=False)
    optimizer.load_state_dict(kept["optimizer"])
    progress = Progress(**kept["progress"])
    say(f"going on from step {progress.step:,} of {path}")
    return progress
