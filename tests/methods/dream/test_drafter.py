"""The drafter that looks across, against its network run from scratch: gates, siblings, patches left out, arcs."""

import pytest
import torch

from specviz.drafting.networks.cross_net import CrossRuntime
from specviz.methods.dream.drafter import CrossDrafter
from specviz.targets.attention_maps import importance, most_attended, text_part
from tests.support.emulated_cuda import emulated_cuda
from tests.support.rounds import context
from tests.support.worlds.vision import cross_net, decoded, world
from tests.support.worlds.witness import Witness, drafting, hidden_states


def drafter_of(here, net, share=0.5):
    drafter = CrossDrafter(CrossRuntime(net), here.layout, here.target, share)
    return drafter, drafter.reads


def expected(net, words, thoughts, places, drafted):
    """Logits after ``drafted`` by the network's own whole pass; its output stands in for each thought of a drafted token."""
    thoughts = thoughts[:-1]
    for step in range(len(drafted) + 1):
        output = net.whole(words, torch.cat((thoughts, torch.full_like(words[:1], 1e3))), places)[0][-1:]
        if step < len(drafted):
            words = torch.cat((words, net.embedding[drafted[step]][None]))
            thoughts = torch.cat((thoughts, output))
            places = torch.cat((places, places[-1:] + 1))
    return net.logits(output)[0]


def audit(here, net, witness, kept):
    def truth(ids, path):
        words, thoughts = hidden_states(here, ids)
        places = torch.tensor(kept + list(range(here.layout.length, len(ids))))
        return expected(net, words[places], thoughts[places], places, path)

    return witness.error(truth)


@pytest.mark.spread(1)
@pytest.mark.parametrize("share", [1.0, 0.5])
@pytest.mark.parametrize("kind", ["smolvlm", "llava"])
def test_every_answer_is_the_networks_own_from_scratch(kind, share):
    here = world(kind)
    net = cross_net(here.tiny.model)
    drafter, taps = drafter_of(here, net, share)
    witness = Witness(drafter)
    run = drafting(witness, here.target, here.prompt, taps)
    kept = [place for place in range(here.layout.length) if place not in set(here.layout.visual) - set(drafter._kept_places)]
    assert len(drafter._kept_places) == round(share * len(here.layout.visual))
    assert len(witness.answers) > 20
    assert audit(here, net, witness, kept) < 1e-9
    told = {note.type: note.data for note in run.steps[0].notes}["visual_tokens"]
    assert told["drafter"] == len(kept) and sum(count for _, count in told["kept"]) == len(drafter._kept_places)


def test_the_patches_that_stay_are_those_the_target_looks_at_most():
    here = world("llava")
    drafter, taps = drafter_of(here, cross_net(here.tiny.model), 0.25)
    drafting(drafter, here.target, here.prompt, taps, 2)
    session = here.target.open(64, taps)
    hidden = session.prefill(here.prompt[:-1]).hidden
    rows = torch.arange(len(here.prompt) - 1)
    weights = importance(text_part(here.tiny.model), hidden, rows, here.layout.visual)
    assert list(drafter._kept_places) == [here.layout.visual[one] for one in most_attended(weights, 0.25)]


@torch.inference_mode()
def test_siblings_never_leak_into_each_other_through_the_cross_attention():
    """What is said after a node is the same whoever its siblings are, and whatever they thought."""
    here = world()
    drafter, taps = drafter_of(here, cross_net(here.tiny.model))
    session = here.target.open(64, taps)
    prefill = session.prefill(here.prompt[:-1])
    now = context(here.prompt, story=False)
    found = []
    for siblings in ([], [30, 31], [77, 12]):
        drafter.begin(now, prefill)
        levels, rows = drafter.levels(now), len(siblings) + 1
        levels.ask()
        first = levels.ask(torch.tensor([*siblings, 20]), torch.zeros(rows, dtype=torch.long))
        below = levels.ask(torch.tensor([*[40] * len(siblings), 50]), torch.arange(rows))
        found.append((first[-1], below[-1]))
    for other in found[1:]:
        assert torch.allclose(found[0][0], other[0], atol=1e-12)
        assert torch.allclose(found[0][1], other[1], atol=1e-12)


def test_arcs_tell_what_a_row_looked_at():
    here = world("llava")
    net = cross_net(here.tiny.model)
    drafter, taps = drafter_of(here, net, 0.5)
    run = drafting(drafter, here.target, here.prompt, taps, 3)
    note = {note.type: note.data for note in run.steps[0].notes}["attention_entropy"]
    assert [len(note["entropy"]), len(note["entropy"][0])] == [3, here.layout.length - 1]
    assert set(note["chosen"]) <= set(note["middle"]) == {1}
    words, thoughts = hidden_states(here, here.prompt)
    kept = [place for place in range(here.layout.length) if place not in set(here.layout.visual) - set(drafter._kept_places)]
    places = torch.tensor(kept)
    x = net.enter(words[places])
    later = torch.ones(len(kept), len(kept), dtype=torch.bool).triu(1)
    net.reach(64)
    x = net.within(net.first, x, places, *net.keys_values(net.first, x, places), later)
    nothing, known = net.nothing(), net.thoughts(thoughts[places][:-1])
    looks = net.weights(x[-1:], torch.cat((nothing[0], known[0])), torch.zeros(1, len(kept), dtype=torch.bool))[0]
    root = note["looks"][0]
    assert root["tokens"] == [] and len(note["looks"]) > 6
    assert {place for place, _ in root["at"]} <= set(drafter._kept_places)
    for place, weight in root["at"]:
        assert weight == pytest.approx(float(looks[1 + kept.index(place)]), abs=2e-4)
    assert root["picture"] == pytest.approx(sum(float(looks[1 + kept.index(one)]) for one in drafter._kept_places), abs=2e-4)
    later_note = {note.type: note.data for note in run.steps[1].notes}["attention_entropy"]
    assert "entropy" not in later_note and later_note["looks"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["smolvlm", "llava"])
def test_rounds_in_graphs_draft_and_tell_the_same(kind):
    def run(device, tier):
        here = world(kind, tier, device=device)
        steps = decoded("dream", {"depth": 3, "width": 5, "nodes": 12}, here, budget=8).steps
        told = [{note.type: note.data for note in step.notes} for step in steps]
        return [
            ([node.token for node in step.nodes], notes["attention_entropy"]["looks"])
            for step, notes in zip(steps, told, strict=True)
        ]

    expected = run("cpu", "eager")
    with emulated_cuda():
        found = run("cuda", "graph")
    assert found == expected
    assert all(len(looks) > 1 for _, looks in found)
