"""Texts that are fixed and held out, scores against transformers' own loss, and a clear refusal without llm-compressor."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from specstudy.cli import app
from specstudy.errors import AssetError, ConfigError
from specstudy.quantize import texts
from specstudy.quantize.recipes import recipe_named
from specstudy.quantize.score import agreements, greedy_answers, load, negative_log_likelihoods
from specstudy.quantize.texts import Exchange, held_out
from specstudy.workloads.sharegpt import Conversation


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A Llama of two tiny layers with random weights, saved and loaded."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 64, "vocab_size": 50}
    folder = tmp_path_factory.mktemp("model")
    LlamaForCausalLM(LlamaConfig(**sizes, eos_token_id=None, pad_token_id=0)).save_pretrained(folder)
    return load(folder)


def test_the_likelihood_is_transformers_loss_over_the_answer_alone(model: Any) -> None:
    one = Exchange((3, 4, 5), (6, 7, 8, 9))
    ids = torch.tensor([one.ids])
    labels = ids.clone()
    labels[0, :3] = -100  # transformers leaves these out
    with torch.inference_mode():
        expected = float(model(ids, labels=labels).loss) * 4
    assert negative_log_likelihoods(model, [one]) == pytest.approx([expected], rel=1e-5)


def test_a_model_agrees_with_its_own_greedy_answer(model: Any) -> None:
    questions = [[3, 4, 5], [9, 8]]
    answers = greedy_answers(model, questions, 6)
    assert [len(answer) for answer in answers] == [6, 6]
    assert agreements(model, questions, answers) == [(6, 6), (6, 6)]


def test_answers_of_different_questions_do_not_touch_each_other(model: Any) -> None:
    """Three questions of other lengths in one batch, padded on the left, against each alone; and an end token ends only its own."""
    questions = [[3, 4, 5, 6, 7], [9, 8], [11]]
    together = greedy_answers(model, questions, 5)
    assert together == [greedy_answers(model, [question], 5)[0] for question in questions]
    model.generation_config.eos_token_id = end = together[1][0]
    try:
        ended = greedy_answers(model, questions, 5)
    finally:
        model.generation_config.eos_token_id = None
    assert ended[1] == [end]
    assert all(answer == whole[: len(answer)] and (len(answer) == 5 or answer[-1] == end) for answer, whole in zip(ended, together, strict=True))


def test_agreement_goes_on_after_the_first_difference(model: Any) -> None:
    """Another third token: the first two are the model's, and each later one is asked for after the changed beginning."""
    question, (answer,) = [3, 4, 5], greedy_answers(model, [[3, 4, 5]], 3)
    changed = [answer[0], answer[1], (answer[2] + 1) % 50]
    (rest,) = greedy_answers(model, [[*question, *changed]], 2)
    assert agreements(model, [question], [[*changed, *rest]]) == [(4, 2)]


class Words:
    """A stand-in tokenizer: a word is a token; the template adds two."""

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        assert not add_special_tokens
        return {"input_ids": [len(word) for word in text.split()]}

    def apply_chat_template(self, messages: list[dict[str, str]], **how: Any) -> list[int]:
        return [1, *(len(word) for turn in messages for word in turn["content"].split()), 2]


def conversation(name: str, question: str, words: int) -> Conversation:
    return Conversation(name, question, (("user", question), ("assistant", "word " * words)), (question,))


@pytest.fixture
def conversations(monkeypatch: pytest.MonkeyPatch) -> list[Conversation]:
    found = [conversation(str(number), f"question number {number}", 20 + number) for number in range(200)]

    def given(say: Any) -> Iterator[Conversation]:
        return iter(found)

    monkeypatch.setattr(texts, "sharegpt_conversations", given)
    return found


def test_exchanges_are_the_first_held_out_ones_that_fit(conversations: list[Conversation]) -> None:
    """Answers of 32 words at least; 5 words of question and template leave 45 of 50."""
    fitting = [one for one in conversations if one.is_evaluation and 32 <= 20 + int(one.name) <= 45]
    found = held_out(Words(), 2, 50, print)
    assert [len(one.answer) for one in found] == [20 + int(one.name) for one in fitting[:2]]
    with pytest.raises(AssetError, match=f"{len(fitting)} exchanges of at most 50 tokens; 99 are needed"):
        held_out(Words(), 99, 50, print)


def test_an_unknown_recipe_is_refused() -> None:
    with pytest.raises(ConfigError, match="recipe: got 'int3'; known: awq, fp8"):
        recipe_named("int3")


@pytest.mark.skipif(find_spec("llmcompressor") is not None, reason="llm-compressor is installed")
def test_without_llm_compressor_nothing_starts(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["quantize", "smollm2-135m-instruct", "--out", str(tmp_path / "one.json")])
    assert isinstance(done.exception, ConfigError)
    assert "an environment of its own" in str(done.exception)
    assert list(tmp_path.iterdir()) == []
