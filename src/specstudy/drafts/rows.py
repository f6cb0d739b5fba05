"""Conversations packed into rows of one length, the same rows for the same seed and epoch, so that training can go on where it stopped."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch

from specstudy.drafts.answers import Conversation
from specstudy.drafts.head import Batch
from specstudy.drafts.recipe import Recipe

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


def batch_of(
    conversations: Sequence[Conversation], rows: Sequence[Sequence[int]], recipe: Recipe, generator: np.random.Generator, most: int | None = None
) -> Batch:
    """The tensors of some rows. Anchors come in random order, at most `most` a row, by default half as many as it has tokens.

    There are always `recipe.rows` rows, the last ones empty if there are too few: a GPU replays what was recorded for one shape.
    """
    shape, most = (max(len(rows), recipe.rows), recipe.row_tokens), most or recipe.row_tokens // 2
    ids, docs, positions = np.zeros(shape, np.int64), np.full(shape, -1, np.int32), np.zeros(shape, np.int64)
    anchors, counts = np.zeros((shape[0], most), np.int64), np.zeros((shape[0], most), bool)
    for number, row in enumerate(rows):
        start, found = 0, [np.zeros(0, np.int64)]
        for doc, index in enumerate(row):
            one = conversations[index]
            tokens = np.concatenate([one.prompt, one.answer])[: recipe.row_tokens]
            end = start + len(tokens)
            ids[number, start:end], docs[number, start:end], positions[number, start:end] = tokens, doc, np.arange(len(tokens))
            # The engine first drafts after the prompt's last token; the last label is the answer's last token.
            found.append(np.arange(start + len(one.prompt) - 1, end - 2))
            start = end
        chosen = generator.permutation(np.concatenate(found))[:most]
        anchors[number, : len(chosen)], counts[number, : len(chosen)] = chosen, True
    return Batch(*(torch.from_numpy(values) for values in (ids, docs, positions, anchors, counts)))


def draft_vocabulary(conversations: Sequence[Conversation], size: int, vocab_size: int) -> tuple[torch.Tensor, float, int]:
    """([size] rising token ids most frequent in the answers, share of answer tokens that they cover, the token that occurs least)."""
    counts = np.bincount(np.concatenate([one.answer for one in conversations]), minlength=vocab_size)
    everywhere = counts + np.bincount(np.concatenate([one.prompt for one in conversations]), minlength=vocab_size)
    chosen = np.sort(np.argsort(-counts, kind="stable")[:size])
    return torch.from_numpy(chosen.astype(np.int64)), float(counts[chosen].sum() / counts.sum()), int(everywhere.argmin())
