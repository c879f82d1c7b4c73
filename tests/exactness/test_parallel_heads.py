"""Heads that guess several tokens at once: exact where the method says so, and relaxed no further than its bound."""

import math

import pytest
import torch

from specviz.acceptance.exact import Match
from specviz.engine.interfaces import Acceptance, Composition, SingleDrafter
from specviz.engine.sampling import Warp
from specviz.methods.medusa.drafter import ParallelDrafter, Product, paths_of
from specviz.methods.medusa.typical_acceptance import Typical
from specviz.methods.registry import get, published_tree
from specviz.targets.text import TextTarget
from specviz.trace.schema import RELAXED
from tests.support.tiny.text import LENGTH, Decoded, decode, parts_for, tiny_llama, tiny_target
from tests.support.worlds.text import GREEDY, PROMPT, WARM, WARPS, baseline, parallel_net


def heads(rule: Acceptance, target: TextTarget) -> Composition:
    """Untrained heads with the published tree."""
    net = parallel_net(target)
    return Composition(SingleDrafter(ParallelDrafter(net), Product(paths_of(published_tree("medusa")))), rule, (net.config.tap,))


def run(rule: Acceptance, warp: Warp, target: TextTarget | None = None, budget: int = LENGTH, seed: int = 7) -> Decoded:
    target = target or tiny_target()
    return decode(target, heads(rule, target), PROMPT, budget, warp, seed)


@pytest.mark.slow
@pytest.mark.parametrize("warped", ["warm", "nucleus"])
def test_at_its_strict_end_the_typical_rule_writes_the_autoregressive_text(warped):
    found = run(Typical(1.0, math.inf), WARPS[warped])
    assert found.ids == baseline("eager", torch.float64, WARPS[warped])


def test_the_published_root_is_the_targets_most_likely_token_at_every_temperature():
    found, model = run(Typical(greedy_root=True), WARM, budget=60), tiny_llama()
    text, roots = [*PROMPT], 0
    for step in found.steps:
        text += step.emitted[: len(step.path)]
        if step.bonus is not None and len(step.emitted) > len(step.path):
            assert step.bonus.token == int(model(torch.tensor([text])).logits[0, -1].argmax())
            roots += 1
        text += step.emitted[len(step.path) :]
    assert roots > 10
    assert found.ids != run(Typical(), WARM, budget=60).ids


def test_with_the_published_root_the_strict_end_is_the_greedy_text():
    """Which is why it is not the default: nothing but roots is written there, and the temperature changes none of them."""
    found = run(Typical(1.0, math.inf, greedy_root=True), WARM, budget=60)
    assert found.ids == baseline("eager", torch.float64, GREEDY)[:60]


@pytest.mark.parametrize(("root", "greedy"), [("sampled", False), ("greedy", True)])
def test_the_root_is_the_users_choice_and_sampled_by_default(root, greedy):
    method, target = get("medusa"), tiny_target()
    network = parallel_net(target)
    parts = parts_for(target, WARM).using(drafter_weights=lambda kind: network, uses_shipped_weights=False)
    values = method.parameters(root=root)
    assert method.compose(values, parts).acceptance == Typical(greedy_root=greedy)
    assert method.parameters().root == "sampled"


@pytest.mark.slow
def test_relaxing_accepts_more_and_changes_the_text():
    strict, loose = run(Match(), WARM), run(Typical(), WARM)
    assert len(loose.steps) < 0.8 * len(strict.steps)
    assert loose.ids != strict.ids
    assert any(node.status == RELAXED for step in loose.steps for node in step.nodes)


def test_every_kept_token_is_above_the_bar_the_method_states():
    """The bound, checked against distributions of a target that never saw the drafter."""
    found, model = run(Typical(0.2, 0.5), WARM, budget=60), tiny_llama()
    text = [*PROMPT]
    for step in found.steps:
        for node in step.path:
            distribution = WARM.probabilities(model(torch.tensor([text])).logits[0, -1])
            entropy = -float((distribution * distribution.clamp_min(1e-300).log()).sum())
            bar = min(0.2, 0.5 * math.exp(-entropy))
            assert float(distribution[step.nodes[node].token]) > bar
            assert step.nodes[node].threshold == pytest.approx(bar)
            text.append(step.nodes[node].token)
        text += list(step.emitted[len(step.path) :])
