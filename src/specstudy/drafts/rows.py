"""Conversations packed into rows of one length, the same rows for the same seed and epoch, so that training can go on where it stopped."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from specstudy.drafts.answers import Conversation
from specstudy.drafts.head import Batch
from specstudy.drafts.recipe import Recipe, RowShape

VALIDATION_SHARE = 0.015
# How many open rows a conversation may choose from; more waste less and mix less.
OPEN_ROWS = 64


def split(conversations: Sequence[Conversation]) -> tuple[list[Conversation], list[Conversation]]:
    """(training, validation): by the prompt's hash, so that the answers to one prompt stay together; validation keeps the greedy ones."""
    training, validation = [], []
    for one in conversations:
        if int(hashlib.sha256(one.prompt.tobytes()).hexdigest()[:8], 16) >= VALIDATION_SHARE * 2**32:
            training.append(one)
        elif one.temperature == 0:
            validation.append(one)
    if not training or not validation:  # a handful of prompts: the last one is looked at, too
        return list(conversations), list(conversations[-1:])
    return training, validation


def pack(conversations: Sequence[Conversation], row_tokens: int, seed: int) -> list[list[int]]:
    """Indices of the conversations of each row, in an order drawn from `seed`. First fit among the open rows."""
    order = np.random.default_rng(seed).permutation(len(conversations))
    open_rows: list[tuple[int, list[int]]] = []
    full: list[list[int]] = []
    for index in order:
        one = conversations[index]
        length = min(row_tokens, len(one.prompt) + len(one.answer))
        for at, (used, row) in enumerate(open_rows):
            if used + length <= row_tokens:
                open_rows[at] = (used + length, [*row, int(index)])
                break
        else:
            open_rows.append((length, [int(index)]))
            if len(open_rows) > OPEN_ROWS:
                full.append(open_rows.pop(0)[1])
    return full + [row for _, row in open_rows]


def batch_of(conversations: Sequence[Conversation], rows: Sequence[Sequence[int]], shape: RowShape, generator: np.random.Generator) -> Batch:
    """The tensors of some rows. Anchors come in random order, at most `shape.anchors` a row.

    There are always `shape.rows` rows, the last ones empty if there are too few: a GPU replays what was recorded for one shape.
    """
    size = (max(len(rows), shape.rows), shape.tokens)
    ids, docs, positions = np.zeros(size, np.int64), np.full(size, -1, np.int32), np.zeros(size, np.int64)
    anchors, counts = np.zeros((size[0], shape.anchors), np.int64), np.zeros((size[0], shape.anchors), bool)
    for number, row in enumerate(rows):
        start, found = 0, [np.zeros(0, np.int64)]
        for doc, index in enumerate(row):
            one = conversations[index]
            tokens = np.concatenate([one.prompt, one.answer])[: shape.tokens]
            end = start + len(tokens)
            ids[number, start:end], docs[number, start:end], positions[number, start:end] = tokens, doc, np.arange(len(tokens))
            # The engine first drafts after the prompt's last token; the last label is the answer's last token.
            found.append(np.arange(start + len(one.prompt) - 1, end - 2))
            start = end
        chosen = generator.permutation(np.concatenate(found))[: shape.anchors]
        anchors[number, : len(chosen)], counts[number, : len(chosen)] = chosen, True
    return Batch(*(torch.from_numpy(values) for values in (ids, docs, positions, anchors, counts)))


def by_length(conversations: Sequence[Conversation], recipe: Recipe) -> tuple[list[Conversation], list[Conversation]]:
    """(those for rows, those for long rows): long is a prompt above `max_prompt_tokens`. Without long rows there is one kind."""
    if recipe.long_shape is None:
        return list(conversations), []
    short = [one for one in conversations if len(one.prompt) <= recipe.max_prompt_tokens]
    return short, [one for one in conversations if len(one.prompt) > recipe.max_prompt_tokens]


def training_batches(conversations: Sequence[Conversation], recipe: Recipe, done: int) -> Iterator[Batch]:
    """Batches without end, from step `done` on; every `long_every`-th is of long rows while there are both kinds."""
    short, long = by_length(conversations, recipe)
    long_before = done // recipe.long_every if short and long else done if long else 0
    kinds = []
    if short:
        kinds.append(_stream(short, recipe.shape, recipe.seed, done - long_before))
    if long and recipe.long_shape is not None:
        kinds.append(_stream(long, recipe.long_shape, recipe.seed, long_before))
    step = done
    while True:
        step += 1
        yield next(kinds[-1] if step % recipe.long_every == 0 else kinds[0])


def _stream(conversations: Sequence[Conversation], shape: RowShape, seed: int, done: int) -> Iterator[Batch]:
    """Batches of one shape, epoch after epoch, the first `done` left out."""
    step, epoch = 0, 0
    while True:
        rows = pack(conversations, shape.tokens, seed + epoch)
        order = np.random.default_rng(seed + epoch).permutation(len(rows))
        for first in range(0, max(1, len(rows) - shape.rows + 1), shape.rows):
            chosen = [rows[at] for at in order[first : first + shape.rows]]
            if step >= done:
                yield batch_of(conversations, chosen, shape, np.random.default_rng([seed, step]))
            step += 1
        epoch += 1


def validation_batches(conversations: Sequence[Conversation], shape: RowShape, seed: int) -> list[Batch]:
    """At most four batches in which every place of an answer is an anchor."""
    rows = pack(conversations, shape.tokens, seed)[: 4 * shape.rows]
    most = max((sum(len(conversations[index].answer) for index in row) for row in rows), default=1)
    every = shape._replace(anchors=min(most, shape.tokens))
    return [batch_of(conversations, rows[first : first + shape.rows], every, np.random.default_rng(seed)) for first in range(0, len(rows), shape.rows)]


def draft_vocabulary(conversations: Sequence[Conversation], size: int, vocab_size: int) -> tuple[torch.Tensor, int]:
    """([size] rising token ids most frequent in the answers, the token that occurs least anywhere)."""
    counts = _counts([one.answer for one in conversations], vocab_size)
    everywhere = counts + _counts([one.prompt for one in conversations], vocab_size)
    chosen = np.sort(np.argsort(-counts, kind="stable")[:size])
    return torch.from_numpy(chosen.astype(np.int64)), int(everywhere.argmin())


def covered(conversations: Sequence[Conversation], draft_vocab: torch.Tensor) -> float:
    """Share of the answers' tokens that are in a draft vocabulary [V]."""
    counts = _counts([one.answer for one in conversations], int(draft_vocab.max()) + 1)
    return float(counts[draft_vocab.numpy()].sum() / counts.sum())


def _counts(texts: Sequence[np.ndarray[Any, Any]], vocab_size: int) -> np.ndarray[Any, Any]:
    return np.bincount(np.concatenate(texts), minlength=vocab_size)
