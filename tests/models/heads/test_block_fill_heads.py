"""Block drafters that z-lab's package, DeepSpec and ``speculators`` wrote give here what their own models give, in two rounds.

The referees were run once, in an environment of their own: see ``tests/support/referee/block_fill.py``.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from specviz.drafting.networks.block_fill import BlockFill
from specviz.drafting.runtimes.fill_drafter import FillDrafter, FillLevels
from specviz.engine.interfaces import Context, TargetPass
from specviz.engine.sampling import Noise, Warp
from specviz.errors import ModelUnavailable
from specviz.models.heads.layouts import layout_of
from specviz.models.heads.published import read
from specviz.models.hub.published import Fit, Repository
from tests.support.referee import stored_heads
from tests.support.referee.block_fill import LAYERS, ROUNDS, ends, filled, states, text

FOLDER = Path(__file__).with_name("block_fill")
HEADS: dict[str, dict[str, Any]] = json.loads(gzip.decompress((FOLDER / "heads.json.gz").read_bytes()))
LOGITS = load_file(FOLDER / "logits.safetensors")
FIT = Fit("tiny", LAYERS, *ends())


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    """As a run drafts."""
    with torch.inference_mode():
        yield


stored = partial(stored_heads.stored, cases=HEADS, fill=filled)


def read_from(repository: Repository) -> BlockFill:
    network: BlockFill = read(layout_of(repository).method, repository, FIT)
    return network


def rounds(network: BlockFill) -> Iterator[FillLevels]:
    """The levels of both rounds, in one run of a drafter."""
    drafter, done = FillDrafter(network.runtime()), 0
    tokens, taps = text().tolist(), network.config.taps
    for number, anchor in enumerate(ROUNDS):
        context = Context(tokens[: anchor + 1], anchor + 1, number, Warp(), Noise(0), torch.device("cpu"), 50)
        if number == 0:
            drafter.begin(context, TargetPass(torch.zeros(1, 1), {tap: states((tap,))[:anchor] for tap in taps}))
        else:
            drafter._waiting.append(states(taps)[done:anchor])
        done = anchor
        levels = drafter.levels(context)
        assert levels is not None
        yield levels


def along(levels: FillLevels, anchor: int) -> Tensor:
    """The corrected logits [slot, support] along the true tokens."""
    given = [levels.ask()]
    for slot in range(1, levels.deepest):
        given.append(levels.ask(text()[anchor + slot : anchor + slot + 1], torch.tensor([0])))
    return torch.cat(given)


@pytest.mark.parametrize("name", HEADS)
def test_logits_of_both_rounds_are_those_of_the_package(tmp_path: Path, name: str) -> None:
    network = read_from(stored(tmp_path, name))
    apart = 1e-6 if "speculators" in name else 1e-9  # the library's softmax is float32
    for number, (levels, anchor) in enumerate(zip(rounds(network), ROUNDS, strict=True)):
        given = along(levels, anchor)
        torch.testing.assert_close(levels.logits, LOGITS[f"{name}/marginal {number}"], rtol=0, atol=apart)
        if f"{name}/path {number}" in LOGITS:
            tokens, logits = list[int](), given[:1]
            levels._trail = levels._trail[:1]
            while len(tokens) < levels.deepest:
                tokens.append(int(logits.argmax()))
                logits = logits if len(tokens) == levels.deepest else levels.ask(torch.tensor(tokens[-1:]), torch.tensor([0]))
            assert tokens == LOGITS[f"{name}/path {number}"].tolist()
        elif f"{name}/given {number}" in LOGITS:
            torch.testing.assert_close(given, LOGITS[f"{name}/given {number}"], rtol=0, atol=apart)
        if f"{name}/confidence {number}" in LOGITS:
            sure = LOGITS[f"{name}/confidence {number}"]
            torch.testing.assert_close(torch.cat(levels.rates), sure, rtol=0, atol=1e-6)


def test_a_draft_vocabulary_and_the_method_follow_from_the_tensors(tmp_path: Path) -> None:
    narrow = read_from(stored(tmp_path / "narrow", "speculators dspark narrow"))
    assert narrow.draft_ids is not None and len(narrow.draft_ids) == len(narrow.head) == 24
    # DeepSpec saves both of its drafters under one class.
    for name, method in (("deepspec dflash", "dflash"), ("deepspec dspark vanilla", "dspark")):
        repository = stored(tmp_path / method, name)
        assert repository.config["architectures"] == ["Qwen3DSparkModel"] and layout_of(repository).method == method
        assert read_from(repository).config.from_anchor
    with pytest.raises(ModelUnavailable, match="holds a DSpark drafter.*choose the method dspark"):
        read("dflash", stored(tmp_path / "other", "deepspec dspark vanilla"), FIT)


REFUSED: list[tuple[str, dict[str, Any], dict[str, Tensor], str]] = [
    ("dflash", {"num_target_layers": 12}, {}, "made for a target of 12 layers"),
    ("dflash", {"dflash_config": {"target_layer_ids": [1, 4, 7]}}, {}, "does not say mask_token_id"),
    (
        "dflash",
        {"dflash_config": {"mask_token_id": 7, "target_layer_ids": [1, 4, 10]}},
        {},
        "hidden states .2, 5, 11. of a target",
    ),
    ("dflash", {"dflash_config": {"mask_token_id": 40, "target_layer_ids": [1, 4, 7]}}, {}, "mask_token_id .* makes no sense"),
    ("dflash", {"dflash_config": {"mask_token_id": 7, "use_swa": True}}, {}, "use_swa True"),
    ("dflash", {"dflash_config": {"mask_token_id": 7, "attention_sink_bias": True}}, {}, "attention_sink_bias True"),
    ("dflash", {"dflash_config": {"mask_token_id": 7, "shift_label": True}}, {}, "sets shift_label"),
    ("dflash", {}, {"layers.0.self_attn.g_proj.weight": torch.ones(4, 16)}, "holds layers.0.self_attn.g_proj.weight"),
    ("dflash", {}, {"aux_hidden_norms.0.weight": torch.ones(16)}, "holds aux_hidden_norms.0.weight"),
    ("dflash", {"hidden_act": "gelu"}, {}, "hidden_act 'gelu'"),
    ("dflash", {"block_size": 100_000}, {}, "has a block_size, mask_token_id"),
    ("dflash", {"is_neox_style": "no"}, {}, "is_neox_style 'no', which is neither true nor false"),
    ("dflash", {"projector_type": "domino"}, {}, "projector_type 'domino'"),
    ("dflash", {"enable_confidence_head": True}, {}, "enable_confidence_head, and its tensors disagree"),
    ("deepspec dspark gated", {"markov_head_type": "rnn"}, {}, "markov_head_type 'rnn', and its tensors are gated"),
    ("deepspec dspark gated", {"markov_head_type": "gated", "markov_rank": 8}, {}, "markov_rank 8, and its tensors have 4"),
    ("speculators dflash", {"mask_token_id": None}, {}, "does not say mask_token_id"),
    ("speculators dflash", {"aux_hidden_state_layer_ids": None}, {}, "reads hidden states .. of a target"),
    ("speculators dflash", {"aux_hidden_state_layer_ids": [2, 5, 11]}, {}, "hidden states .2, 5, 11. of a target"),
]


@pytest.mark.parametrize(("name", "config", "tensors", "said"), REFUSED, ids=[said for *_, said in REFUSED])
def test_what_is_unknown_or_does_not_fit_is_refused_by_name(
    tmp_path: Path, name: str, config: dict[str, Any], tensors: dict[str, Tensor], said: str
) -> None:
    with pytest.raises(ModelUnavailable, match=said):
        read_from(stored(tmp_path, name, config, tensors))


def test_rotary_pairs_of_neighbours_are_read_where_config_says_so(tmp_path: Path) -> None:
    halves = read_from(stored(tmp_path / "halves", "dflash"))
    size = halves.config.head_size
    woven = torch.arange(size).view(2, -1).T.flatten()
    tensors = {}
    for name, value in halves.named_parameters():
        if "q_proj" in name or "k_proj" in name:
            tensors[name] = value.unflatten(0, (-1, size))[:, woven].flatten(0, 1).contiguous()
        elif "q_norm" in name or "k_norm" in name:
            tensors[name] = value[woven].contiguous()
    pairs = read_from(stored(tmp_path / "pairs", "dflash", {"is_neox_style": False}, tensors))
    for ours, theirs in zip(rounds(pairs), rounds(halves), strict=True):
        torch.testing.assert_close(ours.ask(), theirs.ask(), rtol=0, atol=1e-12)
