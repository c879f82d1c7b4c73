"""Answers and files with parts replaced at random: a valid trace or one sentence, and never a fault of ours."""

import json
import random
from pathlib import Path

import pytest

from specviz.__main__ import BAD_REQUEST, main
from specviz.trace import store
from tests.support.fakes import rude_server
from tests.support.traces.mutations import changed_value

METRICS = [
    "vllm:spec_decode_num_drafts_total 1e999\n", "vllm:spec_decode_num_drafts_total 1.1.1\n", "x" * 1_000_000, "\x00\xff",
    'vllm:spec_decode_num_drafts 1\nvllm:spec_decode_num_accepted_tokens_per_pos_total{position="99999999999"} 1\n',
    'vllm:spec_decode_num_drafts{a="' * 20_000,
]  # fmt: skip
RAW = [
    b"data: {oops\n\n", b'data: {"choices":[{"delta":{"content":"a"},"logprobs":{"content":[{"token":"a","logprob":NaN}]}}]}\n\n',
    b"data: " + b"[" * 100_000 + b"\n\n", b'data: {"choices":[{"delta":{"content":"a"},"token_ids":[' + b"9" * 5000 + b"]}]}\n\n",
    b"data: \xff\xfe\x00\n\n", b'data: "' + b"x" * (5 << 20) + b'"\n\n', b"data: [DONE]\n\n", b"\n" * 100_000,
]  # fmt: skip


ANSWERS = json.loads(Path(__file__).with_name("answers.json").read_text("utf-8"))
"""The events of a stream and whole files, as servers write them, and values that may stand anywhere in them."""
VALUES = [*ANSWERS["values"], "x" * 200_000, [1] * 5000, "10" * 3000]


def mutated(value, rng):
    """The JSON value with one or two changes."""
    for _ in range(rng.choice([1, 1, 2])):
        value = changed_value(value, rng, VALUES)
    return value


def checked(arguments, out, capsys):
    """The command's status, once it is known that all is well with what it wrote and said."""
    out.unlink(missing_ok=True)
    status = main([*arguments, "--out", str(out)])
    said = capsys.readouterr()
    assert status in (0, BAD_REQUEST), said.err
    assert "\x1b" not in said.out + said.err and len(said.err) < 3000, said.err[:3000]
    if out.exists():
        store.read(out)
    return status


def answer(rng):
    """The list of models, the counters and the events of a server that is not quite right."""
    models = {"data": [{"id": "m", "owned_by": rng.choice(["vllm", "sglang", "llamacpp", "x"])}]}
    events, metrics, kind = ANSWERS["events"], "", rng.choice(["models", *["events"] * 4, "metrics", "raw", "cut"])
    if kind == "models":
        models = mutated(models, rng)
    if kind == "events":
        events = mutated(ANSWERS["events"], rng)
    if kind == "metrics":
        metrics = rng.choice(METRICS)
    stream = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events] + [b"data: [DONE]\n\n"]
    if kind == "raw":
        stream.insert(rng.randrange(len(stream)), rng.choice(RAW))
    if kind == "cut":
        stream = stream[: rng.randrange(len(stream))]
    return json.dumps(models).encode(), metrics.encode(), b"".join(stream)


def served(count, seed, folder, capsys):
    rng = random.Random(seed)
    statuses = set()
    for _ in range(count):
        models, metrics, stream = answer(rng)
        pages = {b"GET /v1/models": models, b"GET /metrics": metrics, b"POST": stream}
        more = ["--raw"] if rng.random() < 0.2 else []
        with rude_server.paged(pages) as url:
            asked = ["connect", url, "--prompt", "Hi", "--max-new-tokens", "16", *more]
            statuses.add(checked(asked, folder / "x.spectrace.jsonl", capsys))
    return statuses


def imported(count, seed, folder, capsys):
    rng = random.Random(seed)
    statuses = set()
    for _ in range(count):
        told = mutated(rng.choice(ANSWERS["files"]), rng)
        lines = isinstance(told, list) and rng.random() < 0.7
        data = ("\n".join(map(json.dumps, told)) if lines else json.dumps(told)).encode()
        data = rng.choice(
            [data] * 20 + [data[: len(data) // 2], b"\xef\xbb\xbf" + data, b"[" * 100_000 + data, b"", b"\xff\xfe" + data]
        )
        place = folder / "in.json"
        place.write_bytes(data)
        statuses.add(checked(["import", str(place)], folder / "x.spectrace.jsonl", capsys))
    return statuses


@pytest.mark.parametrize(
    ("made", "count"),
    [(served, 25), (imported, 40), *(pytest.param(*many, marks=pytest.mark.slow) for many in ((served, 100), (imported, 200)))],
)
def test_what_is_mutated_breaks_nothing(made, count, tmp_path, capsys):
    assert made(count, count, tmp_path, capsys) == {0, BAD_REQUEST}
