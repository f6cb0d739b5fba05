"""Prompts: which are the same, which side of the split they are on, and what a draw gives."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specstudy.errors import ConfigError
from specstudy.workloads import Pool, Prompt, build_pool

SPACE = st.text(alphabet=" \t\n\r\u00a0\u2003", min_size=1, max_size=4)
WORDS = st.lists(st.text(alphabet="abcXYZ0é漢.,", min_size=1, max_size=6), min_size=1, max_size=6)


def words(messages: Sequence[dict[str, str]]) -> int:
    """Counts words for tokens, so that lengths are known by construction."""
    return sum(len(message["content"].split()) for message in messages)


def pool_of(size: int) -> Pool:
    """A pool of `size` prompts, each of one word."""
    return build_pool("w", (Prompt.user(f"p{i}") for i in range(size)), count_tokens=words, min_tokens=1, max_tokens=1)


def test_a_prompt_is_what_the_chat_endpoint_takes() -> None:
    prompt = Prompt((("system", "Be brief."), ("user", " Hi ")))
    assert prompt.as_messages() == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " Hi "}]


def test_the_key_is_sha256_over_the_folded_messages() -> None:
    expected = hashlib.sha256('[["user", "naïve test"]]'.encode()).hexdigest()
    assert Prompt.user("  naïve\n\ttest ").key == expected


@given(words=WORDS, spaces=st.lists(SPACE, min_size=8, max_size=8), ends=st.tuples(SPACE | st.just(""), SPACE | st.just("")))
def test_white_space_makes_no_other_prompt(words: list[str], spaces: list[str], ends: tuple[str, str]) -> None:
    spaced = words[0] + "".join(space + word for space, word in zip(spaces, words[1:], strict=False))
    assert Prompt.user(ends[0] + spaced + ends[1]).key == Prompt.user(" ".join(words)).key


@given(first=WORDS, second=WORDS)
def test_other_words_make_another_prompt(first: list[str], second: list[str]) -> None:
    assert (Prompt.user(" ".join(first)).key == Prompt.user(" ".join(second)).key) == (first == second)


@pytest.mark.parametrize(
    "other",
    [Prompt((("system", "Hi"),)), Prompt((("user", "H i"),)), Prompt((("user", "hi"),)), Prompt((("user", "Hi"), ("assistant", ""))), Prompt.user("Hi!")],
)
def test_role_case_and_further_turns_make_another_prompt(other: Prompt) -> None:
    assert other.key != Prompt.user("Hi").key


def test_the_split_is_decided_by_the_prompt_alone_and_takes_a_quarter() -> None:
    prompts = [Prompt.user(f"Question {i}: what comes after {i * 7}?") for i in range(10_000)]
    evaluation = {prompt.key for prompt in prompts if prompt.is_evaluation}
    training = {prompt.key for prompt in prompts if not prompt.is_evaluation}
    assert evaluation.isdisjoint(training)
    assert len(evaluation) + len(training) == 10_000
    # Binomial(10,000; 0.25): 4 standard deviations are 173.
    assert abs(len(evaluation) - 2_500) < 4 * math.sqrt(10_000 * 0.25 * 0.75)


@given(words=WORDS, space=SPACE)
def test_white_space_moves_no_prompt_to_the_other_side(words: list[str], space: str) -> None:
    assert Prompt.user(space.join(words)).is_evaluation == Prompt.user(" ".join(words)).is_evaluation


def test_the_split_is_the_first_quarter_of_the_keys() -> None:
    for i in range(200):
        prompt = Prompt.user(str(i))
        assert prompt.is_evaluation == (prompt.key[0] in "0123"), "the first hex digit decides a quarter"


def test_a_pool_says_how_many_it_dropped_and_why() -> None:
    texts = ["a", "b b", "c c c", " a ", "d d d d", "b\tb", "e e"]
    pool = build_pool("w", map(Prompt.user, texts), count_tokens=words, min_tokens=2, max_tokens=3)
    assert {prompt.messages[0][1] for prompt in pool.prompts} == {"b b", "c c c", "e e"}
    assert (pool.read, pool.duplicates, pool.out_of_length) == (7, 2, 2)


@given(texts=st.lists(WORDS.map(" ".join), min_size=1, max_size=30), low=st.integers(1, 4), span=st.integers(0, 4), data=st.data())
def test_a_pool_adds_up_and_does_not_depend_on_the_order_read(texts: list[str], low: int, span: int, data: st.DataObject) -> None:
    fitting = {tuple(text.split()) for text in texts if low <= len(text.split()) <= low + span}

    def build(order: list[str]) -> Pool:
        return build_pool("w", map(Prompt.user, order), count_tokens=words, min_tokens=low, max_tokens=low + span)

    if not fitting:
        with pytest.raises(ConfigError, match="none fits"):
            build(texts)
        return
    pool = build(texts)
    assert len(pool.prompts) == len(fitting)
    assert pool.read == len(texts) == len(pool.prompts) + pool.duplicates + pool.out_of_length
    again = build(data.draw(st.permutations(texts)))
    assert (again.sha256, [prompt.key for prompt in again.prompts]) == (pool.sha256, [prompt.key for prompt in pool.prompts])


def test_a_pool_without_a_prompt_says_how_many_were_read() -> None:
    with pytest.raises(ConfigError) as refused:
        build_pool("code", [Prompt.user("a a a")], count_tokens=words, min_tokens=1, max_tokens=2)
    assert (refused.value.field, refused.value.got) == ("workload code", 0)
    assert refused.value.allowed == "prompts of 1 to 2 tokens; 1 read, none fits"


def test_another_prompt_gives_the_pool_another_sha256() -> None:
    assert pool_of(4).sha256 != pool_of(5).sha256


def test_repeats_draw_other_prompts_until_the_pool_is_used_up() -> None:
    pool = pool_of(40)
    draws = [pool.draw(10, seed=3, start=10 * repeat) for repeat in range(4)]
    assert {prompt.key for draw in draws for prompt in draw} == {prompt.key for prompt in pool.prompts}


def test_past_the_pools_end_the_order_begins_again() -> None:
    pool = pool_of(10)
    assert pool.draw(10, seed=3, start=10) == pool.draw(10, seed=3)
    assert pool.draw(4, seed=3, start=8) == pool.draw(2, seed=3, start=8) + pool.draw(2, seed=3)


@given(size=st.integers(1, 30), seed=st.integers(0, 2**32), data=st.data())
def test_a_draw_is_decided_by_its_seed_and_holds_no_prompt_twice(size: int, seed: int, data: st.DataObject) -> None:
    pool = pool_of(size)
    count, start = data.draw(st.integers(0, size)), data.draw(st.integers(0, 3 * size))
    drawn = pool.draw(count, seed=seed, start=start)
    assert drawn == pool.draw(count, seed=seed, start=start)
    assert len({prompt.key for prompt in drawn}) == count


def test_another_seed_gives_another_order() -> None:
    pool = pool_of(40)
    assert pool.draw(40, seed=0) != pool.draw(40, seed=1)
    assert set(pool.draw(40, seed=0)) == set(pool.draw(40, seed=1))


def test_a_draw_of_more_than_the_pool_is_refused() -> None:
    with pytest.raises(ConfigError) as refused:
        pool_of(3).draw(4, seed=0)
    assert (refused.value.field, refused.value.got) == ("workload w", 4)
    assert "at most the 3 prompts" in refused.value.allowed
