"""Simulated steps of methods that choose who drafts: a network's tree or a copy by score, one of several arms by hindsight."""

from __future__ import annotations

import random

from specviz.trace.schema import Note
from tests.support.traces.sample_rounds import rounded
from tests.support.traces.story_trees import Distributions, Sketch, dynamic, walk

PROMPT_TOKENS = 20
ARMS = ("code", "maths", "stories", "translation", "copy")


def last_state(distributions: Distributions, generator: random.Random) -> tuple[Sketch, list[int], list[str], Note]:
    """A tree of the network, or in one step of three a long thin copy."""
    copied = generator.random() < 0.33
    sketch = dynamic(distributions, 7 if copied else 4, 1 if copied else 5, 8 if copied else 16, lambda level, mass: True, most=0)
    score = generator.uniform(1.5, 4.0) if copied else generator.uniform(0.0, 1.4)
    data = {
        "half": "suffix" if copied else "tree", "length": PROMPT_TOKENS + distributions.place, "score": rounded(score),
        "threshold": 1.5, "probed": True,
    }  # fmt: skip
    return sketch, *walk(sketch), Note("last_state", data)


def arms(distributions: Distributions, generator: random.Random) -> tuple[Sketch, list[int], list[str], Note]:
    """A chain of one arm, and what the others would have got along the text that was written."""
    sketch = dynamic(distributions, 5, 1, 6, lambda level, mass: True, most=0)
    path, statuses = walk(sketch)
    sure = [generator.uniform(0.05, 1.0) ** 2 for _ in ARMS]
    probabilities = [rounded(one / sum(sure)) for one in sure]
    drafted = max(range(len(ARMS)), key=probabilities.__getitem__)
    written = [distributions.words.at(distributions.place + at) for at in range(len(path) + 1)]
    ghosts = [
        [float(at < len(path)) if arm == drafted else rounded(generator.random() ** 2) for at in range(len(written))]
        for arm in range(len(ARMS))
    ]
    waiting = [{"place": PROMPT_TOKENS + distributions.place + len(path) - back, "known": 1 + back} for back in (3, 2, 1, 0)]
    data = {
        "names": list(ARMS), "chances": probabilities, "drafted": drafted, "informed": True, "loss": "length", "ahead": 5,
        "tokens": [distributions.words.ids[text] for text in written], "texts": written, "ghosts": ghosts,
        "expected": [rounded(1 + sum(row)) for row in ghosts], "settled": len(written), "waiting": waiting,
        "after": probabilities,
    }  # fmt: skip
    return sketch, path, statuses, Note("arms", data)
