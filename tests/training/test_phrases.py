"""Phrases: the draws of a seed stay, every slot is filled, held-out words are apart, and no reported prompt is ever made."""

import hashlib
import random
import re

import numpy as np
import pytest

from specviz import prompts
from specviz.training.data import KnownTexts, Reserved
from specviz.training.families.scenes import compose, snap
from specviz.training.families.scenes_words import LESSONS, MIXED, READING, Speaker, drill, exchanges
from specviz.training.phrases import (
    ASKED,
    DOMAINS,
    HELD_OUT_EVERY,
    SHORT_LIST,
    Writer,
    domain_prompts,
    phrases,
    words,
)  # fmt: skip

ORDER, FOLLOWING, TEXTS, WORDS = (phrases("turns")[name] for name in ("order", "following", "texts", "words"))
ALL_REPORTED = prompts.reserved()


def writer(seed, held_out=False, passage=None):
    return Writer(random.Random(seed), held_out, lambda: passage)


def test_every_slot_there_is_has_words_and_every_list_is_used():
    texts = [text for lists in (ASKED, TEXTS, WORDS) for several in lists.values() for text in several]
    slots = set(re.findall(r"(?<!\{)\{([a-z]\w*)\}", "\n".join([*texts, *FOLLOWING])))
    assert slots == (set(TEXTS) | set(WORDS)) - {"opening"}
    assert not set(TEXTS) & set(WORDS)


def test_held_out_turns_ask_about_other_things_in_the_same_forms():
    for slot, found in WORDS.items():
        ours, theirs = set(words(slot, False)), set(words(slot, True))
        assert len(found) == len(set(found)) or len(found) < SHORT_LIST, f"{slot} holds a word twice"
        if len(found) >= SHORT_LIST:
            assert not ours & theirs and ours | theirs == set(found) and theirs
            assert len(theirs) == len(found) // HELD_OUT_EVERY
        else:
            assert ours == theirs == set(found)


@pytest.mark.parametrize("prompt", ALL_REPORTED)
def test_what_is_reserved_is_known_again_in_other_words_and_inside_other_texts(prompt):
    reserved = Reserved(ALL_REPORTED)
    assert reserved.near(prompt) and reserved.near(prompt.upper().replace(",", " ;"))
    assert reserved.near(f"Hello there. {prompt} Please answer in two sentences.")


def test_most_turns_are_not_near_what_is_reserved_and_those_that_are_never_get_out():
    reserved = Reserved(ALL_REPORTED)
    made = [writer(seed, held_out=seed % 2 == 1).turn(kind) for kind in ASKED for seed in range(200)]
    near = [text for text in made if reserved.near(text)]
    assert len(near) < 0.01 * len(made), near


def test_a_turn_is_asked_once_and_a_copied_answer_is_noticed():
    known = KnownTexts()
    assert [known.times_asked(turn) for turn in ("Why is the sky blue?", "why is the sky BLUE", "Why is it?")] == [0, 1, 0]
    answer = list(range(100, 220))
    assert not known.has_answer([1, 2], answer)
    assert known.has_answer([3], [*answer[:90], *range(900, 930)]), "mostly the same"
    assert not known.has_answer([3], [*answer[:30], *range(500, 590)])
    assert not known.has_answer(answer, answer), "what was to be copied may be"
    assert not known.has_answer([4], [5, 6, 7]) and not known.has_answer([4], [5, 6, 7]), "short answers are often alike"


def digest(*parts):
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


@pytest.mark.parametrize(("held_out", "same"), [(False, "ededeb84e47298eb"), (True, "4621949886c42f6b")])
def test_the_first_two_thousand_turns_of_a_seed_are_those_that_shipped_weights_learned_from(held_out, same):
    one, kinds = Writer(random.Random(5), held_out, lambda: None), list(ASKED)
    turns = [one.turn(kinds[number % len(kinds)]) for number in range(2000)]
    turns += [one.follow_up(), one.fill("{opening}")]
    assert digest(*turns) == same


@pytest.mark.parametrize(
    ("domain", "same"),
    [
        ("code", "19644c96632e8a15"),
        ("maths", "94e93614378c36ca"),
        ("stories", "848722786fd905c0"),
        ("translation", "0a3bcc20c44c3ce1"),
    ],
)
def test_the_first_prompts_of_a_domain_are_those_that_its_arm_learned_from(domain, same):
    assert domain in DOMAINS and digest(*domain_prompts(domain, 400, 3)) == same


def said(one):
    return one.kind, one.question, one.answer, one.look, one.again


def test_the_first_scenes_and_what_is_said_of_them_stay_the_same():
    chosen = [scene for scene, _ in map(compose, range(60)) if scene.things]
    pages = [Speaker(snap(scene), np.random.default_rng([scene.seed, 13])) for scene in chosen]
    told = [[said(one) for weights in (MIXED, LESSONS) for one in exchanges(scene, 6, weights)] for scene in chosen]
    read = [(page.look(), drill(page, 24), [said(one) for one in page.questions(6, READING)]) for page in pages]
    assert (digest(*chosen), digest(told, read)) == ("1cf3fd740b23593d", "8e74fa4114c58018")
