"""Blocks of masks for ``stories.py``: every place guesses for itself, drawn at once or led through by a beam."""

from __future__ import annotations

import random
from typing import Any

from specviz.trace.schema import Note
from tests.support.traces.sample_rounds import rounded
from tests.support.traces.story_trees import Distributions, Leaf, Sketch, walk

Told = tuple[Sketch, list[int], list[str], Note]


def _places(distributions: Distributions, generator: random.Random, places: int, shown: int) -> list[list[tuple[str, float]]]:
    """For each place its likeliest tokens; the further from the text, the less often the right one is the first."""
    found = []
    for place in range(places):
        right = distributions.words.at(distributions.place + place)
        texts = generator.sample([text for text in distributions.words.others if text != right], shown)
        rank = generator.choices((0, 1, 2, shown), (8 - place, 2, 1, 2 + place))[0]
        texts = [right if at == rank else text for at, text in enumerate(texts)]
        sure = max(0.12, 0.8 - 0.09 * place)
        found.append([(text, rounded(sure * 0.5**at)) for at, text in enumerate(texts)])
    return found


def _chain(distributions: Distributions, taken: list[tuple[str, float]], generator: random.Random) -> Sketch:
    leaves = [distributions.root()]
    for place, (text, q) in enumerate(taken):
        right = leaves[-1].right and text == distributions.words.at(distributions.place + place)
        p = generator.uniform(0.5, 0.95) if right else generator.uniform(0.001, 0.2)
        leaves.append(Leaf(place, text, q, p, place + 1, right, 0.0))
    return Sketch(leaves, kept=len(leaves))


def _row(distributions: Distributions, offers: list[tuple[str, float]]) -> dict[str, Any]:
    texts = [text for text, _ in offers]
    return {"tokens": [distributions.words.ids[text] for text in texts], "texts": texts, "probability": [q for _, q in offers]}


def resolved(distributions: Distributions, generator: random.Random) -> Told:
    """A block of six masks that one forward resolves."""
    offers = _places(distributions, generator, 6, 4)
    sketch = _chain(distributions, [row[0] for row in offers], generator)
    return sketch, *walk(sketch), Note("denoised", {"places": [_row(distributions, row) for row in offers]})


def searched(distributions: Distributions, generator: random.Random) -> Told:
    """A lattice of eight places and three beams; every other round the text ends before the block does."""
    places, width = 8 if distributions.place % 2 else 5, 3
    offers = _places(distributions, generator, places, 5)
    beams: list[dict[str, Any]] = []
    for _ in range(places):
        many = len(beams[-1]["picks"]) if beams else 1
        pairs = generator.sample([(parent, pick) for parent in range(many) for pick in range(5)], width)
        pairs[0] = (0, generator.choice((0, 0, 1)))
        score = sorted((rounded(-1.2 * len(beams) - 3 * generator.random()) for _ in pairs), reverse=True)
        beams.append({"parents": [one for one, _ in pairs], "picks": [pick for _, pick in pairs], "score": score})
    path = [row["picks"][0] for row in beams]
    sketch = _chain(distributions, [row[pick] for row, pick in zip(offers, path, strict=True)], generator)
    columns = [{**_row(distributions, row), "size": 5 + generator.randint(0, 9)} for row in offers]
    gauge = {"length": 8, "shortest": 3, "longest": 10, "drafted": 6.5, "accepted": 1.25, "adaptive": True}
    data = {"columns": columns, "beams": beams, "fence": None, "gauge": gauge, "weight": 0.5}
    data |= {"fence": 5, "ended": True} if places == 5 else {"ended": False}
    return sketch, *walk(sketch), Note("lattice", data)
