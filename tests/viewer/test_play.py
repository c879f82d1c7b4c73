"""The Play tab's arithmetic against the engine's own: accept rules, enumerated distributions, costs and speed-ups."""

import json
import re

import numpy
import pytest
import torch

from specviz.acceptance import relaxed
from specviz.acceptance.relaxed import Limit, Relaxed, nearest_codes, region
from specviz.acceptance.residual import remaining
from specviz.acceptance.tree_probabilities import NodeTable
from specviz.drafting.trees.dynamic import SpeedupPolicy
from specviz.engine.cost import CostCurve, best_size
from specviz.engine.interfaces import Context, Draft, Proposal, TargetPass
from specviz.engine.sampling import Warp
from specviz.engine.tree import DraftTree
from specviz.paths import ASSETS
from specviz.trace import metrics, store
from tests.support.traces.samples import sample_trace

LESSONS = ASSETS / "lessons"
RANDOM = numpy.random.default_rng(7)
CHANCE, BILL = 'const chance = modules["play/chance"];', 'const bill = modules["play/bill"];'


def laws(tokens=6, zeros=0):
    """A random distribution, from flat to sharp, in which so many tokens have no mass."""
    mass = numpy.exp(RANDOM.normal(size=tokens) * RANDOM.uniform(0.2, 2.5))
    mass[RANDOM.permutation(tokens)[:zeros]] = 0
    return mass / mass.sum()


PAIRS = [(laws(zeros=p % 3), laws(zeros=p % 4)) for p in range(24)]


def listed(*pair):
    return [one.tolist() for one in pair]


@pytest.mark.parametrize("dense", [False, True])
def test_each_sibling_is_judged_as_the_engine_judges_it(node, dense):
    body = (
        CHANCE
        + """
    return given.map(([p, q, order]) => {
      let [r, left] = [p, q];
      return order.map((token) => {
        const pass = chance.threshold(r[token], left[token]);
        ({ r, q: left } = chance.rejected(r, left, token));
        return [pass, chance.sum(r) > 0 ? r : p];
      });
    });
    """
    )
    orders = [RANDOM.permutation(numpy.flatnonzero(q))[:3].tolist() for _, q in PAIRS]
    found = node(body, [[*listed(p, q), order] for (p, q), order in zip(PAIRS, orders, strict=True)])
    for (p, q), order, story in zip(PAIRS, orders, found, strict=True):
        target = torch.from_numpy(p)
        left = remaining(target, NodeTable(target, torch.from_numpy(q), None if dense else torch.arange(6), None), True)
        for token, (threshold, rest) in zip(order, story, strict=True):
            assert threshold == pytest.approx(left.threshold(token), abs=1e-12)
            left.reject(token)
            expected = left.distribution().numpy()
            assert rest == pytest.approx((expected / expected.sum()).tolist(), abs=1e-9)


@pytest.mark.parametrize("many", [1, 2, 3, 4])
def test_siblings_emit_exactly_p_and_judged_by_p_every_time_they_do_not(node, many):
    body = (
        CHANCE
        + f"""
    return given.map(([p, q]) => [chance.siblings(p, q, {many}), chance.siblings(p, q, {many}, true)].map(
      ({{ emitted, accepted }}) => [chance.distance(emitted, p), chance.sum(emitted), chance.sum(accepted)]));
    """
    )
    exact, naive = zip(*node(body, [listed(*pair) for pair in PAIRS]), strict=True)
    for (apart, total, accepted), (p, q) in zip(exact, PAIRS, strict=True):
        assert apart < 1e-12 and total == pytest.approx(1, abs=1e-12)
        assert accepted >= numpy.minimum(p, q).sum() - 1e-12
    assert max(apart for apart, _, _ in naive) > 0.05 if many > 1 else max(apart for apart, _, _ in naive) < 1e-12


def test_certain_guesses_are_accepted_as_often_as_the_target_wants_them(node):
    body = CHANCE + "return given.map(([p, q]) => [1, 2, 3].map((many) => chance.likeliest(p, q, many)));"
    for (p, q), found in zip(PAIRS, node(body, [listed(*pair) for pair in PAIRS]), strict=True):
        order = numpy.argsort(-q, kind="stable")[:3].tolist()
        target, offered = torch.from_numpy(p), torch.tensor(order)
        left, alive = remaining(target, NodeTable(target[offered], torch.ones(3), offered, None), False), 1.0
        for token, chance in zip(order, found, strict=True):
            alive *= 1 - left.threshold(token)
            left.reject(token)
            assert chance == pytest.approx(1 - alive, abs=1e-9)


class Unlucky:
    """Noise that rejects whatever can be rejected."""

    def uniform(self, *_):
        return 1.0 - 1e-16


@pytest.mark.parametrize("factor", [1.0, 2.0, 5.0])
def test_look_alikes_are_pooled_as_the_engine_pools_them(node, monkeypatch, factor):
    caught = []
    monkeypatch.setattr(relaxed, "draw", lambda distribution, *_: caught.append(distribution) or 0)
    places = [0, 0.18, 0.4, 0.56, 0.82, 1]
    near = nearest_codes(torch.tensor(places)[:, None])
    body = (
        CHANCE
        + f"""
    const near = chance.nearest({places}, 3);
    const regions = (p) => p.map((_, one) => chance.region(p, one, near[one], {factor}));
    return [near, given.map(([p, q]) => [chance.relaxed(p, q, near, {factor}), regions(p)])];
    """
    )
    lists, found = node(body, [listed(*pair) for pair in PAIRS])
    assert lists == near[:, :3].tolist()
    for (p, q), (result, regions) in zip(PAIRS, found, strict=True):
        emitted, accepted = numpy.zeros(6), 0.0
        for code in numpy.flatnonzero(q).tolist():
            tree, target = DraftTree.of([0, code], [-1, 0]), torch.from_numpy(p)
            with numpy.errstate(divide="ignore"):
                logits = torch.from_numpy(numpy.log(p))[None].repeat(2, 1)
            context = Context([0], 1, 0, Warp(1.0), Unlucky(), torch.device("cpu"), 9)
            rule = Relaxed(near, Limit(factor=factor), 3)
            verdict = rule.judge(Draft(tree, {0: Proposal(torch.from_numpy(q))}), TargetPass(logits), context)
            assert regions[code] == region(target, code, near[code, :3], rule.limit)[0].tolist()
            share = q[code] * verdict.thresholds[1]
            emitted[code] += share
            accepted += share
            rest = caught[-1].numpy()
            if verdict.thresholds[1] < 1:
                emitted += (q[code] - share) * rest / rest.sum()
        assert result["accepted"] == pytest.approx(numpy.minimum(q, result["pooled"]).tolist())
        assert sum(result["accepted"]) == pytest.approx(accepted, abs=1e-9)
        moved = numpy.abs(numpy.array(result["emitted"]) - p).sum() / 2
        assert moved == pytest.approx(accepted - numpy.minimum(p, q).sum(), abs=1e-9), "acceptance is bought one for one"
        assert result["emitted"] == pytest.approx(emitted.tolist(), abs=1e-9)


def test_a_dragged_bar_takes_from_the_others_but_the_pinned(node):
    body = (
        CHANCE
        + """
    const law = [0.1, 0.2, 0.3, 0.4];
    return [chance.changed(law, 0, 0.4), chance.changed(law, 0, 0.9, [false, true]), chance.changed([0, 0, 1], 2, 0.5)];
    """
    )
    plain, pinned, empty = node(body)
    assert plain == pytest.approx([0.4, 0.4 / 3, 0.2, 0.8 / 3])
    assert pinned == pytest.approx([0.8, 0.2, 0, 0])
    assert empty == pytest.approx([0.25, 0.25, 0.5])


def test_a_throw_is_a_draw_of_p(node):
    body = (
        CHANCE
        + """
    const counts = given[0].map(() => 0);
    let state = 1;
    const random = () => (state = (state * 48271) % 2147483647) / 2147483647;
    for (let each = 0; each < 60000; each += 1) counts[chance.thrown(given[0], given[1], { many: 3, random }).token] += 1 / 60000;
    return chance.distance(counts, given[0]);
    """
    )
    assert node(body, listed(*PAIRS[4])) < 0.01


WIDTHS, MILLISECONDS = (1, 2, 8, 32, 64), (2.0, 2.2, 2.4, 3.6, 7.0)
SETTING = {"rest": 0.0, "width": 1, "second": 0, "batch": 1, "curve": {"rows": WIDTHS, "cost": [one / 2 for one in MILLISECONDS]}}


def test_a_pass_costs_what_the_engine_says(node):
    curve = CostCurve(WIDTHS, MILLISECONDS)
    rows = [1, 2, 3, 7, 8, 40, 64, 200]
    assert node(BILL + "return given[1].map((rows) => bill.passCost(given[0], rows));", [SETTING["curve"], rows]) == (
        pytest.approx([curve.at(one) / 2 for one in rows])
    )


def test_the_first_curve_was_measured(node):
    """On two cores; the page replaces it with what its own machine has measured."""
    first = node('return modules["play/machines"].MACHINES[0];')
    rows = json.loads((ASSETS / "results.json").read_text("utf-8"))["tables"]["passes"]["rows"].values()
    times = [time for _, time in rows]
    assert first["curve"]["rows"] == list(map(int, dict(rows))) and first["curve"]["cost"] == sorted(first["curve"]["cost"])
    assert first["curve"]["cost"] == pytest.approx([time / times[0] for time in times])
    assert "measured 2026" in first["source"]


@pytest.mark.parametrize("forward", [0.0, 0.07, 0.3])
def test_the_draft_length_that_pays_most_is_the_engine_s(node, forward):
    curve = CostCurve(WIDTHS, MILLISECONDS)
    accepts = [RANDOM.uniform(0.2, 0.98, size=10).tolist() for _ in range(30)]
    settings = [SETTING | {"accept": accept, "draft": forward} for accept in accepts]
    found = node(BILL + "return given.map(bill.speedups);", settings)
    policy = SpeedupPolicy.on(curve, forward=forward)
    for accept, one in zip(accepts, found, strict=True):
        survival = numpy.cumprod(accept)
        assert one["best"] == policy.fixed(range(1, 11), survival.tolist())
        assert forward or one["best"] == best_size(survival.tolist(), curve)
        spent = [curve.at(1 + depth) / 2 + depth * forward for depth in range(11)]
        assert one["gains"] == pytest.approx((numpy.cumsum([1, *survival]) / spent).tolist())


def test_lengths_of_a_pass_sum_to_one_and_their_mean_is_tau(node):
    accept = [0.9, 0.5, 0.7]
    lengths, tau = node(BILL + "return [bill.lengths(given), bill.tau(given)];", accept)
    assert lengths == pytest.approx([0.1, 0.45, 0.9 * 0.5 * 0.3, 0.9 * 0.5 * 0.7])
    assert tau == pytest.approx(sum(count * share for count, share in enumerate(lengths, start=1)))


@pytest.mark.parametrize("seed", [0, 3])
def test_a_run_s_figures_are_those_of_its_metrics(node, seed):
    trace = sample_trace(30, seed=seed)
    body = BILL + "const read = feed(); read.accept(given); return bill.ofRun(read.trace);"
    found = node(body, store.text(trace))
    summary = metrics.summarise(trace.steps, "eos", 0, trace.baseline)
    verdict = metrics.compared_speed(trace)
    assert found["predicted"] == pytest.approx(summary["predicted_speedup"])
    assert found["measured"] == pytest.approx(verdict.speedup)
    assert found["predicted"] == pytest.approx(found["tau"] / (found["draft"] + found["verify"] + found["rest"]))
    uncut = [step for step in trace.steps if step.cut is None]
    assert 1 + float(numpy.cumprod(found["accept"]).sum()) == pytest.approx(1 + sum(step.accepted for step in uncut) / len(uncut))


def test_lessons_link_to_levels_that_there_are(node):
    named = {link for file in LESSONS.glob("*.json") for link in re.findall(r"tab=play&play=([\w-]+)", file.read_text("utf-8"))}
    assert named and named <= set(node('return modules["play/mount"].LEVELS.map(([name]) => name);'))
