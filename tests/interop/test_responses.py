"""Tokens of servers' answers: no character is lost, none is made up, and a field of another type is named."""

from __future__ import annotations

from typing import Any

import pytest

from specviz.errors import BadInput
from specviz.interop.responses import Arrival, Choice, ServedToken, TokenReader, converted, counted_rounds
from specviz.trace.meaning import MAX_DEPTH


def piece(content: str | None, *entries: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"delta": {} if content is None else {"content": content}, "finish_reason": finish,
            "logprobs": {"content": list(entries)}, **more}  # fmt: skip


def entry(token: str, raw: list[int] | None = None, p: float | None = -0.5, **more: Any) -> dict[str, Any]:
    return {"token": token, "logprob": p, **({} if raw is None else {"bytes": raw}), **more}


FIRST, SECOND = [0xF0, 0x9F], [0x98, 0x80]
BROKEN = "\ufffd"
QUIRKS: dict[str, tuple[list[dict[str, Any]], list[str], list[bool]]] = {
    # Streamed pieces; the text that each token adds; whether its p is known.
    "llama.cpp cuts a token at broken UTF-8": (
        [piece("", entry("", FIRST, id=5)), piece("😀", entry("", SECOND, id=6)), piece("!", entry("!", [33]))],
        ["", "😀", "!"], [True] * 3,
    ),
    "vLLM decodes each token alone": (
        [piece("", entry(BROKEN, list(BROKEN.encode()))), piece("😀", entry(BROKEN, list(BROKEN.encode())))],
        ["", "😀"], [True] * 2,
    ),
    "the same in one event": (
        [piece("Hi😀!", entry("Hi"), entry(BROKEN), entry(BROKEN), entry("!"))], ["Hi", "", "😀", "!"], [True] * 4,
    ),
    "vLLM writes bytes out": (
        [piece("", entry("\\xf0\\x9f", FIRST)), piece("😀", entry("\\x98\\x80", SECOND))], ["", "😀"], [True] * 2,
    ),
    "vLLM names tokens by id": (
        [piece("Hello", entry("token_id:10")), piece(" you", entry("token_id:11"))], ["Hello", " you"], [True] * 2,
    ),
    "one log probability for several words": (
        [piece(" brave new world", entry(" brave")), piece(" again"), piece("!", entry("!"))],
        [" brave", " new world", " again", "!"], [True, False, False, True],
    ),
    "words before the one that is named": ([piece("a brave", entry(" brave"))], ["a", " brave"], [False, True]),
    "a first word without its space": (
        [piece("Hello you Hello", entry(" Hello"), entry(" you"), entry(" Hello"))], ["Hello", " you", " Hello"], [True] * 3,
    ),
    "text that is held back for a stop word": (
        [piece("", entry("ab")), piece("abc", entry("c"))], ["", "abc"], [True] * 2,
    ),
    "an end that is no text": ([piece(".", entry("."), entry("<|end|>"), finish="stop")], [".", ""], [True] * 2),
    "an end without any content": ([piece(None, entry("<|end|>"), finish="stop")], [""], [True]),
    "a call of a tool": ([piece(None, entry('{"a"'), entry(": 1}"))], ['{"a"', ": 1}"], [True] * 2),
    "ids and no log probabilities": ([{"delta": {"content": "Hi you"}, "token_ids": [7, 8]}], ["", "Hi you"], [False] * 2),
    "an unknown probability": ([piece("Hi", entry("Hi", p=None))], ["Hi"], [False]),
    "a broken character that was really said": (
        [piece(BROKEN, entry(BROKEN, list(BROKEN.encode())))], [BROKEN], [True],
    ),
    "a whole text at once": ([{"message": {"content": "x" * 5000}}], ["x" * 4096, "x" * 904], [False] * 2),
    "thoughts and an answer": ([{"delta": {"reasoning": "so ", "content": "yes"}}], ["so yes"], [False]),
    "a plain completion": (
        [{"text": "Hi!", "logprobs": {"tokens": ["Hi", "!"], "token_logprobs": [None, -1.0]}}], ["Hi", "!"], [False, True],
    ),
}  # fmt: skip


@pytest.mark.parametrize("quirk", QUIRKS)
def test_the_text_is_the_content_whatever_the_tokens_say(quirk: str) -> None:
    events, pieces, known = QUIRKS[quirk]
    reader = TokenReader()
    tokens = [token for event in events for token in reader.read(converted(Choice, event))]
    assert [token.piece for token in tokens] == pieces
    assert [token.p is not None for token in tokens] == known


def test_ids_and_names_are_the_servers() -> None:
    reader = TokenReader()
    top = [{"token": "token_id:10", "logprob": -0.1}, {"token": "token_id:99", "logprob": -3.0}]
    (token,) = reader.read(converted(Choice, piece("Hi", entry("token_id:10", top_logprobs=top))))
    assert token.token == 10 and [one for one, _ in token.top] == [10, 99] and reader.of(10) == "Hi" and reader.of(99) == "<99>"
    (token,) = reader.read(converted(Choice, piece("", entry("", FIRST, id=5))))
    assert token.token == 5 and reader.of(5) == "\\xf0\\x9f"


def test_probability_one_for_every_token_is_left_out_until_another_is_seen() -> None:
    always, once = TokenReader(doubtful=True), TokenReader(doubtful=True)
    ones = [piece(word, entry(word, p=0.0, top_logprobs=[entry(word, p=0.0)])) for word in "abc"]
    found = [token for event in ones for token in always.read(converted(Choice, event))]
    assert all(token.p is None and not token.top for token in found) and always.always_one
    found = [token for event in (*ones, piece("d", entry("d")), ones[0]) for token in once.read(converted(Choice, event))]
    assert [token.p for token in found][4] == 1.0 and not once.always_one
    assert TokenReader().read(converted(Choice, ones[0]))[0].p == 1.0, "other servers mean what they say"


def test_tokens_without_counts_come_behind_the_round_that_waits() -> None:
    first, second, last = (ServedToken(number, str(number)) for number in range(3))
    found = list(counted_rounds([([first], 3, 2), ([second], 3, 2), ([last], None, 0)]))
    assert [[token.token for token in one.tokens] for one in found] == [[0, 1], [2]] and found[0].drafted == 3


def test_a_whole_text_at_once_is_several_rounds() -> None:
    reader = TokenReader()
    parts = reader.bounded(Arrival([ServedToken(number, "x") for number in range(2 * MAX_DEPTH + 1)], gap_ns=7, drafted=9))
    assert [len(part.tokens) for part in parts] == [MAX_DEPTH, MAX_DEPTH, 1] and [part.gap_ns for part in parts] == [7, 0, 0]
    assert len(reader.bounded(Arrival(reader.read(converted(Choice, {"text": "x" * 4096})) * 40))) > 5


@pytest.mark.parametrize(
    ("choice", "path"),
    [
        ({"delta": 5}, "delta: expected `object"), ({"delta": {"content": [5]}}, "delta.content: expected"),
        ({"logprobs": {"content": [{"token": 5}]}}, r"logprobs.content\[0\].token: expected `str"),
        ({"logprobs": {"content": [{"token": "a", "logprob": "x"}]}}, r"logprobs.content\[0\].logprob: expected `float"),
        ({"logprobs": {"content": [{"token": "a", "logprob": 7.0}]}}, "expected `float` <= 0.001"),
        ({"logprobs": {"content": [{"token": "a", "logprob": -1, "top_logprobs": 5}]}}, "top_logprobs: expected `array"),
        ({"logprobs": {"content": [{"token": "a", "bytes": [256]}]}}, r"bytes\[0\]: expected `int` <= 255"),
        ({"token_ids": ["x"]}, r"token_ids\[0\]: expected `int`, got `str`"), ({"token_ids": [2**31]}, "token_ids"),
        ({"token_ids": [-1]}, "`int` >= 0"), ({"token_ids": [True]}, "token_ids"), ({"token_ids": [1.5]}, "expected `int`"),
    ],
)  # fmt: skip
def test_a_field_of_another_type_is_named(choice: dict[str, Any], path: str) -> None:
    with pytest.raises(BadInput, match=path):
        converted(Choice, choice)


@pytest.mark.parametrize("text", ['{"a": NaN}', '{"a": -Infinity}', '{"a": 1e999}', "[1]", "[" * 100_000])
def test_json_is_strict_and_finite(text: str) -> None:
    with pytest.raises(BadInput):
        converted(Choice, text)
