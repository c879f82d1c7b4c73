"""The last rung of the ladder for text: methods with the model and the weights that ship, in float32 and in bfloat16."""

from functools import cache
from typing import Any

import pytest
import torch

import specviz
from specviz.drafting.networks.weights import read_weights
from specviz.engine.tree import DraftTree
from specviz.errors import ModelUnavailable
from specviz.methods.owl.drafting import SpecToken
from specviz.models.heads.heads import WEIGHTS
from specviz.models.text.load import load_causal_lm
from specviz.targets.text import TextTarget
from specviz.trace.schema import Trace
from specviz.trace.store import lines
from specviz.trace.validate import read_lines

PROMPT = "Write a Python function that adds up the even numbers of a list, and explain it."
COPIED = "Repeat this line three times: the small red boat sails to the small red house."
"""What methods that look drafts up are asked."""
TOKENS = 28
ROUNDING = 0.05
"""Two logits closer than this may change places between a pass over a tree and one over a token."""
COARSE = 0.5
"""Of logits about 20 high bfloat16 keeps steps of an eighth; a pass over a tree and one over a token may be a few apart."""
WAYS: dict[str, tuple[str, float, dict[str, Any]]] = {
    **{name: (name, 0.0, {}) for name in ("suffix_decoding", "eagle2", "eagle3", "gto", "ddd", "traversal", "easyspec", "deer")},
    **{name: (name, 0.0, {"nodes": 12}) for name in ("owl", "howl")},
    "not_a_bandit": ("not_a_bandit", 0.0, {}),
    "reader": ("reader", 0.0, {"nodes": 16}),
    "reader, memories alone": ("reader", 0.0, {"drafter": "none"}),
    "polybasic, int8": ("polybasic", 0.0, {"middle": "int8", "nodes": 3, "gathered": 6}),
    "medusa, typical": ("medusa", 0.0, {"rule": "typical"}),
    "falcon": ("falcon", 1.0, {"nodes": 24}),
    "diffuspec": ("diffuspec", 1.0, {}),
    "ddtree": ("ddtree", 1.0, {"nodes": 24}),
}
"""Trees of a stated size: by itself one grows what pays here, which is little on a busy machine."""
TAUS = dict.fromkeys(("eagle2", "eagle3", "gto", "ddd", "traversal", "medusa, typical", "falcon", "ddtree"), 1.2)

pytestmark = pytest.mark.model


@cache
def decoded(method: str, temperature: float = 0.0, prompt: str = PROMPT, **values: Any) -> Trace:
    return specviz.run(
        method=method, prompt=prompt, temperature=temperature, parameters=values, max_new_tokens=TOKENS, dtype="float32", seed=3
    )


def target() -> TextTarget:
    loaded = load_causal_lm("smollm2-135m-instruct", "float32")
    return TextTarget(loaded.model, loaded.name, loaded.eos_ids, "eager")


def gap(prompt: str, tokens: tuple[int, ...], other: int) -> float:
    """How much the target's largest logit after its own text beats that of ``other``: 0 is a tie."""
    session = target().open(512)
    ids = load_causal_lm("smollm2-135m-instruct", "float32").text.encode(prompt, False)
    logits = session.prefill([*ids, *tokens]).logits[-1]
    session.close()
    return float(logits.max() - logits[other])


@pytest.mark.parametrize("way", WAYS)
def test_the_text_is_the_targets_own_up_to_ties_in_fewer_passes(way):
    method, temperature, values = WAYS[way]
    prompt = COPIED if way in ("suffix_decoding", "reader, memories alone") else PROMPT
    try:
        trace = decoded(method, temperature, prompt, **values)
    except ModelUnavailable as problem:
        if "polybasic" not in way:
            raise
        pytest.skip(str(problem))
    read_lines(lines(trace))
    alone = decoded("autoregressive", temperature, prompt)
    assert trace.end is not None and alone.end is not None
    assert not trace.run.warnings or method == "polybasic", "it may say that it does not pay on this machine"
    ours, theirs = trace.end.output_ids, alone.end.output_ids
    apart = next((place for place, (one, two) in enumerate(zip(ours, theirs, strict=False)) if one != two), None)
    assert len(ours) == len(theirs) if apart is None else gap(prompt, theirs[:apart], ours[apart]) < ROUNDING
    assert any(step.path for step in trace.steps), "nothing was accepted, so nothing was tested"
    assert trace.end.metrics["tau"] > TAUS.get(way, 1.0)


def test_in_bfloat16_the_first_place_apart_is_told_with_how_close_it_was():
    """Rounding may decide between two tokens, and then the trace says where and by how little."""
    trace = specviz.run(method="eagle2", prompt=PROMPT, max_new_tokens=16, dtype="bfloat16", baseline=True)
    assert trace.run.dtype == "bfloat16" and trace.end is not None and trace.end.baseline is not None
    apart = trace.end.baseline.first_divergence
    assert apart is None or (apart.position < 16 and apart.gap is not None and apart.gap < COARSE)


def test_no_bit_of_a_real_tokens_logits_changes_with_the_probe_beside_it():
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


def test_the_cards_name_what_they_were_made_from():
    cards = {name: read_weights(WEIGHTS / f"{name}.safetensors")[1] for name in ("masked_lm", "deer", "ngrams")}
    assert all("sha256 " in card["data"] and card["tokenizer_hash"] for card in cards.values())
    assert cards["deer"]["data"] == cards["masked_lm"]["data"]
    assert cards["deer"]["changes"].startswith("masked_lm.safetensors")
