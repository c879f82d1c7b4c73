"""The fourth rung for methods that look up, choose and chain: on the model and the weights that ship, in float32."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from specviz.engine.tree import DraftTree
from specviz.errors import ModelUnavailable
from specviz.methods.owl.spec_token import SpecToken
from specviz.models.text.load import load_causal_lm
from specviz.pipeline.runner import run
from specviz.targets.text import TextTarget
from specviz.trace.schema import Trace
from specviz.trace.validate import check

PROMPT = "Repeat this line three times: the small red boat sails to the small red house."
ROUNDING = 0.05
"""Two logits closer than this may change places between a pass over a tree and one over a token."""
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "suffix_decoding": ("suffix_decoding", {}),
    "reader, memories alone": ("reader", {"drafter": "none"}),
    "reader": ("reader", {"nodes": 16}),
    "owl": ("owl", {"nodes": 12}),
    "howl": ("howl", {"nodes": 12}),
    "not_a_bandit": ("not_a_bandit", {}),
    "polybasic, int8": ("polybasic", {"middle": "int8", "nodes": 3, "gathered": 6}),
    "polybasic, int4": ("polybasic", {"middle": "int4", "nodes": 3, "gathered": 6}),
    "easyspec": ("easyspec", {}),
}

pytestmark = pytest.mark.model


@cache
def alone() -> Trace:
    """What the target writes by itself."""
    return run(method="autoregressive", prompt=PROMPT, max_new_tokens=40, dtype="float32")


def gap(tokens: tuple[int, ...], other: int) -> float:
    """How much the target's last logit of the next token beats that of ``other`` after its own text: 0 is a tie."""
    found = target()
    session = found.open(512)
    ids = load_causal_lm("smollm2-135m-instruct", "float32").text.encode(PROMPT, False)
    logits = session.prefill([*ids, *tokens]).logits[-1]
    session.close()
    return float(logits.max() - logits[other])


def target() -> TextTarget:
    loaded = load_causal_lm("smollm2-135m-instruct", "float32")
    return TextTarget(loaded.model, loaded.name, loaded.eos_ids, "eager")


@pytest.mark.parametrize("way", WAYS)
def test_greedy_text_is_the_targets_own_up_to_ties(way: str) -> None:
    method, values = WAYS[way]
    try:
        trace = run(method=method, prompt=PROMPT, max_new_tokens=40, parameters=values, dtype="float32")
    except ModelUnavailable as problem:
        if "polybasic" not in way:
            raise
        pytest.skip(str(problem))
    check(trace)
    assert trace.end is not None and alone().end is not None
    ours, theirs = trace.end.output_ids, alone().end.output_ids
    apart = next((place for place, (one, two) in enumerate(zip(ours, theirs, strict=False)) if one != two), None)
    if apart is None:
        assert len(ours) == len(theirs)
    else:
        assert gap(theirs[:apart], ours[apart]) < ROUNDING, f"not a tie at token {apart}"
    assert any(step.path for step in trace.steps), "nothing was accepted, so nothing was tested"


def test_no_bit_of_a_real_tokens_logits_changes_with_the_probe_beside_it() -> None:
    """[SPEC] rows of any content, against each other and against real tokens in their places: a pass equally wide."""
    found, tokens, parents = target(), [198, 504, 1123, 28, 260, 2241], [-1, 0, 0, 1, 1, 3]
    prompt = list(range(300, 340))
    tree = DraftTree.of(tokens, parents)
    wide = DraftTree.of(tokens * 2, [*parents, *range(len(tokens))])
    hidden = int(found.config.hidden_size)
    seen = []
    for drafted, probe in (
        (tree, torch.zeros(hidden)),
        (tree, torch.randn(hidden, generator=torch.Generator().manual_seed(1))),
        (wide, None),
    ):
        session = found.open(256) if probe is None else SpecToken(probe).open(found, 256, ())
        session.prefill(prompt if probe is not None else [*prompt, 11])  # as many rows as with the probe behind
        session.rewind(len(prompt))
        seen.append(session.score(drafted).logits[: len(tokens)])
        session.close()
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[0], seen[2])
    session = found.open(256)
    session.prefill(prompt)
    narrow = session.score(tree).logits
    session.close()
    torch.testing.assert_close(seen[0], narrow, rtol=1e-3, atol=1e-3)
