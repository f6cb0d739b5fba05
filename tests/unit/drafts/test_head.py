"""The training's forward pass against the library's own, its loss against autograd, and the rows it learns from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from speculators.losses.eager import kl_div_loss
from speculators.models.peagle.data import generate_cod_sample_indices
from transformers import LlamaConfig, LlamaForCausalLM

from specstudy.drafts.answers import Conversation
from specstudy.drafts.head import CHUNK, Batch, MaskedPlaces, build_head, chain_attention, depth_states, frozen_rows_loss, start_from_target, trainable
from specstudy.drafts.recipe import Recipe, RowShape, recipe_for
from specstudy.drafts.rows import batch_of, covered, draft_vocabulary, pack, split
from specstudy.drafts.step import kept_anchors, target_states
from specstudy.drafts.training import Progress, learning_rate

HIDDEN, VOCAB, ROW = 48, 300, 40


@pytest.fixture(scope="module")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama with random weights: grouped-query attention, tied embeddings."""
    folder = tmp_path_factory.mktemp("target")
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=96,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=2,
        vocab_size=VOCAB,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def head_of(method: str, folder: Path, **changes: Any) -> tuple[Any, Recipe]:
    recipe = recipe_for(method, "tiny", intermediate_size=64, depth=4, aux_layers=(1, 3, 5), row_tokens=ROW, **changes)
    torch.manual_seed(1)
    head = build_head(recipe, folder, torch.arange(0, VOCAB, 3), 5)
    with torch.no_grad():
        for parameter in trainable(head):  # norms of exactly one would hide one that is left out
            parameter += 0.1 * torch.randn_like(parameter)
    return head, recipe


def rows(count: int) -> Batch:
    """One row of two documents and a third that is all there is to pad with."""
    generator = torch.Generator().manual_seed(2)
    docs = torch.tensor([[0] * 22 + [1] * 14 + [2] * 4])
    positions = torch.cat([torch.arange(22), torch.arange(14), torch.arange(4)])[None]
    anchors = torch.arange(count)[None]
    return Batch(torch.randint(1, VOCAB, (1, ROW), generator=generator), docs, positions, anchors, torch.ones_like(anchors, dtype=torch.bool))


def masked(*kept: int) -> MaskedPlaces:
    return MaskedPlaces.of(kept, torch.device("cpu"))


def library_states(head: Any, batch: Batch, aux: torch.Tensor, **arguments: Any) -> list[torch.Tensor]:
    """What the library's own forward pass gives its output rows, call after call."""
    seen: list[torch.Tensor] = []
    hook = head.lm_head.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    following = torch.cat([batch.ids[:, 1:], batch.ids.new_zeros(1, 1)], dim=1)
    head(aux, following, batch.docs, verifier_last_hidden_states=torch.zeros(1, ROW, HIDDEN), loss_config={"kl_div": (kl_div_loss, 1.0)}, **arguments)
    hook.remove()
    return seen


@pytest.mark.parametrize("method", ["eagle3", "eagle3.1"])
def test_drafting_one_after_another_is_the_librarys(method: str, target_folder: Path) -> None:
    head, _ = head_of(method, target_folder)
    batch, aux = rows(30), torch.randn(1, ROW, 3 * HIDDEN)
    mine = depth_states(head, batch, aux)
    theirs = library_states(head, batch, aux, position_ids=batch.positions, loss_mask=torch.ones(1, ROW, dtype=torch.bool), ttt_steps=4)
    for depth in range(4):
        inside = [p for p in range(30) if p + 1 + depth < 36 and batch.docs[0, p] == batch.docs[0, p + 1 + depth]]
        assert len(inside) > 20
        torch.testing.assert_close(mine[depth][0, inside], theirs[depth][0, inside], atol=1e-5, rtol=1e-5)


def test_drafting_all_at_once_is_the_librarys(target_folder: Path) -> None:
    head, _ = head_of("peagle", target_folder)
    batch, aux = rows(36), torch.randn(1, ROW, 3 * HIDDEN)
    learned_from = torch.zeros(1, ROW)
    learned_from[0, 3:20] = learned_from[0, 26:34] = 1
    mine = depth_states(head, batch, aux, masked(36, 36, 36, 36))
    torch.manual_seed(3)
    theirs = library_states(head, batch, aux, loss_mask=learned_from, num_depths=4)[0]
    torch.manual_seed(3)
    anchors, depths = generate_cod_sample_indices(ROW, learned_from, 4, 0.7, 0.2)
    for depth in range(4):
        ends = (anchors + depth).clamp(max=ROW - 1)
        chosen = (depths == depth) & (anchors < 36) & (batch.docs[0, anchors] == batch.docs[0, ends])
        assert int(chosen.sum()) > 5
        torch.testing.assert_close(mine[depth][0, anchors[chosen]], theirs[0, chosen], atol=1e-5, rtol=1e-5)


def test_dropped_anchors_change_nothing_for_the_kept(target_folder: Path) -> None:
    head, _ = head_of("peagle", target_folder)
    batch, aux = rows(36), torch.randn(1, ROW, 3 * HIDDEN)
    whole, dropped = depth_states(head, batch, aux, masked(36, 36, 36, 36)), depth_states(head, batch, aux, masked(36, 25, 17, 12))
    for full, part in zip(whole, dropped, strict=True):
        torch.testing.assert_close(full[:, : part.shape[1]], part, atol=1e-5, rtol=1e-5)


def test_kept_anchors_follow_ratio_and_floor() -> None:
    # 0.7, 0.49, 0.343, 0.2401, 0.16807 -> floor 0.2, … of 1000, as P-EAGLE drops them.
    assert kept_anchors(recipe_for("peagle", depth=7), 1000) == [1000, 700, 490, 343, 240, 200, 200]


def test_a_masked_position_sees_its_anchors_up_to_itself() -> None:
    places = masked(3, 3, 2, 1)  # S: depth 1 of anchors 0, 1, 2; depth 2 of 0, 1; depth 3 of 0
    assert places.anchor.tolist() == [0, 1, 2, 0, 1, 0]
    assert places.depth.tolist() == [1, 1, 1, 2, 2, 3]
    visible = [[int(at) for at, seen in zip(ats, row, strict=True) if seen] for ats, row in zip(places.before, places.seen, strict=True)]
    assert visible == [[0], [1], [2], [0, 3], [1, 4], [0, 3, 5]]


def test_attention_is_the_librarys_where_there_is_no_chain() -> None:
    torch.manual_seed(4)
    query, keys, values = torch.randn(2, 6, 5, 8), torch.randn(2, 2, 7, 8), torch.randn(2, 2, 7, 8)
    mask = torch.rand(2, 5, 7) > 0.3
    mask[..., 0] = True
    expected = torch.nn.functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask[:, None], enable_gqa=True)
    torch.testing.assert_close(chain_attention(query, keys, values, mask), expected)


def test_a_chain_is_more_keys_for_its_own_query_alone() -> None:
    torch.manual_seed(5)
    query, keys, values = torch.randn(1, 2, 3, 8), torch.randn(1, 1, 4, 8), torch.randn(1, 1, 4, 8)
    own = [(torch.randn(1, 1, 3, 8), torch.randn(1, 1, 3, 8)) for _ in range(2)]
    mask = torch.ones(1, 3, 4, dtype=torch.bool).tril()
    all_keys, all_values = torch.cat([keys, *(key for key, _ in own)], 2), torch.cat([values, *(value for _, value in own)], 2)
    wide = torch.cat([mask, torch.eye(3, dtype=torch.bool)[None], torch.eye(3, dtype=torch.bool)[None]], dim=-1)
    expected = torch.nn.functional.scaled_dot_product_attention(query, all_keys, all_values, attn_mask=wide[:, None], enable_gqa=True)
    chain = (torch.stack([key for key, _ in own], dim=3), torch.stack([value for _, value in own], dim=3))
    torch.testing.assert_close(chain_attention(query, keys, values, mask, chain), expected)
    wide[..., 4 + 3 + 1] = False  # the second query may not see the second part of its chain
    expected = torch.nn.functional.scaled_dot_product_attention(query, all_keys, all_values, attn_mask=wide[:, None], enable_gqa=True)
    seen = torch.tensor([[True, True], [True, False], [True, True]])
    torch.testing.assert_close(chain_attention(query, keys, values, mask, chain, seen), expected)


@pytest.mark.parametrize("hard", [0.0, 0.5, 1.0])
def test_loss_and_gradient_are_those_of_cross_entropy(hard: float) -> None:
    torch.manual_seed(6)
    count = CHUNK + 7  # two chunks
    state, rows_, final, weight = torch.randn(count, 12, requires_grad=True), torch.randn(20, 12), torch.randn(count, 12), torch.rand(count)
    loss, agreed = frozen_rows_loss(state, rows_, final, weight, hard)
    (2 * loss).backward()
    other = state.detach().clone().requires_grad_()
    target = (final @ rows_.T).softmax(-1)
    label = (1 - hard) * target + hard * torch.nn.functional.one_hot(target.argmax(-1), 20)
    expected = (torch.nn.functional.cross_entropy(other @ rows_.T, label, reduction="none") * weight).sum()
    (2 * expected).backward()
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-2)
    torch.testing.assert_close(state.grad, other.grad, rtol=1e-4, atol=1e-5)
    assert torch.equal(agreed, (other @ rows_.T).argmax(-1) == target.argmax(-1))


def test_packed_rows_give_the_states_of_each_document_alone(target_folder: Path) -> None:
    target = LlamaForCausalLM.from_pretrained(target_folder, attn_implementation="sdpa").eval()
    batch = rows(8)
    packed = target_states(target, batch, (1, 3, 5))
    for first, last in ((0, 22), (22, 36), (36, 40)):
        alone = target.model(input_ids=batch.ids[:, first:last], output_hidden_states=True)
        torch.testing.assert_close(packed.final[:, first:last], alone.last_hidden_state, atol=1e-5, rtol=1e-4)
        aux = torch.cat([alone.hidden_states[layer] for layer in (1, 3, 5)], dim=-1)
        torch.testing.assert_close(packed.aux[:, first:last], aux, atol=1e-5, rtol=1e-4)


def test_the_start_is_the_targets_last_layer(target_folder: Path) -> None:
    """With nothing of the embedding and the fusion's noise taken out, the head is the target's last layer on its last auxiliary state."""
    target = LlamaForCausalLM.from_pretrained(target_folder).eval()
    recipe = recipe_for("eagle3", "tiny", intermediate_size=128, depth=1, aux_layers=(1, 3, 5), row_tokens=ROW)
    head = build_head(recipe, target_folder, torch.arange(0, VOCAB, 3), 5)
    start_from_target(head, target, 1.0)
    with torch.no_grad():
        head.fc.weight.zero_()
        head.fc.weight[:, -HIDDEN:] = torch.eye(HIDDEN)
        for name in ("q_proj", "k_proj", "v_proj"):
            getattr(head.layers[0].self_attn, name).weight[:, :HIDDEN].zero_()
    batch = rows(22)
    seen = target_states(target, batch, (1, 3, 5))
    mine = depth_states(head, batch, seen.aux)[0]
    torch.testing.assert_close(mine, seen.final[:, :22], atol=1e-4, rtol=1e-3)  # layer 5 is the last of six


def test_labels_stay_in_their_document() -> None:
    batch = rows(36)
    for depth in range(3):
        at, there = batch.label_at(depth)
        for anchor in range(36):
            end = 22 if anchor < 22 else 36
            assert bool(there[0, anchor]) == (anchor + 2 + depth < end)  # the token that the label stands for is in the document
            if there[0, anchor]:
                assert int(at[0, anchor]) == anchor + 1 + depth


def talk(prompt: int, answer: int, start: int = 0, temperature: float = 0.0) -> Conversation:
    tokens = np.arange(start, start + prompt + answer, dtype=np.int32)
    return Conversation("test", temperature, tokens[:prompt], tokens[prompt:])


def test_anchors_are_the_places_from_which_the_engine_drafts() -> None:
    batch = batch_of([talk(5, 6), talk(3, 4, 50)], [[0, 1]], RowShape(1, 32, 16), np.random.default_rng(0))
    # First document: 11 tokens, prompt 0 to 4. First draft after token 5 is known: anchor 4. Last label is token 10: anchor 8.
    # Second document: tokens 11 to 17, prompt 11 to 13: anchors 13 to 15.
    assert sorted(batch.anchors[batch.counts].tolist()) == [4, 5, 6, 7, 8, 13, 14, 15]
    assert batch.positions[0, :18].tolist() == [*range(11), *range(7)]
    assert batch.docs[0, 17] == 1
    assert batch.docs[0, 18] == -1


def test_packing_loses_nothing_and_repeats() -> None:
    told = [talk(5 + at % 9, 3 + at % 13, at) for at in range(200)]
    rows_ = pack(told, 40, seed=7)
    assert sorted(index for row in rows_ for index in row) == list(range(200))
    assert all(sum(len(told[at].prompt) + len(told[at].answer) for at in row) <= 40 for row in rows_)
    assert rows_ == pack(told, 40, seed=7)
    assert rows_ != pack(told, 40, seed=8)


def test_answers_to_one_prompt_stay_on_one_side() -> None:
    told = [talk(6, 4, at, temperature) for at in range(2000) for temperature in (0.0, 0.7)]
    training, validation = split(told)
    assert {one.prompt.tobytes() for one in training}.isdisjoint(one.prompt.tobytes() for one in validation)
    assert 10 < len(validation) < 60  # 1.5 % of 2,000
    assert {one.temperature for one in validation} == {0.0}


def test_the_draft_vocabulary_holds_the_answers_most_frequent_tokens() -> None:
    answers = np.array([7] * 5 + [2] * 4 + [9] * 3 + [1], dtype=np.int32)
    told = [Conversation("test", 0.0, np.array([0, 3], dtype=np.int32), answers)]
    vocabulary, rarest = draft_vocabulary(told, 3, 10)
    assert vocabulary.tolist() == [2, 7, 9]
    assert covered(told, vocabulary) == pytest.approx(12 / 13)
    assert rarest == 4  # the first that occurs nowhere


def test_learning_rate_rises_and_falls() -> None:
    recipe = recipe_for("eagle3", learning_rate=1e-3, minutes=10)
    at = [learning_rate(recipe, Progress(step=step, seconds=seconds)) for step, seconds in ((0, 0), (99, 60), (199, 60), (900, 300), (1800, 600))]
    # Step 1 and step 100 of 200 of the warm-up, its end after a minute of ten, half the time, all of it.
    assert at == pytest.approx([5e-6, 0.5 * 0.9e-3, 0.9e-3, 0.5e-3, 0])


def test_a_short_training_warms_up_for_a_thirtieth_of_its_steps() -> None:
    recipe = recipe_for("eagle3", learning_rate=1e-3, steps=60)
    assert [learning_rate(recipe, Progress(step=step)) for step in (0, 1, 30, 60)] == pytest.approx([0.5e-3, 59 / 60 * 1e-3, 0.5e-3, 0])
