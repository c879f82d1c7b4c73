"""Choosers: NormalHedge against its definition, bandits against theirs, and who notices a change of subject how soon."""

import math
import random

import pytest

from specviz.methods.bandits import ExponentialWeights, UpperConfidence
from specviz.methods.hedgespec import Fixed, NormalHedge, normal_hedge

ARMS = 5


def test_normal_hedge_satisfies_its_equation():
    regrets = [3.0, 1.0, -2.0, 0.5]
    weights = normal_hedge(regrets)
    assert weights[2] == 0 and sum(weights) == pytest.approx(1) and weights[0] > weights[1] > weights[3] > 0
    # c can be read off two weights: w_i / w_j = R_i / R_j * exp((R_i**2 - R_j**2) / 2c)
    c = (regrets[0] ** 2 - regrets[1] ** 2) / (2 * math.log(weights[0] / weights[1] * regrets[1] / regrets[0]))
    assert sum(math.exp(max(0, one) ** 2 / (2 * c)) for one in regrets) / 4 == pytest.approx(math.e)


@pytest.mark.parametrize("regrets", [[0.0] * 3, [-1.0, -5.0, -0.1]])
def test_nobody_ahead_means_everybody_alike(regrets):
    assert normal_hedge(regrets) == [1 / 3] * 3


@pytest.mark.parametrize("scale", [1e-9, 1e-3, 1e6])
def test_weights_do_not_hang_on_the_unit_of_the_losses(scale):
    plain = normal_hedge([3.0, 1.0, -2.0, 0.5])
    assert normal_hedge([scale * one for one in (3.0, 1.0, -2.0, 0.5)]) == pytest.approx(plain, rel=1e-6)


def test_one_arm_alone_ahead_gets_everything():
    assert normal_hedge([2.0, -1.0, -1.0]) == pytest.approx([1.0, 0.0, 0.0])


def test_the_bonus_counts_an_arms_own_rounds():
    """With a count of all rounds in it, as it was once published, the bonus is the same for all and nothing is explored."""
    chooser = UpperConfidence(2, doubt=2.0)
    chooser.update_reward(0, 0.5)
    chooser.update_reward(1, 0.45)
    for _ in range(40):
        chooser.update_reward(0, 0.5)
    assert chooser.probabilities() == [0.0, 1.0]


def test_every_arm_is_tried_once_first():
    chooser, tried = UpperConfidence(4), []
    for _ in range(4):
        arm = chooser.probabilities().index(1.0)
        tried.append(arm)
        chooser.update_reward(arm, 0.9)
    assert tried == [0, 1, 2, 3]


def test_exp3_divides_a_reward_by_its_probability():
    chooser = ExponentialWeights(3, explore=0.3)
    chooser.update_reward(1, 0.5)
    assert chooser.gains == pytest.approx([0.0, 1.5, 0.0])
    assert min(chooser.probabilities()) >= 0.1 - 1e-12 and sum(chooser.probabilities()) == pytest.approx(1)


def test_a_fixed_arm_learns_nothing():
    chooser = Fixed(3, 2)
    chooser.learn([0.0, 0.0, 1.0])
    chooser.update_reward(2, 0.0)
    assert chooser.probabilities() == [0.0, 0.0, 1.0]


def regret(chooser, seed):
    """A stream of rounds in which arm d is right with 0.8 in domain d and with 0.35 elsewhere, chains of 5. Regret is in
    expected tokens a round against always knowing the domain."""
    generator, lost = random.Random(seed), 0.0
    domains = [domain for domain in (0, 3, 1, 4, 2, 0) for _ in range(60)]
    for domain in domains:
        arm = generator.choices(range(ARMS), chooser.probabilities())[0]
        right = [0.8 if one == domain else 0.35 for one in range(ARMS)]
        lengths = [sum(p**k for k in range(1, 6)) for p in right]
        lost += lengths[domain] - lengths[arm]
        accepted = []
        for p in right:
            run = 0
            while run < 5 and generator.random() < p:
                run += 1
            accepted.append(run)
        if chooser.full_information:
            chooser.learn([1 - one / 5 for one in accepted])
        chooser.update_reward(arm, accepted[arm] / 5)
    return lost / len(domains)


@pytest.mark.slow
def test_full_information_regrets_less_than_either_bandit_on_streams_that_switch():
    rows = {}
    for seed in range(4):
        for name, chooser in (
            ("hedge", NormalHedge(ARMS, 0.98, 1.0)),
            ("published", NormalHedge(ARMS)),
            ("ucb", UpperConfidence(ARMS, 0.5)),
            ("fading ucb", UpperConfidence(ARMS, 0.5, 0.98)),
            ("exp3", ExponentialWeights(ARMS, 0.15)),
            ("fading exp3", ExponentialWeights(ARMS, 0.5, 0.9)),
            ("fixed", Fixed(ARMS, 0)),
        ):
            rows.setdefault(name, []).append(regret(chooser, seed))
    means = {name: sum(found) / len(found) for name, found in rows.items()}
    ours = means.pop("hedge")
    assert all(ours < 0.35 * other for other in means.values()), (ours, means)


def test_no_arm_falls_further_behind_than_its_debt():
    chooser = NormalHedge(2, debt=0.5)
    for _ in range(50):
        chooser.learn([0.0, 1.0])
    assert chooser.regrets[1] == -0.5 and chooser.probabilities() == [1.0, 0.0]
