"""Scenes and what is said about them: true, unambiguous, and partly kept out of training."""

import re

import numpy as np
import pytest

from specviz.training.families import scenes
from specviz.training.families.scenes import COMBINATIONS, FRESH, UNSEEN_DRAWINGS, held_out
from specviz.training.families.scenes_vlm import GradedAnswer, metrics
from specviz.training.families.scenes_words import NUMBERS, Exchange, Speaker, a, at, exchanges, named, plural

SEEDS = range(150)


def test_pictures_show_every_thing_where_it_is_said_to_be():
    for seed in range(40):
        scene = scenes.compose(seed)
        picture = scenes.draw(scene).astype(int)
        assert picture.shape == (scenes.SIDE, scenes.SIDE, 3)
        ground = np.median(picture.reshape(-1, 3), axis=0)
        for thing in scene.things:
            reach = thing.pixels // 2
            there = picture[
                max(0, int(thing.y) - reach) : int(thing.y) + reach, max(0, int(thing.x) - reach) : int(thing.x) + reach
            ]
            assert (np.abs(there - ground).sum(-1) > 25).mean() > 0.2


def test_things_are_well_inside_their_region_and_overlap_plainly_or_not_at_all():
    for seed in SEEDS:
        things = scenes.compose(seed).things
        assert [thing.region for thing in things] == sorted({thing.region for thing in things})
        for place, one in enumerate(things):
            assert min(one.x % scenes.REGION, one.y % scenes.REGION) >= 4
            for other in things[:place]:
                assert scenes.gap(one, other) > 1 or scenes.gap(one, other) < -6


def test_what_is_held_out_never_comes_up_in_training():
    for seed in SEEDS:
        scene = scenes.compose(seed)
        assert not scenes.new_combination(scene) and not scenes.new_drawing(scene)
    for number in range(10):
        assert scenes.new_combination(held_out(COMBINATIONS, number))
        assert scenes.new_drawing(held_out(UNSEEN_DRAWINGS, number))
        assert not scenes.new_combination(held_out(FRESH, number)) and not scenes.new_drawing(held_out(FRESH, number))


def test_descriptions_say_every_thing_with_its_place():
    for seed in SEEDS:
        scene = scenes.compose(seed)
        text = Speaker(scene, np.random.default_rng(seed)).describe().answer
        assert placed_things(text) == [(a(named(thing)), at(thing.region)) for thing in scene.things]
        assert f"{NUMBERS[len(scene.things)]} {plural('thing', len(scene.things))}" in text.lower()


_PLACE = r"(?P<where>(?:at|on|in) the [a-z ]+{})"
_PLACED = (
    re.compile(rf"^{_PLACE.format('?')} (?:there (?:is|are)|you can see) (?P<what>(?:an?|some) [a-z ]+)$"),
    re.compile(rf"^(?P<what>(?:an?|some) [a-z ]+?) (?:is|are) {_PLACE.format('')}$"),
)


def placed_things(text: str) -> list[tuple[str, str]]:
    """(what, where) of every thing that a description places."""
    matches = (form.match(sentence.strip()) for sentence in text.lower().split(".") for form in _PLACED)
    return [(match["what"], match["where"]) for match in matches if match]


@pytest.mark.parametrize("seed", range(0, 150, 10))
def test_answers_about_sides_places_and_numbers_are_true(seed):
    scene = scenes.compose(seed)
    speaker = Speaker(scene, np.random.default_rng(seed))
    by_name = {name: thing for name, thing in zip(speaker.names, scene.things, strict=True) if name}
    for one in speaker.questions(12):
        answer = one.answer
        if one.kind == "side":
            match = re.fullmatch(r"The (.+?) (?:is|are) (left of|right of|above|below) the (.+)\.", answer)
            assert match is not None
            first, second = by_name[match[1]], by_name[match[3]]
            true = {"left of": first.x < second.x, "right of": first.x > second.x,
                    "above": first.y < second.y, "below": first.y > second.y}  # fmt: skip
            assert true[match[2]]
        elif one.kind == "where":
            match = re.fullmatch(r"The (.+?) (?:is|are) ((?:at|on|in) the .+)\.", answer)
            assert match is not None and at(by_name[match[1]].region) == match[2]
        elif answer.startswith("There are") and "things" in answer:
            assert NUMBERS[len(scene.things)] in answer


def test_figures_count_what_is_right_word_for_word():
    truth = exchanges(held_out(FRESH, 0), 3)[1:]
    assert set(metrics([GradedAnswer(one, one.answer) for one in truth]).values()) == {1}
    assert metrics([GradedAnswer(one, "At the top there is a zebra.") for one in truth])["questions"] == 0


def test_what_was_looked_at_is_not_what_was_asked():
    asked = Exchange("side", "Is the cat left or right of the dog?", "The cat is left of the dog.", "A cat on the left.")
    assert GradedAnswer(asked, asked.spoken).right and GradedAnswer(asked, asked.answer).right
    assert GradedAnswer(asked, "A fox at the top. The cat is left of the dog.").right
    assert not GradedAnswer(asked, "A cat on the left. The cat is right of the dog.").right
    assert not GradedAnswer(asked, "The cat is left of the dog. A cat on the left.").right
    assert not GradedAnswer(asked, "A cat on the left.").right
