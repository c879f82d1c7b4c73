"""Tokens of servers' answers: no character is lost, none is made up, and a field of another type is named."""

import json
from pathlib import Path

import pytest

from specviz.errors import BadInput
from specviz.interop.responses import Arrival, Choice, ServedToken, TokenReader, converted, counted_rounds
from specviz.trace.validate import MAX_DEPTH


def piece(content, *entries):
    return {"delta": {"content": content}, "logprobs": {"content": list(entries)}}


def entry(token, p=-0.5, **more):
    return {"token": token, "logprob": p, **more}


CASES = json.loads(Path(__file__).with_name("choices.json").read_text("utf-8"))
"""Pieces as servers streamed them, with the text that each token adds and whether its p is known; and wrong ones."""
QUIRKS = CASES["quirks"] | {
    "a whole text at once": {
        "events": [{"message": {"content": "x" * 5000}}], "pieces": ["x" * 4096, "x" * 904], "known": [False] * 2,
    }
}  # fmt: skip


@pytest.mark.parametrize("quirk", QUIRKS)
def test_the_text_is_the_content_whatever_the_tokens_say(quirk):
    case, reader = QUIRKS[quirk], TokenReader()
    tokens = [token for event in case["events"] for token in reader.read(converted(Choice, event))]
    assert [token.piece for token in tokens] == case["pieces"]
    assert [token.p is not None for token in tokens] == case["known"]


def test_ids_and_names_are_the_servers():
    reader = TokenReader()
    top = [{"token": "token_id:10", "logprob": -0.1}, {"token": "token_id:99", "logprob": -3.0}]
    (token,) = reader.read(converted(Choice, piece("Hi", entry("token_id:10", top_logprobs=top))))
    assert token.token == 10 and [one for one, _ in token.top] == [10, 99] and reader.of(10) == "Hi" and reader.of(99) == "<99>"
    (token,) = reader.read(converted(Choice, piece("", entry("", bytes=[0xF0, 0x9F], id=5))))
    assert token.token == 5 and reader.of(5) == "\\xf0\\x9f"


def test_probability_one_for_every_token_is_left_out_until_another_is_seen():
    always, once = TokenReader(doubtful=True), TokenReader(doubtful=True)
    ones = [piece(word, entry(word, p=0.0, top_logprobs=[entry(word, p=0.0)])) for word in "abc"]
    found = [token for event in ones for token in always.read(converted(Choice, event))]
    assert all(token.p is None and not token.top for token in found) and always.always_one
    found = [token for event in (*ones, piece("d", entry("d")), ones[0]) for token in once.read(converted(Choice, event))]
    assert [token.p for token in found][4] == 1.0 and not once.always_one
    assert TokenReader().read(converted(Choice, ones[0]))[0].p == 1.0, "other servers mean what they say"


def test_tokens_without_counts_come_behind_the_round_that_waits():
    first, second, last = (ServedToken(number, str(number)) for number in range(3))
    found = list(counted_rounds([([first], 3, 2), ([second], 3, 2), ([last], None, 0)]))
    assert [[token.token for token in one.tokens] for one in found] == [[0, 1], [2]] and found[0].drafted == 3


def test_a_whole_text_at_once_is_several_rounds():
    reader = TokenReader()
    parts = reader.bounded(Arrival([ServedToken(number, "x") for number in range(2 * MAX_DEPTH + 1)], gap_ns=7, drafted=9))
    assert [len(part.tokens) for part in parts] == [MAX_DEPTH, MAX_DEPTH, 1] and [part.gap_ns for part in parts] == [7, 0, 0]
    assert len(reader.bounded(Arrival(reader.read(converted(Choice, {"text": "x" * 4096})) * 40))) > 5


@pytest.mark.parametrize(("choice", "path"), CASES["wrong"])
def test_a_field_of_another_type_is_named(choice, path):
    with pytest.raises(BadInput, match=path):
        converted(Choice, choice)


@pytest.mark.parametrize("text", ['{"a": NaN}', '{"a": -Infinity}', '{"a": 1e999}', "[1]", "[" * 100_000])
def test_json_is_strict_and_finite(text):
    with pytest.raises(BadInput):
        converted(Choice, text)
