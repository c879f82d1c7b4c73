"""Scenes and what is said about them: true and unambiguous, and admitted where nothing is known."""

import re

import numpy as np
import pytest

from specviz.models.vision.scenes import admits
from specviz.training.families import scenes
from specviz.training.families.scenes import ART, LAYERS, SHAPE, SIDE
from specviz.training.families.scenes_vlm import GradedAnswer, metrics
from specviz.training.families.scenes_words import LESSONS, NUMBERS, Exchange, Speaker, a, at, exchanges, named, plural

SEEDS = range(150)
ABSENT = re.compile(r"There (?:is|are) no (.+)\.")


def test_a_scene_is_of_its_seed_and_has_a_layer_for_each_thing():
    for seed in SEEDS:
        scene, paint = scenes.compose(seed)
        kinds = [thing.is_shape for thing in (scene.things[place] for place in scene.depth)]
        if scene.things:
            assert paint["layer"].tolist() == [SHAPE if one else ART for one in kinds] + [0] * (LAYERS - len(kinds))
        assert all(0 < thing.x < SIDE and 0 < thing.y < SIDE and thing.pixels >= 12 for thing in scene.things)
    again = scenes.compose.__wrapped__(7)
    assert again[0] == scenes.compose(7)[0]
    assert all(np.array_equal(again[1][name], value) for name, value in scenes.compose(7)[1].items())


def test_things_are_well_inside_their_region_and_overlap_plainly_or_not_at_all():
    for seed in SEEDS:
        things = scenes.compose(seed)[0].things
        assert [thing.region for thing in things] == sorted(thing.region for thing in things)
        for place, one in enumerate(things):
            assert min(abs(at - scenes.REGION * line) for at in (one.x, one.y) for line in (1, 2)) >= 3.5
            for other in things[:place]:
                assert scenes.gap(one, other) > 3 or scenes.gap(one, other) < -6


def test_pictures_without_known_things_are_admitted_and_no_others():
    made = [scenes.compose(seed)[0] for seed in range(160)]
    assert 20 < sum(not scene.things for scene in made) < 60
    for scene in made:
        described, *asked = exchanges(scene, 4, LESSONS)
        assert admits(described.answer) == (not scene.things)
        assert all(admits(one.spoken) == (not scene.things) for one in asked if one.kind not in {"colour", "count"})


def test_a_thing_that_is_not_there_is_said_not_to_be():
    said = [one for seed in range(200) for one in exchanges(scenes.compose(seed)[0], 4, LESSONS)]
    matches = [(one, ABSENT.fullmatch(one.answer)) for one in said if one.kind in {"where", "side", "next"}]
    absent = [(one, match[1]) for one, match in matches if match]
    assert absent and all(name in one.question.lower() for one, name in absent)


def test_descriptions_say_every_thing_with_its_place():
    for scene in (scene for scene, _ in map(scenes.compose, SEEDS) if scene.things):
        text = Speaker(scene, np.random.default_rng(scene.seed)).describe().answer
        assert placed_things(text) == [(a(named(thing)), at(thing.region)) for thing in scene.things]
        assert f"{NUMBERS[len(scene.things)]} {plural('thing', len(scene.things))}" in text.lower()


_PLACE = r"(?P<where>(?:at|on|in) the [a-z ]+{})"
_PLACED = (
    re.compile(rf"^{_PLACE.format('?')} (?:there (?:is|are)|you can see) (?P<what>(?:an?|some) [a-z ]+)$"),
    re.compile(rf"^(?P<what>(?:an?|some) [a-z ]+?) (?:is|are) {_PLACE.format('')}$"),
)


def placed_things(text):
    """(what, where) of every thing that a description places."""
    matches = (form.match(sentence.strip()) for sentence in text.lower().split(".") for form in _PLACED)
    return [(match["what"], match["where"]) for match in matches if match]


@pytest.mark.parametrize("seed", range(0, 150, 10))
def test_answers_about_sides_places_and_numbers_are_true(seed):
    scene = scenes.compose(seed)[0]
    speaker = Speaker(scene, np.random.default_rng(seed))
    by_name = {name: thing for name, thing in zip(speaker.names, scene.things, strict=True) if name}
    for one in speaker.questions(12):
        answer = one.answer
        if one.kind == "side" and not ABSENT.fullmatch(answer):
            match = re.fullmatch(r"The (.+?) (?:is|are) (left of|right of|above|below) the (.+)\.", answer)
            first, second = by_name[match[1]], by_name[match[3]]
            true = {"left of": first.x < second.x, "right of": first.x > second.x,
                    "above": first.y < second.y, "below": first.y > second.y}  # fmt: skip
            assert true[match[2]]
        elif (match := ABSENT.fullmatch(answer)) and one.kind in {"side", "where", "next"}:
            assert speaker.number(match[1]) == 0
        elif one.kind == "where":
            match = re.fullmatch(r"The (.+?) (?:is|are) ((?:at|on|in) the .+)\.", answer)
            assert at(by_name[match[1]].region) == match[2]
        elif answer.startswith("There are") and "things" in answer:
            assert NUMBERS[len(scene.things)] in answer


def test_figures_count_what_is_right_word_for_word():
    truth = exchanges(scenes.held_out(2)[0], 3)[1:]
    assert set(metrics([GradedAnswer(one, one.answer) for one in truth]).values()) == {1}
    assert metrics([GradedAnswer(one, "At the top there is a zebra.") for one in truth])["questions"] == 0


def test_what_was_looked_at_is_not_what_was_asked():
    asked = Exchange("side", "Is the cat left or right of the dog?", "The cat is left of the dog.", "A cat on the left.")
    assert GradedAnswer(asked, asked.spoken).right and GradedAnswer(asked, asked.answer).right
    assert GradedAnswer(asked, "A fox at the top. The cat is left of the dog.").right
    assert not GradedAnswer(asked, "A cat on the left. The cat is right of the dog.").right
    assert not GradedAnswer(asked, "The cat is left of the dog. A cat on the left.").right
    assert not GradedAnswer(asked, "A cat on the left.").right
