"""The recipes of feature drafters on a tiny made-up world: what they learn from, that they learn, that they go on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from specviz.drafters.networks.feature_file import save
from specviz.drafters.networks.feature_net import FeatureNet
from specviz.drafters.networks.weights import read_weights
from specviz.engine.tree import shape_from_counts
from specviz.methods.eagle import PUBLISHED
from specviz.methods.medusa.cartesian_tree import paths_of
from specviz.models.packing import PackedLinear, pack
from specviz.training import data, driver, parallel
from specviz.training.data import places_in
from specviz.training.driver import Progress, train
from specviz.training.families import feature, feature_start, unrolling
from specviz.training.families.feature import FeatureTraining, Settings, TrainInputs, acceptance_figures, batches, learned
from specviz.training.families.unrolling import eagle3_loss, eagle_loss, sampled_starts, unroll
from specviz.training.features import DialogueFeatures, FeatureStore, fused_taps, joined, target_distribution
from specviz.training.phrases import KINDS, REPORTED
from specviz.training.registry import Job
from specviz.training.registry import recipes as known_recipes
from tests.support.tiny.text import tiny_llama
from tests.support.training.tiny_training import END, MARKERS, VOCAB, dialogues

IDS = torch.tensor([END, *range(5, 35)])
SETTINGS = Settings(minutes=0.02, batch=4, every=1.0, measured=3, workers=2)


def state_of(kind: str, folder: Path | None, settings: Settings = SETTINGS) -> FeatureTraining:
    model = tiny_llama(dtype=torch.float32, vocab=VOCAB)
    made = dialogues()
    store = FeatureStore(model, made, MARKERS, (*fused_taps(2), 2), folder)
    training, held_out = data.split(made)
    columns = unrolling.EAGLE3_TAPS if kind == "eagle3" else unrolling.EAGLE_TAPS
    embedding, head = model.get_input_embeddings().weight, model.lm_head.weight
    shape = feature_start.shape_of(model.config, store.taps[columns], kind == "eagle3")
    net = FeatureNet(shape, embedding, head, IDS)
    feature_start.start(net, model, feature_start.sample(store, training[:8], embedding, columns))
    loss = partial(eagle3_loss, net, places_in(IDS, VOCAB)) if kind == "eagle3" else partial(eagle_loss, net)
    held_out = data.greedy_only(store.dialogues, held_out)
    return FeatureTraining(
        net, store, training, held_out, settings, loss, lambda numbers: acceptance_figures(net, store, columns, numbers, 3)
    )  # fmt: skip


def mean_loss(one: FeatureTraining) -> float:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        return sum(float(one.loss(seen, generator, 0.01)) for seen in one.store.get(one.training[:12]))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_the_loss_falls(kind: str, tmp_path: Path) -> None:
    one = state_of(kind, tmp_path)
    before = mean_loss(one)
    stream = batches(one.training, SETTINGS)
    for _ in range(40):
        one.apply(one.learn_from(next(stream)), 0.01)
    assert mean_loss(one) < 0.9 * before


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_dialogues_read_in_one_pass_give_the_loss_and_the_gradients_of_each_by_itself(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unrolling, "SHARES", (1.0, 1.0, 1.0))
    monkeypatch.setattr(unrolling, "EAGLE3_NOISE", 0.0)
    monkeypatch.setattr(unrolling, "EAGLE_NOISE", 0.0)
    monkeypatch.setattr(parallel, "cpu_has_bfloat16", lambda: False)
    monkeypatch.setattr(unrolling, "dropped", lambda values, *_: values)
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


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param("eagle", marks=pytest.mark.slow), "eagle3"])
def test_a_stopped_training_goes_on_where_it_was(kind: str, tmp_path: Path) -> None:
    first = state_of(kind, tmp_path)
    told = []
    progress = train(first, tmp_path / "checkpoint", lambda entry: told.append(dict(entry)))
    assert progress.updates > 0 and told and {"loss", "tau", "first1", "five3", "read"} <= set(told[-1])
    second = state_of(kind, tmp_path)
    second.read(tmp_path / "checkpoint")
    found = second.progress
    assert (found.updates, found.tokens, found.history) == (progress.updates, progress.tokens, progress.history)
    for name, value in learned(second.net).items():
        value.data.copy_(second.best[name])
    for name, value in first.net.state_dict().items():
        assert torch.equal(second.net.state_dict()[name], value), name
    longer = replace(SETTINGS, minutes=0.03, resume=True)
    again = train(state_of(kind, tmp_path, longer), tmp_path / "checkpoint", lambda entry: None)
    assert again.updates > progress.updates and again.seconds > progress.seconds


@pytest.mark.parametrize("batch", [4, 7, 120])
def test_every_dialogue_comes_once_before_any_comes_twice(batch: int) -> None:
    training = list(range(100, 153))
    stream = batches(training, replace(SETTINGS, batch=batch))
    counts: Counter[int] = Counter()
    orders: list[int] = []
    for _ in range(40):
        drawn = next(stream)
        assert len(drawn) == batch
        for number in drawn:
            orders.append(number)
            counts[number] += 1
            rest = {counts[other] for other in training}
            assert max(rest) - min(rest) <= 1, "visits are even at every moment"
    rounds = [orders[start : start + len(training)] for start in range(0, len(orders) - len(training), len(training))]
    assert rounds[0] != rounds[1] and all(sorted(one) == training for one in rounds), "each round in an order of its own"


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


@pytest.mark.slow
def test_the_gap_between_learned_and_held_out_dialogues_is_told_at_each_milestone(tmp_path: Path) -> None:
    one = state_of("eagle3", tmp_path)
    measured: list[list[int]] = []

    def measure(numbers: Sequence[int]) -> dict[str, float]:
        measured.append(list(numbers))
        return {"tau": 2.5 if set(numbers) <= set(one.training) else 2.0}

    one.measured = measure
    told = []
    train(one, tmp_path / "checkpoint", lambda entry: told.append(dict(entry)))
    assert told[-1]["gap"] == pytest.approx(0.5) and told[-1]["tau"] == 2.0
    held_out, learned_ones = measured[-2:]
    assert held_out == one.held_out[:3] and len(learned_ones) == 3
    assert told[-1]["distinct"] <= told[-1]["tokens"] and told[-1]["read"] <= len(one.training)


def test_training_ends_when_nothing_gets_better_and_the_best_weights_are_kept(tmp_path: Path) -> None:
    one = state_of("eagle3", tmp_path, replace(SETTINGS, minutes=60.0, every=1e-6, patience=3))
    taus = iter([2.0, 2.4, *[2.3] * 50])
    kept: list[dict[str, torch.Tensor]] = []

    def measure(numbers: Sequence[int]) -> dict[str, float]:
        if set(numbers) <= set(one.held_out):
            kept.append({name: value.clone() for name, value in learned(one.net).items()})
            return {"tau": next(taus)}
        return {"tau": 3.0}

    one.measured = measure
    progress = train(one, tmp_path / "checkpoint", lambda entry: None)
    assert [entry["tau"] for entry in progress.history] == [2.0, 2.4, 2.3, 2.3, 2.3]
    for name, value in learned(one.net).items():
        assert torch.equal(value, kept[1][name]), name
    again = state_of("eagle3", tmp_path)
    again.read(tmp_path / "checkpoint")
    assert all(torch.equal(value, kept[1][name]) for name, value in again.best.items())


def test_features_and_embeddings_come_in_noisy_and_wanted_distributions_do_not() -> None:
    one = state_of("eagle3", None)
    seen = one.store.get([4])[0]
    values = {float(one.loss(seen, torch.Generator().manual_seed(seed), 1.0).detach()) for seed in range(3)}
    assert len(values) == 3
    dropped = unrolling.dropped(torch.ones(400, 50), 0.1, torch.Generator().manual_seed(0))
    assert float((dropped == 0).float().mean()) == pytest.approx(0.1, abs=0.01)
    assert float(dropped.mean()) == pytest.approx(1.0, abs=0.02)


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
    found = acceptance_figures(one.net, one.store, unrolling.EAGLE3_TAPS, numbers, 3)
    lengths, reached, right, near = [], [0] * 3, [0] * 3, [0] * 3
    tree, in_tree = set(paths_of(shape_from_counts(PUBLISHED))), []
    for seen in one.store.get(numbers):
        features = seen.features[:, unrolling.EAGLE3_TAPS].flatten(1)
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


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_the_start_is_better_than_probability(kind: str) -> None:
    one = state_of(kind, None)
    started = mean_loss(one)
    with torch.no_grad():
        for value in one.optimizer.parameters.values():
            if value.ndim == 2:
                value.normal_(std=value.shape[1] ** -0.5)
    assert started < 0.9 * mean_loss(one)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_kept_in_a_layout_of_their_own_are_read_exactly(dtype: torch.dtype) -> None:
    model = tiny_llama(dtype=dtype, vocab=VOCAB)
    wanted = model.base_model.layers[-1].mlp.down_proj.weight.clone()
    if pack(model):
        assert isinstance(model.base_model.layers[-1].mlp.down_proj, PackedLinear)
    assert torch.equal(feature_start.dense(model.base_model.layers[-1].mlp.down_proj), wanted)


def test_the_card_tells_the_learning_curve_and_the_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(driver, "WEIGHTS", tmp_path)
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "cache"))
    one = state_of("eagle3", tmp_path / "features", replace(SETTINGS, minutes=0.004, every=0.002))
    model = tiny_llama(dtype=torch.float32, vocab=VOCAB)
    target = SimpleNamespace(model=model, device=torch.device("cpu"), tokenizer_hash="abc", name="tiny")
    assets = SimpleNamespace(target=target, embedding=model.get_input_embeddings().weight.detach())
    inputs = TrainInputs(assets, [Path(__file__)], one.store, one.training, one.held_out, IDS)  # type: ignore[arg-type]
    feature.run(Job(known_recipes()["eagle3"], "cpu", 1.0, False), inputs, one, partial(save, one.net))
    metrics = json.loads(read_weights(tmp_path / "eagle3.safetensors")[1]["metrics"])
    distinct = [entry["distinct"] for entry in metrics["curve"]]
    assert distinct == [entry["distinct"] for entry in one.progress.history] and distinct == sorted(distinct)
    assert np.isfinite(metrics["gap"]) and all({"tau", "gap"} <= set(entry) for entry in metrics["curve"])
    assert "held-out: {" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_products_meet_few_shapes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel for every length of text and every number of starts would take a quarter of the time."""
    one, shapes = state_of(kind, None), set()
    linear = torch.nn.functional.linear
    one.store.get(one.training[:6])  # the target's own products are not the matter here

    def watched(x: torch.Tensor, *more: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
        if x.ndim == 2:
            shapes.add(len(x))
        return linear(x, *more, **named)

    monkeypatch.setattr(torch.nn.functional, "linear", watched)
    for number in one.training[:6]:
        one.learn_from([number])
    assert shapes and all(rows % 16 == 0 for rows in shapes), sorted(shapes)
