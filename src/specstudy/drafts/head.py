"""A head in training: the library's model classes, filled from the target, and its forward pass on packed rows.

The parameters are those of `speculators` (Eagle3DraftModel, PEagleDraftModel). Its own forward pass is not used: its attention
(FlexAttention) has no backward pass on a CPU, and it computes every depth at every position, while only the target's answers
are learned from. tests/unit/drafts compares the two.

Shapes: B rows, L tokens a row, M anchors a row, H hidden size, V draft vocabulary. An anchor p is a position after which the
engine would draft: it has seen the target's state at p and the token p + 1. The token drafted at depth k (from 0) is token
p + 2 + k, so its label is the target's distribution at position p + 1 + k.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from specstudy.drafts.recipe import Recipe


@dataclass(frozen=True)
class States:
    """What the frozen target says about a batch: inputs of the auxiliary layers [B, L, 3H], final normalised state [B, L, H]."""

    aux: Tensor
    final: Tensor


@dataclass(frozen=True)
class Batch:
    """Packed rows: token ids, document of each token (-1: none), position within it, anchors [B, M] and whether each counts."""

    ids: Tensor
    docs: Tensor
    positions: Tensor
    anchors: Tensor
    counts: Tensor

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        return Batch(**{name: values.to(device, non_blocking=True) for name, values in vars(self).items()})

    def fill(self, other: Batch) -> None:
        """Take the values of another batch of the same shape, in place."""
        for name, values in vars(self).items():
            values.copy_(getattr(other, name), non_blocking=True)

    def row_mask(self) -> Tensor:
        """[B, L, L]: a token sees itself and what stands before it in its own document."""
        length = self.ids.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=self.ids.device).tril()
        return causal & (self.docs[:, :, None] == self.docs[:, None, :])

    def label_at(self, depth: int) -> tuple[Tensor, Tensor]:
        """([B, M] position of the label, [B, M] whether there is one in the anchor's document) at a depth."""
        at = self.anchors + 1 + depth
        inside = at.clamp(max=self.ids.shape[1] - 2)
        same = self.docs.gather(1, inside + 1) == self.docs.gather(1, self.anchors)  # the label's own token has to be there
        return inside, self.counts & same & (at == inside)


@dataclass(frozen=True)
class MaskedPlaces:
    """The S masked positions of a P-EAGLE row, depth after depth; the same for every row.

    kept: anchors that each depth keeps, the first of the list. anchor, depth [S]: whose and how deep. before [S, D]: the same
    anchor's positions of depth 1 to D, of which a position sees those that `seen` [S, D] says: its own and what lies before.
    """

    kept: tuple[int, ...]
    anchor: Tensor
    depth: Tensor
    before: Tensor
    seen: Tensor

    @classmethod
    def of(cls, kept: Sequence[int], device: torch.device) -> MaskedPlaces:
        """From the number of anchors that each depth keeps, none more than the one before."""
        deep, count = len(kept) - 1, sum(kept[1:])
        anchor = torch.cat([torch.arange(some) for some in kept[1:]])
        depth = torch.cat([torch.full((some,), k) for k, some in enumerate(kept[1:], 1)])
        starts = torch.tensor([sum(kept[1:k]) for k in range(1, deep + 1)])
        before = (anchor[:, None] + starts).clamp(max=count - 1)  # one of a depth beyond its own comes later, one that is missing is the last
        seen = before <= torch.arange(count)[:, None]
        return cls(tuple(kept), *(values.to(device) for values in (anchor, depth, before, seen)))


def build_head(recipe: Recipe, target_folder: Path, draft_vocab: Tensor, mask_token: int) -> Any:
    """A new head of the recipe's shape, its embedding and output rows taken from the target and frozen.

    draft_vocab [V]: the target's token ids that the head can propose, rising.
    """
    from speculators.models.eagle3.core import Eagle3DraftModel
    from speculators.models.peagle.core import PEagleDraftModel
    from transformers import AutoConfig

    target = AutoConfig.from_pretrained(target_folder)
    shape = copy.deepcopy(target)
    shape.num_hidden_layers, shape.intermediate_size, shape.tie_word_embeddings = recipe.layers, recipe.intermediate_size, False
    if getattr(shape, "layer_types", None):
        shape.layer_types = ["full_attention"] * recipe.layers
    t2d = torch.zeros(target.vocab_size, dtype=torch.bool)
    t2d[draft_vocab] = True
    kind = PEagleDraftModel if recipe.method == "peagle" else Eagle3DraftModel
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of its default layers
        head: Any = kind.from_training_args(
            shape,
            t2d=t2d,
            d2t=draft_vocab - torch.arange(len(draft_vocab)),
            draft_vocab_size=len(draft_vocab),
            norm_before_residual=False,
            target_layer_ids=None if recipe.aux_layers is None else list(recipe.aux_layers),
            verifier_name_or_path=str(target_folder),
            draft_attn_impl="eager",
            ttt_steps=recipe.depth,
            num_depths=recipe.depth,
            mask_token_id=mask_token,
            **recipe.switches,
        )
    return head.float()


def start_from_target(head: Any, target: Any, residual_scale: float) -> None:
    """Begin as the target's last layers instead of at random: the head then starts in the target's own space.

    The fusion passes the last auxiliary state on, the decoder layers are the target's last ones, and the embedding's half of the
    first layer's attention starts near zero. residual_scale: root mean square of that state; where a norm divides it out, what
    the layers add is divided too. A wider MLP keeps its further columns random, their outputs zero.
    """
    layers, hidden = target.model.layers, head.config.transformer_layer_config.hidden_size
    first = len(layers) - len(head.layers)
    with torch.no_grad():
        head.fc.weight.normal_(0, 0.005)
        head.fc.weight[:, -hidden:] += torch.eye(hidden, device=head.fc.weight.device)
        for at, layer in enumerate(head.layers):
            _copy_layer(layer, layers[first + at], hidden if at == 0 else None)
            if head.fc_norm is not None:
                layer.self_attn.o_proj.weight /= residual_scale
                layer.mlp.down_proj.weight /= residual_scale
        head.norm.weight.copy_(target.model.norm.weight)
        if hasattr(head, "mask_hidden"):
            head.mask_hidden.normal_(0, 0.02)


def _copy_layer(mine: Any, theirs: Any, first_hidden: int | None) -> None:
    for name in ("q_proj", "k_proj", "v_proj"):
        own, given = getattr(mine.self_attn, name).weight, getattr(theirs.self_attn, name).weight
        if first_hidden is None:
            own.copy_(given)
        else:
            own[:, :first_hidden].normal_(0, 0.01)
            own[:, first_hidden:].copy_(given)
    mine.self_attn.o_proj.weight.copy_(theirs.self_attn.o_proj.weight)
    width = min(mine.mlp.gate_proj.weight.shape[0], theirs.mlp.gate_proj.weight.shape[0])
    for name in ("gate_proj", "up_proj"):
        own = getattr(mine.mlp, name).weight
        own.normal_(0, 0.02)
        own[:width].copy_(getattr(theirs.mlp, name).weight[:width])
    mine.mlp.down_proj.weight.zero_()
    mine.mlp.down_proj.weight[:, :width].copy_(theirs.mlp.down_proj.weight[:, :width])
    if hasattr(mine, "hidden_norm"):
        mine.hidden_norm.weight.copy_(theirs.input_layernorm.weight)
    else:
        mine.input_layernorm.weight.copy_(theirs.input_layernorm.weight)
    mine.post_attention_layernorm.weight.copy_(theirs.post_attention_layernorm.weight)


def depth_states(head: Any, batch: Batch, aux: Tensor, masked: MaskedPlaces | None = None) -> list[Tensor]:
    """Normalised states [B, M_k, H] of the anchors at each depth; the logits are these times the output rows.

    eagle3: depth after depth, each fed the state before it and the true token (training-time test). peagle: all depths at once;
    `masked` says which anchors each depth keeps.
    """
    fused = _fuse(head, aux)
    if masked is None:
        return _one_after_another(head, batch, fused)
    return _all_at_once(head, batch, fused, masked)


def _fuse(head: Any, aux: Tensor) -> Tensor:
    if head.fc_norm is not None:
        parts = aux.chunk(len(head.fc_norm), dim=-1)
        aux = torch.cat([norm(part) for norm, part in zip(head.fc_norm, parts, strict=True)], dim=-1)
    return head.fc(aux)  # type: ignore[no-any-return]


def _at(values: Tensor, index: Tensor) -> Tensor:
    """values [B, L, …] at index [B, M]."""
    return values.gather(1, index[..., None].expand(-1, -1, values.shape[-1]))


def _next_embedding(head: Any, batch: Batch, at: Tensor, ahead: int) -> Tensor:
    index = (at + ahead).clamp(max=batch.ids.shape[1] - 1)
    return head.embed_tokens(batch.ids.gather(1, index))  # type: ignore[no-any-return]


def _one_after_another(head: Any, batch: Batch, fused: Tensor) -> list[Tensor]:
    layer, depth = head.layers[0], head.config.speculators_config.proposal_methods[0].speculative_tokens
    everywhere = torch.arange(batch.ids.shape[1], device=batch.ids.device).expand_as(batch.ids)
    rotary = _Rotary(head, batch.ids.shape[1] + depth)
    base = _inputs(layer, _next_embedding(head, batch, everywhere, 1), fused)
    keys, values = _keys_values(layer.self_attn, base, rotary, batch.positions)
    mask = _at(batch.row_mask(), batch.anchors)
    where = batch.positions.gather(1, batch.anchors)
    own: list[tuple[Tensor, Tensor]] = []
    state, found = _at(fused, batch.anchors), []
    for k in range(depth):
        entered = _inputs(layer, _next_embedding(head, batch, batch.anchors, 1 + k), state)
        if k:  # at depth 0 the anchor's own key is among the row's
            own.append(_keys_values(layer.self_attn, entered, rotary, where + k))
        query = _queries(layer.self_attn, entered, rotary, where + k)
        chain = (torch.stack([key for key, _ in own], dim=3), torch.stack([value for _, value in own], dim=3)) if own else None
        state = _finish(layer, state, chain_attention(query, keys, values, mask, chain))
        normed = head.norm(state)
        found.append(normed)
        if head.config.norm_output:
            state = normed
    return found


def _all_at_once(head: Any, batch: Batch, fused: Tensor, masked: MaskedPlaces) -> list[Tensor]:
    """The row and, behind it, the masked positions of depth 1, depth 2, … as one longer row."""
    length = batch.ids.shape[1]
    everywhere = torch.arange(length, device=batch.ids.device).expand_as(batch.ids)
    place, depth, before = masked.anchor, masked.depth, masked.before
    rotary = _Rotary(head, length + len(masked.kept))
    row_mask, where = batch.row_mask(), batch.positions.gather(1, batch.anchors)
    starts = [sum(masked.kept[1:k]) for k in range(1, len(masked.kept))]
    positions = torch.cat([batch.positions, where[:, place] + depth], dim=1)
    mask = _at(row_mask, batch.anchors[:, place])
    size = (len(batch.ids), len(place), -1)
    hidden, embedding = _fuse(head, head.mask_hidden.to(fused.dtype)), head.embed_tokens.weight[head.mask_token_id].to(fused.dtype)
    state = torch.cat([fused, hidden.expand(size)], dim=1)
    embedded = torch.cat([_next_embedding(head, batch, everywhere, 1).to(fused.dtype), embedding.expand(size)], dim=1)
    for number, layer in enumerate(head.layers):
        entered = layer.input_layernorm(state) if number else _inputs(layer, embedded, state)
        query = _queries(layer.self_attn, entered, rotary, positions)
        keys, values = _keys_values(layer.self_attn, entered, rotary, positions)
        (row_query, own_query), (row_keys, own_keys), (row_values, own_values) = (
            torch.split(one, [length, len(place)], dim=2) for one in (query, keys, values)
        )
        chain = (_chain(own_keys, before), _chain(own_values, before))
        in_row = _row_attention(row_query, row_keys, row_values, row_mask)
        behind = chain_attention(own_query, row_keys, row_values, mask, chain, masked.seen)
        state = _finish(layer, state, torch.cat([in_row, behind], dim=2))
    normed = head.norm(state)
    return [
        _at(normed[:, :length], batch.anchors),
        *(normed[:, length + start : length + start + count] for start, count in zip(starts, masked.kept[1:], strict=True)),
    ]


def _chain(values: Tensor, before: Tensor) -> Tensor:
    """values [B, KV heads, S, D] at the places before [S, depths]: [B, KV heads, S, depths, D]."""
    return torch.unflatten(values.index_select(2, before.flatten()), 2, tuple(before.shape))


def _inputs(layer: Any, embedded: Tensor, state: Tensor) -> Tensor:
    return torch.cat([layer.input_layernorm(embedded), layer.hidden_norm(state)], dim=-1)


class _Rotary:
    """Rotary embedding by table: cos and sin [positions, head_dim], half and half as Llama pairs them."""

    def __init__(self, head: Any, positions: int) -> None:
        at = torch.arange(positions, device=head.fc.weight.device)[None]
        cos, sin = head.rotary_emb(head.fc.weight[None, :1], at)
        self.cos, self.sin = cos[0].to(head.fc.weight.dtype), sin[0].to(head.fc.weight.dtype)

    def __call__(self, states: Tensor, positions: Tensor) -> Tensor:
        cos, sin = self.cos[positions][:, None].to(states.dtype), self.sin[positions][:, None].to(states.dtype)
        low, high = states.chunk(2, dim=-1)
        turned: Tensor = states * cos + torch.cat([-high, low], dim=-1) * sin
        return turned


def _split(states: Tensor, head_dim: int) -> Tensor:
    """[B, N, heads × head_dim] as [B, heads, N, head_dim]."""
    return torch.unflatten(states, -1, (-1, head_dim)).transpose(1, 2)


def _queries(attention: Any, entered: Tensor, rotary: _Rotary, positions: Tensor) -> Tensor:
    return rotary(_split(attention.q_proj(entered), attention.head_dim), positions)


def _keys_values(attention: Any, entered: Tensor, rotary: _Rotary, positions: Tensor) -> tuple[Tensor, Tensor]:
    key = rotary(_split(attention.k_proj(entered), attention.head_dim), positions)
    return key, _split(attention.v_proj(entered), attention.head_dim)


def _finish(layer: Any, state: Tensor, attended: Tensor) -> Tensor:
    """The rest of a decoder layer: state [B, N, H] plus what was attended to [B, heads, N, D], then the MLP."""
    state = state + layer.self_attn.o_proj(attended.transpose(1, 2).flatten(2))
    return state + layer.mlp(layer.post_attention_layernorm(state))  # type: ignore[no-any-return]


def chain_attention(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, own: tuple[Tensor, Tensor] | None = None, seen: Tensor | None = None) -> Tensor:
    """Attention of queries [B, heads, N, D] over a row's keys and values [B, KV heads, L, D] under mask [B, N, L], and over `own`.

    own: keys and values [B, KV heads, N, chain, D] that the query of the same place n alone sees; seen [N, chain] says which of
    them, by default all. Returns [B, heads, N, D]. Query head h reads KV head h // (heads / KV heads).
    """
    batch, heads, count, width = query.shape
    length, groups = keys.shape[2], heads // keys.shape[1]
    folded = torch.unflatten(query * float(width) ** -0.5, 1, (keys.shape[1], groups))  # [B, KV, groups, N, D]
    scores = torch.unflatten(folded.flatten(2, 3) @ keys.transpose(-1, -2), 2, (groups, count))
    scores = scores.masked_fill(~mask[:, None, None], torch.finfo(scores.dtype).min)
    if own is not None:
        alone = (folded.transpose(2, 3) @ own[0].transpose(-1, -2)).transpose(2, 3)  # [B, KV, groups, N, chain]
        if seen is not None:
            alone = alone.masked_fill(~seen, torch.finfo(scores.dtype).min)
        scores = torch.cat([scores, alone], dim=-1)
    shares = scores.softmax(dim=-1, dtype=torch.float32).to(values.dtype)
    mixed = torch.unflatten(shares[..., :length].flatten(2, 3) @ values, 2, (groups, count))
    if own is not None:
        mixed = mixed + (shares[..., length:].transpose(2, 3) @ own[1]).transpose(2, 3)
    return mixed.reshape(batch, heads, count, width)


def _row_attention(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Attention of a row to itself, [B, heads, L, D] and [B, KV heads, L, D] under [B, L, L], by torch's kernel, which keeps no scores."""
    groups = query.shape[1] // keys.shape[1]
    wide = (keys.repeat_interleave(groups, dim=1), values.repeat_interleave(groups, dim=1))
    return nn.functional.scaled_dot_product_attention(query, *wide, attn_mask=mask[:, None])


def output_rows(head: Any) -> Tensor:
    """[V, H]: the frozen output rows, the target's own."""
    weight: Tensor = head.lm_head.weight
    return weight


def trainable(head: nn.Module) -> list[nn.Parameter]:
    """What is learned: all but the embedding and output rows."""
    frozen = ("embed_tokens.", "lm_head.", "verifier_")
    parameters = [(name, parameter) for name, parameter in head.named_parameters()]
    for name, parameter in parameters:
        parameter.requires_grad_(not name.startswith(frozen))
    return [parameter for _, parameter in parameters if parameter.requires_grad]


class _FrozenRowsLoss(torch.autograd.Function):
    """Cross entropy against the target's distribution and its argmax, without keeping logits: the output rows are frozen."""

    @staticmethod
    def forward(ctx: Any, state: Tensor, rows: Tensor, final: Tensor, weight: Tensor, hard: float, step: Any) -> tuple[Tensor, Tensor]:
        gradients, losses, agreed = [], [], []
        for part, target, share in zip(torch.split(state, CHUNK), torch.split(final, CHUNK), torch.split(weight, CHUNK), strict=True):
            loss, gradient, same = step(part, rows, target, share, hard)
            losses.append(loss)
            gradients.append(gradient)
            agreed.append(same)
        ctx.save_for_backward(torch.cat(gradients))
        return torch.stack(losses).sum(), torch.cat(agreed)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * upstream[0].to(gradient.dtype), None, None, None, None, None


CHUNK = 4096


def loss_step(state: Tensor, rows: Tensor, final: Tensor, weight: Tensor, hard: float) -> tuple[Tensor, Tensor, Tensor]:
    """(weighted loss, its gradient to the states [N, H], [N] whether both argmax agree) of a chunk of states [N, H]."""
    logits, target = (state @ rows.T).float(), (final @ rows.T).float()
    best = target.argmax(-1)
    label = target.softmax(-1) * (1 - hard)
    label = label.scatter_add(1, best[:, None], torch.full_like(label[:, :1], hard))
    logged = logits.log_softmax(-1)
    loss = -(weight * (label * logged).sum(-1)).sum()
    gradient = ((logged.exp() - label) * weight[:, None]).to(state.dtype) @ rows
    return loss, gradient, logits.argmax(-1) == best


def frozen_rows_loss(state: Tensor, rows: Tensor, final: Tensor, weight: Tensor, hard: float, step: Any = loss_step) -> tuple[Tensor, Tensor]:
    """Loss summed over states [N, H] with weights [N], and [N] whether head and target agree; see `loss_step`.

    rows [V, H] are the output rows of both; the target's distribution is that over the draft vocabulary.
    """
    result: tuple[Tensor, Tensor] = _FrozenRowsLoss.apply(state, rows, final, weight, hard, step)  # type: ignore[no-untyped-call]
    return result


def root_mean_square(states: Tensor, docs: Tensor) -> float:
    """Root mean square of states [B, L, H] over the tokens of documents."""
    return float(states[docs >= 0].float().square().mean().sqrt())
