"""The drafter on the target's features: every logit of every round is the network's own, whatever was accepted before."""

from functools import partial

import pytest
import torch

from specviz.acceptance.exact import Match
from specviz.drafting.runtimes import feature_levels
from specviz.drafting.runtimes.feature_drafter import FeatureDrafter
from specviz.drafting.trees.dynamic import Dynamic
from specviz.drafting.trees.retrieved import RootOnly
from specviz.drafting.trees.sampled import Sampled
from specviz.engine.interfaces import Composition, Draft, Round, SingleDrafter, TargetPass, Verdict
from specviz.engine.tree import DraftTree, shape_from_counts
from tests.support.rounds import context
from tests.support.tiny.text import VOCAB, decode, tiny_target
from tests.support.worlds.feature import tiny_net, wanted
from tests.support.worlds.witness import Witness

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
TREE = shape_from_counts([[3], [2, 1, 0], [1, 1, 0], [1, 0]])


class Scripted:
    """Asks the drafter about a tree that is right just so deep: in round r the first r mod 5 levels of four hold the
    token the target will choose, beside a wrong one; all other tokens are wrong."""

    def __init__(self, truth):
        self.truth = list(truth)

    @torch.inference_mode()
    def build(self, drafter, context):
        tokens, parents, here = [context.ids[-1]], [-1], 0
        levels, beam = drafter.levels(context), torch.tensor([0, 0])
        if levels is not None:
            levels.ask()
        for level in range(min(4, context.max_depth - 1)):
            place = len(context.ids) - context.prompt_length + level
            right = self.truth[place] if place < len(self.truth) else 0
            best = right if level < context.round % 5 else (right + 7) % VOCAB
            tokens += [(best + 1) % VOCAB if (best + 1) % VOCAB != right else (best + 2) % VOCAB, best]
            parents += [here, here]
            here = len(tokens) - 1
            if levels is not None:
                levels.ask(torch.tensor(tokens[-2:]), beam if level == 0 else beam + 1)
        return Draft(DraftTree.of(tokens, parents, context.device), calls=drafter.calls())


def alone(target, prompt, budget, warp=None):
    from specviz.drafting.runtimes.null import NullDrafter

    return decode(target, Composition(SingleDrafter(NullDrafter(), RootOnly()), Match()), prompt, budget, warp)


@pytest.mark.spread(1)
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("prompt", [PROMPT, PROMPT[:2], PROMPT[:1]], ids=["prompt", "two tokens", "one token"])
def test_logits_are_the_networks_own_after_every_kind_of_round(wide, prompt):
    target = tiny_target()
    truth = alone(target, prompt, 30).ids
    net = tiny_net(target.model, wide)
    drafter = Witness(FeatureDrafter(net.runtime()))
    run = decode(target, Composition(SingleDrafter(drafter, Scripted(truth)), Match(), net.config.taps), prompt, 30)
    assert run.ids == truth
    assert drafter.error(partial(wanted, net, target.model)) < 1e-9
    assert {len(step.path) for step in run.steps} == {0, 1, 2, 3, 4}, "the script was to reach every accepted length"
    # Only a prompt of one token has a round without a feature to start from.
    assert [step.index for step in run.steps if not step.draft_calls] == ([0] if len(prompt) == 1 else [])
    assert len(drafter.answers) > 9 * (len(run.steps) - 1) - 9


@pytest.mark.slow
def test_a_long_prompt_is_taken_in_by_pieces(monkeypatch):
    monkeypatch.setattr("specviz.drafting.runtimes.feature_drafter.PIECE", 3)
    target = tiny_target()
    net = tiny_net(target.model, True)
    drafter = Witness(FeatureDrafter(net.runtime()))
    prompt = [(5 * place + place // 7) % VOCAB for place in range(40)]
    decode(target, Composition(SingleDrafter(drafter, Sampled(TREE)), Match(), net.config.taps), prompt, 30)
    assert drafter.error(partial(wanted, net, target.model)) < 1e-9 and len(drafter.answers) > 50


@pytest.mark.parametrize("right", range(5))
def test_what_stands_for_states_that_a_pass_lacked_is_the_same_however_the_tree_was_grown(right):
    """Paths of every length, to the last level too, which the network was not asked about while it drafted."""
    target = tiny_target()
    net, width = tiny_net(target.model, False, None), 3
    after = []
    for drafter in (FeatureDrafter(net.runtime(), fixed=fixed) for fixed in (False, True)):
        session = target.open(64, drafter.taps)
        prefill = session.prefill(PROMPT[:-1])
        here = context(PROMPT, story=False)
        drafter.begin(here, prefill)
        draft = Dynamic(4, width, 20).build(drafter, here)
        shape = draft.tree.shape
        # The last of the deepest nodes within reach; for the shallow ones a leaf that was in no beam.
        node = next(node for node in reversed(range(len(shape))) if shape.depths[node] == right)
        path = []
        while node:
            path.insert(0, node)
            node = shape.parents[node]
        emitted = [*(draft.tree.host_tokens[one] for one in path), 7]
        verdict = Verdict("greedy", tuple(path), 7, "target", ("root",) * len(shape), (0, *path))
        drafter.observe(Round(here, draft, TargetPass(torch.zeros(len(shape), VOCAB)), verdict, emitted))
        again = context([*PROMPT, *emitted], 1, prompt=len(PROMPT), story=False)
        after.append(Dynamic(3, width, 20).build(drafter, again))
    assert after[0].tree.host_tokens == after[1].tree.host_tokens and len(after[0].tree) > 4
    assert after[0].confidence[1:] == pytest.approx(after[1].confidence[1:], rel=1e-5)


def test_a_finished_runs_tensors_serve_the_next_one_while_they_fit_and_hold_few_graphs(monkeypatch):
    runtime = tiny_net(tiny_target().model, True).runtime()
    first = feature_levels.acquire(runtime, 100)
    assert feature_levels.acquire(runtime, 100) is not first, "another run's are its own"
    feature_levels.release(runtime, first)
    assert feature_levels.acquire(runtime, 100) is first
    feature_levels.release(runtime, first)
    assert feature_levels.acquire(runtime, 2 * first.columns) is not first
    feature_levels.release(runtime, first)
    monkeypatch.setattr(feature_levels, "MOST_STEPS", -1)
    assert feature_levels.acquire(runtime, 100) is not first
