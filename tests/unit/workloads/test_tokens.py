from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from specstudy.errors import AssetError
from specstudy.workloads import Prompt, chat_token_counter, kept_token_counter

TEMPLATE = "{% for m in messages %}<start> {{ m['role'] }} {{ m['content'] }} {% endfor %}{% if add_generation_prompt %}<answer>{% endif %}"


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    """One token a word."""
    inner = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]")


@pytest.mark.parametrize(
    ("messages", "tokens"),
    [
        ((("user", "one two three"),), 2 + 3 + 1),
        ((("system", "be brief"), ("user", "hi"), ("assistant", "well met")), (2 + 2) + (2 + 1) + (2 + 2) + 1),
    ],
)
def test_prompt_tokens_are_counted_after_the_chat_template(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, messages: tuple[tuple[str, str], ...], tokens: int
) -> None:
    tokenizer.chat_template = TEMPLATE  # two words a turn, and one that asks for the answer
    tokenizer.save_pretrained(tmp_path)
    assert chat_token_counter(tmp_path)(Prompt(messages).as_messages()) == tokens


def test_a_model_without_a_chat_template_is_refused(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(AssetError, match="no chat template"):
        chat_token_counter(tmp_path)


def test_counts_are_kept_and_belong_to_one_tokenizer(tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECSTUDY_CACHE", str(tmp_path / "cache"))
    tokenizer.chat_template = TEMPLATE
    folder = tmp_path / "model"
    tokenizer.save_pretrained(folder)
    messages = Prompt.user("one two three").as_messages()
    with kept_token_counter(folder) as count:
        assert count(messages) == 6
    (kept,) = (tmp_path / "cache" / "token-counts").iterdir()
    kept.write_text(kept.read_text().replace(": 6", ": 60"))  # what is kept is what is said
    with kept_token_counter(folder) as count:
        assert count(messages) == 60
    kept.write_text("{")  # cut off: counted again
    with kept_token_counter(folder) as count:
        assert count(messages) == 6
    tokenizer.chat_template = TEMPLATE.replace("<start> ", "")
    tokenizer.save_pretrained(folder)
    with kept_token_counter(folder) as count:
        assert count(messages) == 5
