"""The drafter under guidance against two drafters, one on each prompt, whose logits are mixed by hand."""

from functools import partial

import pytest
import torch

from specviz.drafting.runtimes.feature_drafter import FeatureDrafter
from specviz.drafting.runtimes.guided_drafter import PADDING, GuidedDrafter
from specviz.engine.interfaces import Draft, Round, TargetPass, Verdict
from specviz.engine.tree import DraftTree
from tests.support import rounds
from tests.support.tiny.images import tiny_image, tiny_image_drafter

SCALE, HIDDEN = 2.5, 32
CONDITIONAL, CODES = [30, 41, 52, 63, 74], [3, 17, 9]
PROMPTS = {"its own": [80, 81, 82, 83, 84], "padded": [PADDING, PADDING, 82, 83, 84]}
PARENTS = ([0, 0, 0], [2, 0, 0, 1], [3, 3, 1])
"""By level below the first: rows of the level above."""


context = partial(rounds.context, prompt=len(CONDITIONAL), room=9)


def drafted(drafter, ids, features, first):
    """Logits of every level of two rounds: one behind the prompt of ``first`` tokens and, three codes later, another.
    ``features`` [place, hidden] are the target's of ``ids``."""
    drafter.begin(context(ids[:first], 0), TargetPass(torch.empty(0), {2: features[: first - 1]}))
    answers = grown(drafter, context(ids[:first], 0))
    scored = TargetPass(torch.empty(0), {2: features[first - 1 : first - 1 + len(CODES)]})
    draft = Draft(DraftTree.of([ids[first - 1], *CODES[:-1]], range(-1, len(CODES) - 1)))
    verdict = Verdict("greedy", (1, 2), CODES[-1], "target", ("root", "accepted", "accepted"), (0, 1, 2))
    drafter.observe(Round(context(ids[:first], 0), draft, scored, verdict, CODES))
    return answers + grown(drafter, context(ids, 1))


@torch.inference_mode()
def grown(drafter, here):
    levels = drafter.levels(here)
    answers = [levels.ask()]
    for depth, parents in enumerate(PARENTS):
        tokens = torch.tensor([(7 * depth + 5 * row) % 24 for row in range(len(parents))])
        answers.append(levels.ask(tokens, torch.tensor(parents)))
    return answers


@pytest.mark.parametrize("prompt", PROMPTS)
def test_every_level_is_two_drafters_logits_mixed(prompt):
    network = tiny_image_drafter(tiny_image())
    network.embedding = torch.randn(100, HIDDEN, generator=torch.Generator().manual_seed(3)).double()
    network.draft_ids = None
    silent, ids = PROMPTS[prompt], [*CONDITIONAL, *CODES]
    features = torch.randn(len(ids), 2, HIDDEN, generator=torch.Generator().manual_seed(4)).double()
    padded, first = silent.count(PADDING), len(CONDITIONAL)
    guided = drafted(GuidedDrafter(network.runtime(), SCALE, silent), ids, features.flatten(1), first)
    one = drafted(FeatureDrafter(network.runtime()), ids, features[:, 0], first)
    other = drafted(FeatureDrafter(network.runtime()), [*silent[padded:], *CODES], features[padded:, 1], first - padded)
    assert len(guided) == 2 * (1 + len(PARENTS))
    for mixed, conditional, unconditional in zip(guided, one, other, strict=True):
        torch.testing.assert_close(mixed, unconditional + SCALE * (conditional - unconditional), rtol=0, atol=1e-9)
