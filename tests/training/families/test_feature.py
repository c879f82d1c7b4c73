"""The recipes of feature drafters on a tiny made-up world: what counts, what is read, and what the card says."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from specviz.drafting.networks.feature_net import FeatureNet
from specviz.drafting.networks.weights import read_weights
from specviz.engine.tree import shape_from_counts
from specviz.methods.eagle import PUBLISHED
from specviz.methods.medusa.cartesian_tree import paths_of
from specviz.models.packing import PackedLinear, pack
from specviz.training import data, driver, parallel
from specviz.training.data import places_in
from specviz.training.driver import Progress, Schedule, train
from specviz.training.families import feature
from specviz.training.families.feature import (
    FeatureTraining,
    acceptance_figures,
    batches,
    eagle3_loss,
    eagle_loss,
    sampled_starts,
    unroll,
)
from specviz.training.features import DialogueFeatures, fused_taps, joined, target_distribution
from specviz.training.phrases import KINDS, REPORTED
from specviz.training.registry import Job
from specviz.training.registry import recipes as known_recipes
from tests.support.tiny.text import tiny_llama
from tests.support.training.tiny_training import IDS, VOCAB, dialogues, inputs

SETTINGS = Schedule(minutes=0.02, peak=0.0015, decay=0.5, batch=4, every=1.0, measured=3, patience=8, workers=2)


def state_of(kind: str, folder: Path | None, settings: Schedule = SETTINGS) -> FeatureTraining:
    given = inputs((*fused_taps(2), 2), folder=folder)
    store, training, model = given.store, given.training, given.assets.target.model
    columns = feature.EAGLE3_TAPS if kind == "eagle3" else feature.EAGLE_TAPS
    embedding, head = model.get_input_embeddings().weight, model.lm_head.weight
    shape = feature.shape_of(model.config, store.taps[columns], kind == "eagle3")
    net = FeatureNet(shape, embedding, head, IDS)
    feature.start(net, model, feature.sample(store, training[:8], embedding, columns))
    loss = partial(eagle3_loss, net, places_in(IDS, VOCAB)) if kind == "eagle3" else partial(eagle_loss, net)
    return FeatureTraining(
        net, store, training, given.judged_on, settings, loss, lambda numbers: acceptance_figures(net, store, columns, numbers, 3)
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_dialogues_read_in_one_pass_give_the_loss_and_the_gradients_of_each_by_itself(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature, "SHARES", (1.0, 1.0, 1.0))
    monkeypatch.setattr(feature, "EAGLE3_NOISE", 0.0)
    monkeypatch.setattr(feature, "EAGLE_NOISE", 0.0)
    monkeypatch.setattr(parallel, "cpu_has_bfloat16", lambda: False)
    monkeypatch.setattr(feature, "dropped", lambda values, *_: values)
    one, batch = state_of(kind, None, replace(SETTINGS, workers=1)), [3, 40, 7, 21, 11]
    torch.manual_seed(0)
    for value in one.optimizer.parameters.values():
        value.data.add_(0.1 * torch.randn_like(value))
    alone = one.learn_from(batch)
    several = joined(one.store.get(batch))
    assert [end - begin for begin, _, end in several.spans] == [len(one.store.ids(number)) for number in batch]
    one.part = 3
    together = one.learn_from(batch)
    assert together.loss == pytest.approx(alone.loss, rel=1e-5)
    for name, gradient in alone.gradients.items():
        assert torch.allclose(together.gradients[name], gradient, rtol=1e-3, atol=1e-5), name


@pytest.mark.slow
def test_nobody_learns_from_a_dialogue_that_is_kept_out(tmp_path: Path) -> None:
    one = state_of("eagle3", tmp_path)
    learnt: list[str] = []
    texts = {tuple(one.store.ids(number).tolist()): number for number in range(60)}
    inner = one.loss

    def watched(seen: DialogueFeatures, generator: torch.Generator, scale: float) -> torch.Tensor:
        learnt.append(texts[tuple(seen.tokens.tolist())])
        return inner(seen, generator, scale)

    one.loss = watched
    train(one, tmp_path / "checkpoint", lambda entry: None)
    assert len(set(learnt)) > 20 and not set(learnt) & set(data.split(one.store.dialogues)[1])


def test_a_resumed_training_goes_on_in_the_same_round() -> None:
    one = state_of("eagle", None)
    one.progress = Progress(updates=9)
    whole = [number for batch in islice(batches(one.training, SETTINGS), 9) for number in batch]
    assert one.visited() == whole and len(whole) == 36
    one.progress = Progress(updates=40)
    later = one.visited()
    assert later[:36] == whole and sorted(later) == sorted(one.training)


def test_what_is_compared_with_held_out_answers_is_of_their_kinds_and_drawn_like_them(tmp_path: Path) -> None:
    one = state_of("eagle3", tmp_path, replace(SETTINGS, minutes=0.002, every=0.001))
    one.dialogues = one.store.dialogues = replace(one.store.dialogues, kind=np.arange(len(one.store.dialogues)) % len(KINDS))
    one.held_out = data.greedy_only(one.store.dialogues, one.held_out)
    measured: list[int] = []
    one.measured = lambda numbers: measured.extend(numbers) or {"tau": 1.0}  # type: ignore[func-returns-value]
    train(one, tmp_path / "checkpoint")
    known = set(measured) & set(one.training)
    assert known and {float(one.store.dialogues.temperature[number]) for number in known} == {0.0}
    assert {KINDS[int(one.store.dialogues.kind[number])] for number in known} <= set(REPORTED)  # type: ignore[index]


def test_only_answers_count_and_of_them_what_the_draft_vocabulary_has() -> None:
    one = state_of("eagle3", None)
    seen = next(one for one in one.store.get(one.training[:20]) if bool((one.tokens[one.first :] >= 35).any()))

    def value(changed: DialogueFeatures) -> float:
        return float(one.loss(changed, torch.Generator().manual_seed(1), 1.0).detach())

    def changed(places: torch.Tensor) -> DialogueFeatures:
        """With another thought of the target's at these places, where nothing but the wanted distributions is read."""
        features = seen.features.clone()
        features[places, -1] = features[places, -1].roll(1, -1)
        return DialogueFeatures(seen.tokens, features, seen.first)

    before = value(seen)
    counted = [place for place in range(seen.first - 1, len(seen.tokens) - 1) if int(seen.tokens[place + 1]) < 35]
    for place in range(len(seen.tokens)):
        moved = value(changed(torch.tensor([place]))) != before
        # With few starts in the deeper steps every answer token still counts in the first.
        assert moved == (place in counted), place


def test_wanted_distributions_are_the_targets_own_after_each_answer_token() -> None:
    one = state_of("eagle3", None)
    seen = one.store.get([4])[0]
    model = tiny_llama(dtype=torch.float32, vocab=VOCAB)
    with torch.no_grad():
        logits = model(seen.tokens[None]).logits[0, seen.first - 1 : -1, IDS]
    distribution, at = target_distribution(one.net.head, seen)
    assert torch.allclose(distribution, logits.softmax(-1), atol=1e-3)
    assert at[seen.first :].tolist() == list(range(len(seen.tokens) - seen.first))


def test_starts_stay_inside_the_answer_and_thin_out() -> None:
    rows = sampled_starts(5, 40, (1.0, 0.5, 0.2), torch.Generator().manual_seed(3))
    assert rows[0].tolist() == list(range(3, 38))
    for step, (wider, fewer) in enumerate(zip(rows, rows[1:], strict=False)):
        assert 0 < len(fewer) < len(wider) and set(fewer.tolist()) <= set(wider.tolist())
        assert int(fewer.max()) + 3 + step < 40
    assert sampled_starts(0, 3, (1.0, 1.0), torch.Generator())[0].tolist() == [0]


def test_acceptance_is_what_drafting_from_each_place_alone_would_find(tmp_path: Path) -> None:
    one = state_of("eagle3", tmp_path)
    numbers = one.held_out[:2]
    found = acceptance_figures(one.net, one.store, feature.EAGLE3_TAPS, numbers, 3)
    lengths, reached, right, near = [], [0] * 3, [0] * 3, [0] * 3
    tree, in_tree = set(paths_of(shape_from_counts(PUBLISHED))), []
    for seen in one.store.get(numbers):
        features = seen.features[:, feature.EAGLE3_TAPS].flatten(1)
        for start in range(seen.first - 2, len(seen.tokens) - 4):
            outputs = unroll(one.net, seen.tokens, features, [torch.tensor([start])] * 3)
            named = [IDS[one.net.logits(output)[0].topk(5).indices].tolist() for output in outputs]
            truths = seen.tokens[start + 2 : start + 5].tolist()
            path = tuple(best.index(truth) if truth in best else 9 for best, truth in zip(named, truths, strict=True))
            in_tree.append(max(deep for deep in range(4) if not deep or path[:deep] in tree))
            for step, output in enumerate(outputs):
                best = IDS[one.net.logits(output)[0].topk(5).indices].tolist()
                truth = int(seen.tokens[start + 2 + step])
                reached[step] += 1
                near[step] += truth in best
                right[step] += truth == best[0]
                if truth != best[0]:
                    lengths.append(step)
                    break
            else:
                lengths.append(3)
    assert found["tau"] == pytest.approx(1 + sum(lengths) / len(lengths))
    assert found["tree"] == pytest.approx(1 + sum(in_tree) / len(in_tree)) and found["tree"] > found["tau"]
    for step in range(3):
        assert found[f"first{step + 1}"] == pytest.approx(right[step] / max(1, reached[step]))
        assert found[f"five{step + 1}"] == pytest.approx(near[step] / max(1, reached[step]))


def test_greedy_answers_of_the_reported_kinds_take_turns() -> None:
    made = dialogues()
    kind = np.array([number * 7 % len(KINDS) for number in range(len(made))])
    told = replace(made, kind=kind)
    found = data.greedy_only(told, range(60))
    kinds = [KINDS[kind[number]] for number in found]
    assert kinds[:6] == kinds[6:12] == list(REPORTED) and set(kinds) == set(REPORTED)
    assert set(found) <= set(np.flatnonzero(made.temperature == 0)) and len(set(found)) == len(found)
    numbers_by_kind = data.by_kind(told, found[:7])
    assert numbers_by_kind.keys() == set(REPORTED) and numbers_by_kind["chat"] == [found[0], found[6]]
    assert data.greedy_only(made, range(9)) == [1, 2, 4, 5, 7, 8] and data.by_kind(made, [1]) == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_kept_in_a_layout_of_their_own_are_read_exactly(dtype: torch.dtype) -> None:
    model = tiny_llama(dtype=dtype, vocab=VOCAB)
    wanted = model.base_model.layers[-1].mlp.down_proj.weight.clone()
    if pack(model):
        assert isinstance(model.base_model.layers[-1].mlp.down_proj, PackedLinear)
    assert torch.equal(feature.dense(model.base_model.layers[-1].mlp.down_proj), wanted)


def test_the_card_tells_the_learning_curve_and_the_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(driver, "WEIGHTS", tmp_path)
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "cache"))
    one = state_of("eagle3", tmp_path / "features", replace(SETTINGS, minutes=0.004, every=0.002))
    given = replace(inputs(), store=one.store, training=one.training, held_out=one.held_out)
    feature.run(Job(known_recipes()["eagle3"], "cpu", 1.0, False), given, one, one.net.save)
    metrics = json.loads(read_weights(tmp_path / "eagle3.safetensors")[1]["metrics"])
    distinct = [entry["distinct"] for entry in metrics["curve"]]
    assert distinct == [entry["distinct"] for entry in one.progress.history] and distinct == sorted(distinct)
    assert np.isfinite(metrics["gap"]) and all({"tau", "gap"} <= set(entry) for entry in metrics["curve"])
    assert "held-out: {" in capsys.readouterr().out
