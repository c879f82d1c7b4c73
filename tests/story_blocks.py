"""Blocks of masks for ``tests/stories.py``: every place guesses for itself, drawn at once or led through by a beam."""

from __future__ import annotations

import random
from typing import Any

from specviz.trace.schema import Note
from tests.sample_rounds import rounded
from tests.story_trees import Laws, Leaf, Sketch, walk

Told = tuple[Sketch, list[int], list[str], Note]


def _places(laws: Laws, chance: random.Random, places: int, shown: int) -> list[list[tuple[str, float]]]:
    """For each place its likeliest tokens; the further from the text, the less often the right one is the first."""
    found = []
    for place in range(places):
        right = laws.words.at(laws.place + place)
        texts = chance.sample([text for text in laws.words.others if text != right], shown)
        rank = chance.choices((0, 1, 2, shown), (8 - place, 2, 1, 2 + place))[0]
        texts = [right if at == rank else text for at, text in enumerate(texts)]
        sure = max(0.12, 0.8 - 0.09 * place)
        found.append([(text, rounded(sure * 0.5**at)) for at, text in enumerate(texts)])
    return found


def _chain(laws: Laws, taken: list[tuple[str, float]], chance: random.Random) -> Sketch:
    leaves = [laws.root()]
    for place, (text, q) in enumerate(taken):
        right = leaves[-1].right and text == laws.words.at(laws.place + place)
        p = chance.uniform(0.5, 0.95) if right else chance.uniform(0.001, 0.2)
        leaves.append(Leaf(place, text, q, p, place + 1, right, 0.0))
    return Sketch(leaves, kept=len(leaves))


def _row(laws: Laws, offers: list[tuple[str, float]]) -> dict[str, Any]:
    texts = [text for text, _ in offers]
    return {"tokens": [laws.words.ids[text] for text in texts], "texts": texts, "probability": [q for _, q in offers]}


def resolved(laws: Laws, chance: random.Random) -> Told:
    """A block of six masks that one forward resolves."""
    offers = _places(laws, chance, 6, 4)
    sketch = _chain(laws, [row[0] for row in offers], chance)
    return sketch, *walk(sketch), Note("denoised", {"places": [_row(laws, row) for row in offers]})


def searched(laws: Laws, chance: random.Random) -> Told:
    """A lattice of eight places and three beams; every other round the text ends before the block does."""
    places, width = 8 if laws.place % 2 else 5, 3
    offers = _places(laws, chance, places, 5)
    beams: list[dict[str, Any]] = []
    for _ in range(places):
        many = len(beams[-1]["picks"]) if beams else 1
        pairs = chance.sample([(parent, pick) for parent in range(many) for pick in range(5)], width)
        pairs[0] = (0, chance.choice((0, 0, 1)))
        score = sorted((rounded(-1.2 * len(beams) - 3 * chance.random()) for _ in pairs), reverse=True)
        beams.append({"parents": [one for one, _ in pairs], "picks": [pick for _, pick in pairs], "score": score})
    path = [row["picks"][0] for row in beams]
    sketch = _chain(laws, [row[pick] for row, pick in zip(offers, path, strict=True)], chance)
    columns = [{**_row(laws, row), "size": 5 + chance.randint(0, 9)} for row in offers]
    gauge = {"length": 8, "shortest": 3, "longest": 10, "drafted": 6.5, "accepted": 1.25, "adaptive": True}
    data = {"columns": columns, "beams": beams, "fence": None, "gauge": gauge, "weight": 0.5}
    data |= {"fence": 5, "ended": True} if places == 5 else {"ended": False}
    return sketch, *walk(sketch), Note("lattice", data)
