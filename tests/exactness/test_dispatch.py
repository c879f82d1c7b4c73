"""What a step asks of a GPU, counted on tiny models: few calls, hardly a wait, and the text that the CPU writes."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from specviz.drafting.networks.eagle_head import EagleRuntime, PublishedEagleHead
from specviz.drafting.networks.head_config import EACH, HeadConfig, HeadConventions
from specviz.engine.interfaces import Composition
from specviz.engine.loop import Decoding, Recorder
from specviz.engine.sampling import Noise, Warp
from specviz.methods.registry import build, get
from specviz.pipeline.image import CodeText
from specviz.targets.text import TextTarget
from tests.support.dispatch import CALLS, MOST_WAITS, PICTURE_CALLS, StepCounts, count
from tests.support.emulated_cuda import EmulatedCuda, emulated_cuda
from tests.support.tiny.text import Letters, decode, parts_for, tiny_llama
from tests.support.worlds import hybrid, vision
from tests.support.worlds import image as images
from tests.support.worlds.text import PROMPT, WARPS, compose

TOKENS = 24
BEAM = {"depth": 5, "width": 6, "nodes": 24}


def _target(device: str) -> TextTarget:
    return TextTarget(tiny_llama(dtype=torch.float64).to(device), "tiny", (), "graph")


def steps_of(
    device: EmulatedCuda, target: Any, composition: Composition, prompt: Sequence[int], warp: Warp, expected: Sequence[int]
) -> list[StepCounts]:
    """Warmed-up steps of a run that is asserted to write what the CPU writes."""
    run = Decoding(target, composition, prompt, warp, Noise(7), TOKENS, Recorder(Letters(), "off"))
    steps = count(device, run)
    assert run.outcome.output_ids == list(expected)
    return steps


def compared(composed: Callable[[TextTarget], Composition], warp: Warp) -> list[StepCounts]:
    """Those of a method on the tiny model."""
    here = _target("cpu")
    expected = decode(here, composed(here), PROMPT, TOKENS, warp, 7).ids
    with emulated_cuda() as device:
        there = _target("cuda")
        return steps_of(device, there, composed(there), PROMPT, warp, expected)


def counted(name: str, values: dict[str, Any], warped: str) -> list[StepCounts]:
    return compared(lambda target: compose(name, values, target, WARPS[warped]), WARPS[warped])


def calls(steps: Sequence[StepCounts]) -> float:
    """Of a mean step."""
    return sum(step.total("calls") for step in steps) / len(steps)


@pytest.mark.slow
@pytest.mark.parametrize("warped", ["greedy", "warm"])
def test_five_levels_of_eagle3_are_a_few_calls_and_one_copy(warped):
    steps = counted("eagle3", {**BEAM, "rule": "match"}, warped)
    for step in steps:
        draft = step.phases["draft"]
        assert draft.calls <= 20 and draft.waits <= 1 and draft.captured > 100
        assert step.phases["judge"].waits <= 1
    assert calls(steps) <= (70 if warped == "warm" else 60)


PUBLISHED: dict[str, dict[str, Any]] = {
    "pairs turn, some channels stay, windows": {
        "layers": 2, "wide": True, "how": {"windows": (9, 0), "rotary_pairs": True, "rates": (1.0, 0.3, 0.1)},
    },
    "feeds what it normalised, norms of queries and keys": {
        "layers": 1, "wide": True, "head_norms": True, "how": {"feeds_normed": True, "normed_residual": True, "entry_norm": EACH},
    },
    "layer norms by head, biases": {
        "layers": 1, "wide": False, "layer_norms": True, "bias": True, "attention_bias": True, "how": {"head_norm": False},
    },
    "an MTP layer with gates": {"layers": 1, "wide": False, "paired": True, "gated": True, "how": {"feeds_normed": True}},
}  # fmt: skip


def published(case: str, target: TextTarget) -> EagleRuntime:
    """A random head under conventions of others, on this target."""
    settings = dict(PUBLISHED[case])
    model, taps = target.model, (1, 1, 0) if settings["wide"] else (target.model.config.num_hidden_layers,)
    how = HeadConventions(taps, **settings.pop("how"))
    embedding, head = (part.weight.detach() for part in (model.get_input_embeddings(), model.get_output_embeddings()))
    vocab, hidden = embedding.shape
    sizes = {"vocab_size": vocab, "heads": 4, "kv_heads": 2, "head_size": 8, "inner": 48}
    config = HeadConfig(hidden=hidden, target_hidden=hidden, how=how, **sizes, **settings)
    generator = torch.Generator().manual_seed(3)
    tensors = {
        name: ("norm" in name and name.endswith("weight")) + 0.3 * torch.randn(shape, generator=generator, dtype=torch.float64)
        for name, shape in config.shapes().items()
    }
    return PublishedEagleHead(
        config, {name: value.to(embedding) for name, value in tensors.items()}, embedding, head, None
    ).runtime()


@pytest.mark.slow
@pytest.mark.parametrize(("case", "warped"), [*zip(PUBLISHED, itertools.cycle(["greedy", "warm"]), strict=False)])
def test_published_heads_draft_from_graphs_as_ours_do(case, warped):
    warp, method = WARPS[warped], get("eagle2")
    values = build(method.parameters, {**BEAM, "rule": "match" if warped == "greedy" else "without_replacement"}, "eagle2")

    def composed(target):
        head = published(case, target)
        return method.compose(values, parts_for(target, warp).using(drafter_weights=lambda kind: head))

    for step in compared(composed, warp):
        draft = step.phases["draft"]
        assert draft.captured > 100 and draft.waits <= 1
        assert draft.calls <= (20 if warped == "greedy" else 100), "a row of the tree is a few calls of the host at a temperature"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "values", "most"),
    [
        ("eagle", {"tree": "published"}, 3),
        ("speculative_sampling", {"gamma": 4}, 3),
        ("easyspec", {"group": 2}, 4),  # its draft is the target's own layers, which copy a new shape too
        ("polybasic", {"middle": "small_draft", "gathered": 2, "depth": 2}, 4),  # one for each pass in the middle
        ("medusa", {"tree": "published", "rule": "typical"}, 3),
        ("traversal", {"shape": "sparse"}, 3),
        ("ddd", {"depth": 8, "width": 6, "nodes": 24, "threshold": "own", "log_mass": -2.0}, 4),
    ],
)
def test_a_step_waits_for_the_device_a_few_times_however_large_its_tree(
    name, values, most
):  # fmt: skip
    for step in counted(name, values, "warm"):
        # A shape that was never seen is copied there by the target, which is not the method's doing.
        assert sum(step.phases[phase].waits for phase in ("draft", "judge", "commit")) <= most


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("speculative_sampling", {"gamma": 4}),  # its draft model is a whole target
        ("polybasic", {"middle": "draft", "drafter": "eagle3", "gathered": 4, "nodes": 4}),
        ("easyspec", {"drafter": "small_draft"}),
        ("not_a_bandit", {}),
        ("falcon", {"nodes": 12}),
        ("owl", {}),
        ("diffuspec", {}),
        ("deer", {}),
        ("eagle", {"tree": "published"}),
        ("medusa", {"tree": "published"}),
    ],
)
def test_a_greedy_step_is_a_few_calls(name, values):
    steps = counted(name, values, "greedy")
    assert calls(steps) <= CALLS


@pytest.mark.slow
def test_an_intermediate_models_rows_outlive_its_next_pass():
    """Replays of its graph overwrite its logits, which are the distributions that the target judges."""
    counted("polybasic", {"middle": "draft", "drafter": "eagle3", "gathered": 5, "nodes": 4}, "warm")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "values"), [("dream", {"depth": 5, "nodes": 20}), ("hivis", {"depth": 5, "nodes": 20}), ("language_only", {})]
)
def test_a_greedy_step_about_a_picture_is_a_few_calls(name, values):
    with emulated_cuda() as device:
        here = vision.world(tier="graph", device="cuda")
        composition, greedy = vision.compose(name, values, here, WARPS["greedy"]), WARPS["greedy"]
        expected = vision.baseline("smolvlm", "eager", torch.float64, greedy)[:TOKENS]
        steps = steps_of(device, here.target, composition, here.prompt, greedy, expected)
    assert calls(steps) <= CALLS


@pytest.mark.slow
@pytest.mark.parametrize("values", [{"depth": 5, "width": 6, "nodes": 24}, {"depth": 3, "width": 4, "nodes": 9}])
def test_a_tree_of_drawn_tokens_asks_once(values):
    for step in counted("eagle3", values, "warm"):
        assert step.phases["draft"].waits <= 1 and step.phases["judge"].waits <= 2


def counted_picture(name: str, values: dict[str, Any], warped: str, guidance: float) -> list[StepCounts]:
    """The same of a whole picture that is drawn for the second time, with the graphs of the first."""
    warp, expected = WARPS[warped], images.World(guidance, 6).draw(name, values, WARPS[warped])
    with emulated_cuda() as device:
        world = images.World(guidance, 6, device="cuda", tier="graph")
        assert world.draw(name, values, warp).ids == expected.ids
        recorder = Recorder(CodeText(world.loaded), "off")
        composition, cells = world.compose(name, values, warp), world.loaded.cells
        return count(device, Decoding(world.target, composition, world.prompt, warp, Noise(7), cells, recorder))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "values", "warped", "guidance"),
    [
        ("eagle", {"tree": "published"}, "warm", 2.0),
        ("eagle2", {"nodes": 12}, "greedy", 1.0),
        ("lantern_pp", {"factor": 3.0, "tree": "57"}, "warm", 1.0),
        ("mulo_sd", {"tau": 0.3, "pool": 4}, "warm", 2.0),
        ("mulo_sd", {"tau": 0.1, "pool": 4, "rows": 2, "radius": 0, "cache": "stale"}, "greedy", 1.0),
        ("speculative_jacobi", {"fill": "random"}, "warm", 2.0),
    ],
)
def test_a_step_of_a_picture_waits_as_rarely(name, values, warped, guidance):
    steps = counted_picture(name, values, warped, guidance)
    for step in steps:
        assert step.total("waits") <= MOST_WAITS
    assert calls(steps) <= PICTURE_CALLS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "values", "warped"),
    [
        ("hybrid", hybrid.BEAM, "greedy"),
        ("hybrid", {"depth": 3, "width": 3, "nodes": 10, "tree": "drawn", "rule": "ratio"}, "warm"),
        ("delta", hybrid.BEAM, "warm"),
    ],
)
def test_a_step_over_recurrent_layers_waits_as_rarely(kind, values, warped):
    warp = hybrid.WARPS[warped]
    expected = hybrid.run(values, hybrid.models(kind), warp, TOKENS)
    with emulated_cuda() as device:
        target, draft = hybrid.models.__wrapped__(kind, device="cuda")  # kept by the name of a device that goes
        steps = steps_of(device, target, hybrid.compose(values, target, draft, warp), hybrid.PROMPT, warp, expected.ids)
    for step in steps:
        assert step.total("waits") <= MOST_WAITS
    assert calls(steps) <= (CALLS if warped == "greedy" else PICTURE_CALLS)


@pytest.mark.slow
def test_another_device_that_had_the_name_before_changes_nothing():
    """What is kept of one device's tensors by its name must not be taken for the next one's."""
    warp, values = WARPS["warm"], {"tree": "published"}
    before = [step.total("waits") for step in counted("eagle", values, "warm")]
    with emulated_cuda():
        target = _target("cuda")
        decode(target, compose("eagle", values, target, warp), PROMPT, TOKENS, warp, 7)
    assert [step.total("waits") for step in counted("eagle", values, "warm")] == before
