"""The proof on synthetic code: what its language promises, what its figures count, and that the drafters are the real ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from specviz.bench.suites import synthetic_code
from specviz.bench.suites.synthetic_code import Curve, Drafter, EngineRuns, block_of, blocks, chain_of, chains, engine_runs
from specviz.errors import SpecvizError
from specviz.training.common import data
from specviz.training.toy import programs
from specviz.training.toy import synthetic_code as learning
from specviz.training.toy.synthetic_code import MARKERS, Plan, World

TINY = Plan(hidden=32, layers=2, answers=40, target=6, base=3, first=2, second=2, chains=(2, 4))


@pytest.fixture(name="made", scope="module")
def tiny_world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return learning.world(TINY, tmp_path_factory.mktemp("features"))


def test_a_program_follows_from_its_question_but_for_the_names_of_its_variables() -> None:
    probability, bodies = np.random.default_rng(0), {}
    for _ in range(3000):
        asked, said = programs.program(probability)
        assert len(asked) == 7 and said[-1] == programs.END and set(asked + said) <= set(programs.WORDS)
        names = [word if word in programs.VARIABLES else "" for word in said]
        plain = tuple("V" if name else word for word, name in zip(said, names, strict=True))
        assert bodies.setdefault(tuple(asked), plain) == plain
        drawn = [name for name in names if name]
        assert drawn[0] == drawn[-1], "the first variable is returned"
    told = programs.text([programs.IDS[word] for word in said])
    assert told.startswith("def ") and "\n    # " in told and "return" in told


def test_the_same_seed_asks_the_same_questions() -> None:
    assert list(programs.programs(5, 3)) == list(programs.programs(5, 3)) != list(programs.programs(5, 4))


class Foreseeing:
    """Stands in for a masked model: right at every place of the answers but those it is told to miss."""

    def __init__(self, made: World, misses: int) -> None:
        self.draft_ids = torch.arange(len(programs.WORDS))
        self.texts = [[*MARKERS.prefix, *made.dialogues.of(number).tolist()] for number in range(len(made.dialogues))]
        self.misses = misses

    def __call__(self, text: torch.Tensor, places: int) -> torch.Tensor:
        known, at = text.tolist(), len(text)
        whole = next(one for one in self.texts if one[:at] == known and len(one) >= at + places)
        said = torch.tensor(whole[at : at + places])
        said[self.misses :: places] += 1
        return torch.nn.functional.one_hot(said % len(self.draft_ids), len(self.draft_ids)).float()


def test_acceptance_is_by_place_given_that_the_places_before_were_right(made: World) -> None:
    places = 5
    starts = sum(len(made.dialogues.answer(number)) - places + 1 for number in made.held_out)
    whole = blocks(Foreseeing(made, places), made, places)  # type: ignore[arg-type]
    assert whole.shares == [1.0] * places and whole.reached[0] == starts
    missed = blocks(Foreseeing(made, 2), made, places)  # type: ignore[arg-type]
    assert missed.shares == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert missed.reached == (starts, starts, starts, 0, 0)


def test_a_chain_is_begun_where_a_block_is(made: World) -> None:
    net, seconds = learning.chain(made, TINY, 3)
    found = chains(net, made, 5)
    assert found.reached[0] == blocks(Foreseeing(made, 5), made, 5).reached[0]  # type: ignore[arg-type]
    assert all(one >= other for one, other in zip(found.reached, found.right, strict=True)) and seconds > 0
    assert found.reached[1:] == found.right[:-1]


def curve(first: float, last: float) -> Curve:
    """Acceptance of ``first`` at places 1 to 4 and of ``last`` at 5 to 8."""
    reached, right = [10000], []
    for place in range(8):
        right.append(round(reached[-1] * (first if place < 4 else last)))
        reached.append(right[-1])
    return Curve(tuple(reached[:-1]), tuple(right))


@pytest.mark.parametrize(("ours", "theirs", "holds"), [((0.8, 0.8), (0.9, 0.6), True), ((0.9, 0.6), (0.5, 0.4), False)])
def test_flatter_means_that_more_of_the_first_place_is_left(
    ours: tuple[float, float], theirs: tuple[float, float], holds: bool
) -> None:
    deer, chain = Drafter("DEER", curve(*ours), 9, 40.0), Drafter("EAGLE", curve(*theirs), 8, 41.0)
    row = synthetic_code.flatness_row("a chain", deer, chain)
    assert row.reached is holds
    assert row.value == pytest.approx((ours[1] / ours[0]) / (theirs[1] / theirs[0]), rel=0.01)
    assert "9 weights, 40 s" in row.detail and "8 weights, 41 s" in row.detail


def test_the_second_stage_is_told_beside_its_control() -> None:
    curves = {arm: curve(share, 0.5) for arm, share in (("base", 0.4), ("first", 0.5), ("deer", 0.6), ("control", 0.55))}
    place, depth = synthetic_code.stages(curves)
    assert place.value == pytest.approx(1.2) and place.reached and "more of the first stage instead 0.550" in place.detail
    assert depth.value == pytest.approx(5 / 6, rel=0.01) and depth.reached is False
    assert synthetic_code.stages({**curves, "deer": curve(0.45, 0.5)})[0].reached is False


@pytest.mark.slow
def test_the_engine_writes_the_targets_own_programs_with_both_drafters(made: World) -> None:
    net, _ = learning.chain(made, TINY, 3)
    model, found = learning.block(made, TINY)
    for composition in (block_of(model), chain_of(net)):
        ran = engine_runs(made, composition, 2)
        assert ran.tau >= 1 and ran.lengths
    wrong = replace(made, dialogues=replace(made.dialogues, tokens=made.dialogues.tokens[::-1].copy()))
    with pytest.raises(SpecvizError, match="another program"):
        engine_runs(wrong, block_of(model), 1)
    assert set(found.seconds) == {"base", "first", "deer", "control"}


@pytest.mark.slow
def test_what_is_kept_out_is_never_seen_and_the_control_begins_where_the_first_stage_ended(
    made: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: set[int] = set()
    begun: list[dict[str, torch.Tensor]] = []
    kept, prepare = data.Dialogues.of, learning.make_deer.prepare

    def noted(self: data.Dialogues, number: int) -> np.ndarray:
        asked.add(int(number))
        return kept(self, number)

    def watched(*given: Any) -> Any:
        begun.append({name: value.clone() for name, value in given[3].factors.items()})
        return prepare(*given)

    monkeypatch.setattr(learning.make_deer, "prepare", watched)
    monkeypatch.setattr(learning.data, "split", lambda dialogues: (made.training, made.held_out))
    monkeypatch.setattr(data.Dialogues, "of", noted)
    learning.block(made, TINY)
    learning.chain(made, TINY, 3)
    assert asked and asked <= set(made.training)
    _, second, control = begun
    assert all(torch.equal(second[name], control[name]) for name in second)
    assert any(bool(value.any()) for value in second.values())


def test_the_chain_beside_it_is_the_one_that_is_as_good_at_the_first_place(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Path] = []
    toy = synthetic_code.synthetic_code
    arms = {"base": curve(0.5, 0.4), "first": curve(0.6, 0.5), "deer": curve(0.8, 0.8), "control": curve(0.65, 0.5)}
    learned = SimpleNamespace(arms=dict.fromkeys(arms), seconds=dict.fromkeys(arms, 1.0))
    first = {2: 0.4, 3: 0.78, 4: 0.9, 9: 0.95}
    monkeypatch.setattr(toy, "world", lambda plan, folder: ran.append(Path(folder)))
    monkeypatch.setattr(toy, "chain", lambda made, plan, updates: (torch.nn.Linear(updates, 1), 3.0))
    monkeypatch.setattr(toy, "block", lambda made, plan: (torch.nn.Linear(3, 3), learned))
    monkeypatch.setattr(toy, "use", lambda model, found, arm: arm if arm != "deer" else model)
    monkeypatch.setattr(synthetic_code, "blocks", lambda model, made: arms.get(model, arms["deer"]))
    monkeypatch.setattr(synthetic_code, "chains", lambda net, made: curve(first[net.in_features], 0.9 * first[net.in_features]))
    monkeypatch.setattr(synthetic_code, "block_of", lambda model: "deer")
    monkeypatch.setattr(synthetic_code, "chain_of", lambda net: net.in_features)
    monkeypatch.setattr(synthetic_code, "engine_runs", lambda made, how: EngineRuns(2.0, (1, 12 if how == "deer" else how)))
    alike, long, stage, _, longest = synthetic_code.rows(replace(TINY, chains=(2, 3, 4, 9)))
    assert "EAGLE after 3 updates 0.780" in alike.detail and alike.value == pytest.approx(1 / 0.9, rel=0.01)
    assert "EAGLE after 9 updates 0.950" in long.detail, "and the one that learned to the end"
    assert stage.value == pytest.approx(0.8 / 0.6, rel=0.01) and longest.value == 12
    assert "EAGLE τ 2.00, longest 9" in longest.detail
    assert ran and not ran[0].exists(), "nothing stays on disk"
