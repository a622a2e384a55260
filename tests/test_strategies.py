"""The policies to compare with: by lot, small model leading, and turns that end where the small model is unsure."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relaygen import profile
from relaygen.core.policy import Policy, at_random, hand_back, margin, reflect, segment
from relaygen.core.record import Record
from relaygen.core.relay import Generation
from relaygen.errors import UserError
from relaygen.strategies import POLICIES, make_policy
from relaygen.types import Author, Candidate, Chunk, Piece, Reason, Result, Token, TokenLogprob, TurnEnd

BASE = segment(("So,",))
SURE = TokenLogprob(-0.01, (Candidate("a", -0.01), Candidate("b", -5.0)))
UNSURE = TokenLogprob(-0.7, (Candidate("a", -0.7), Candidate("b", -0.75)))


def pieces(text: str) -> list[Piece]:
    """Words with their blank in front; those with a ~ at the end are the ones the small model is unsure of."""
    words = [(" " if at else "") + word for at, word in enumerate(text.split(" "))]
    return [Piece(word, (at,), (UNSURE if word.endswith("~") else SURE,)) for at, word in enumerate(words)]


def write(policy: Policy, text: list[Piece], *, seed: int = 0, chunk: int = 1) -> Result:
    """Both models write `text`."""
    generation, record, at = Generation(policy, max_tokens=10**6, seed=seed), Record(), 0
    while ask := generation.next_ask():
        assert ask.margins == (policy.min_margin is not None and ask.author is Author.SMALL)
        while not generation.turn_over:
            end = TurnEnd("eos") if at + chunk >= len(text) else None
            for event in generation.feed(Chunk(tuple(text[at : at + chunk]), end)):
                record.add(event)
                at += isinstance(event, Token)
    return record.result()


def shape(result: Result) -> list[tuple[str, str, str]]:
    return [(s.author.value, s.text, s.reason.value) for s in result.segments]


SENTENCES = pieces(" ".join(f"This is the sentence number {n} of all." for n in range(200)))


@pytest.mark.parametrize("share", [0.0, 0.2, 0.4, 0.5])
def test_the_lot_gives_the_small_model_its_share(share: float) -> None:
    shares = [write(at_random(BASE, share), SENTENCES, seed=seed).usage.small_share for seed in range(20)]
    assert sum(shares) / 20 == pytest.approx(share * 7 / 8, abs=0.02)  # 7 of the 8 words of a sentence


def test_the_lot_depends_on_the_seed_alone() -> None:
    policy = at_random(BASE, 0.4)
    assert shape(write(policy, SENTENCES, seed=1)) == shape(write(policy, SENTENCES, seed=1, chunk=7))
    assert shape(write(policy, SENTENCES, seed=1)) != shape(write(policy, SENTENCES, seed=2))
    assert all(
        s.reason in (Reason.LOT, Reason.EOS)
        for s in write(policy, SENTENCES).segments
        if s.author is Author.LARGE
    )


def test_a_word_of_doubt_gives_the_large_model_a_sentence() -> None:
    text = pieces("It is six and so on. Wait, that is seven. So it is.")
    assert shape(write(reflect(BASE), text)) == [
        ("small", "It is six and so on. Wait,", "cue"),
        ("large", " that is seven. So", "sentence"),
        ("small", " it is.", "eos"),
    ]


def test_an_unsure_small_model_is_relieved_for_a_sentence() -> None:
    text = pieces("The sum is then seven~ or so. And more of it.")
    assert shape(write(margin(BASE, 0.2), text)) == [
        ("small", "The sum is then", "unsure"),
        ("large", " seven~ or so. And", "sentence"),
        ("small", " more of it.", "eos"),
    ]


def test_a_small_turn_ends_before_the_token_it_is_unsure_of() -> None:
    text = pieces("a b c d e So, we get seven~ or so. f g h i So, it~ is h.")
    assert shape(write(hand_back(BASE, 0.2), text)) == [
        ("large", "a b c d e So,", "cue"),
        ("small", " we get", "unsure"),
        ("large", " seven~ or so. f g h i So,", "cue"),
        ("small", "", "unsure"),
        ("large", " it~ is h.", "eos"),
    ]


def test_nobody_is_unsure_at_margin_zero() -> None:
    text = pieces("a b c d e So, we get seven~ or so. f g h")
    assert shape(write(hand_back(BASE, 0.0), text)) == shape(write(BASE, text))


@given(
    st.lists(st.sampled_from(["x", "y.", "So,", "sure~", "Wait,", "now\n\n", "z"]), min_size=1, max_size=50),
    st.sampled_from([at_random(BASE, 0.4), reflect(BASE), margin(BASE, 0.2), hand_back(BASE, 0.2)]),
    st.integers(1, 9),
)
def test_turns_do_not_depend_on_chunks(words: list[str], policy: Policy, chunk: int) -> None:
    text = pieces(" ".join(words))
    one = write(policy, text)
    assert shape(one) == shape(write(policy, text, chunk=chunk))
    assert one.text == " ".join(words)


def test_every_policy_has_its_name() -> None:
    generic = profile.load("generic")
    for entry in POLICIES:
        kind, colon, _ = entry.partition(":")
        policy = make_policy(entry.partition(":")[0] + (":0.4" if colon else ""), generic)
        assert policy.name == kind


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fast", "unknown policy 'fast'"),
        ("large:1", "the policy large takes no number"),
        ("random", "the policy random needs a number between 0 and 1, as random:0.4"),
        ("margin:nan", "the policy margin needs a number"),
        ("segment+margin:2", "needs a number"),
    ],
)
def test_a_wrong_policy_is_named(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message.replace("+", "\\+")):
        make_policy(name, profile.load("generic"))


def test_a_random_text_is_written_once_by_somebody() -> None:
    rng = random.Random(0)
    words = [rng.choice(["a.", "b", "So,", "c~"]) for _ in range(500)]
    assert write(
        make_policy("random:0.3", profile.load("generic")), pieces(" ".join(words))
    ).text == " ".join(words)
