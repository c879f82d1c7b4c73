"""Noise that is independent between places and alike everywhere, and warping at its corners."""

import itertools

import pytest
import torch
from transformers import TopPLogitsWarper

from specviz.engine.sampling import ACCEPT, DRAFT, TARGET, Noise, Warp, draw, keys_below

# Chi-square of 255 degrees of freedom, one time in a million; seeds are fixed, so a test passes always or never.
LIMIT = 375.0


def pairs_apart(first, second):
    """Chi-square of (first, second) against the uniform distribution on 16 x 16 cells."""
    cells = (first * 16).long() * 16 + (second * 16).long()
    expected = first.numel() / 256
    return float(((torch.bincount(cells, minlength=256) - expected) ** 2 / expected).sum())


SIZE = 64_000
PLACES = {
    "next token": lambda noise: (noise(0, TARGET, 5)[:-1], noise(0, TARGET, 5)[1:]),
    "next position": lambda noise: (noise(0, TARGET, 5), noise(0, TARGET, 6)),
    "next seed": lambda noise: (noise(0, TARGET, 5), noise(1, TARGET, 5)),
    "other stream": lambda noise: (noise(0, TARGET, 5), noise(0, DRAFT, 5)),
    "next node": lambda noise: (noise(0, DRAFT, 5, 1), noise(0, DRAFT, 5, 2)),
    "next round": lambda noise: (noise(0, DRAFT, 5, 1), noise(0, DRAFT, 6, 1)),
    "longer place": lambda noise: (noise(0, DRAFT, 5), noise(0, DRAFT, 5, 0)),
    "last seed": lambda noise: (noise(2**63 - 1, TARGET, 5), noise(0, TARGET, 5)),
}


@pytest.mark.parametrize("what", list(PLACES))
def test_noise_of_neighbours_is_independent(what):
    first, second = PLACES[what](lambda seed, *place: Noise(seed).exponential(SIZE, *place).neg().exp())
    assert pairs_apart(first, second) < LIMIT


def test_single_numbers_are_uniform_and_independent_of_each_other():
    coins = [Noise(seed).uniform(ACCEPT, turn, child) for seed in range(20) for turn in range(40) for child in range(20)]
    found = torch.tensor(coins, dtype=torch.float64)
    assert pairs_apart(found[:-1], found[1:]) < LIMIT


def test_the_hash_on_the_host_is_the_hash_on_tensors():
    # A number keyed by one more place is by construction one of the row keyed without it.
    row = Noise(11).exponential(500, ACCEPT, 3).neg().exp().tolist()
    assert [Noise(11).uniform(ACCEPT, 3, child) for child in range(500)] == pytest.approx(row, rel=1e-12)


@pytest.mark.parametrize("seed", [0, 11, 2**62 + 5])
def test_keys_made_on_the_device_are_those_of_the_host(seed):
    noise, numbers = Noise(seed, generation=seed % 2), [0, 1, 7, 63, 2**40]
    for round_number in (0, 3, 2**31):
        key = noise.keys(DRAFT, [(round_number,)])
        host = noise.keys(DRAFT, [(round_number, number) for number in numbers])
        assert torch.equal(keys_below(key, torch.tensor(numbers)), host)


def test_noise_never_reaches_its_ends():
    assert torch.isfinite(Noise(0).gumbel(100_000, TARGET, 1)).all()


def test_a_choice_is_the_largest_log_probability_plus_gumbel_noise():
    logits = 2 * torch.randn(6, 90, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    warp, noise, positions = Warp(0.7, 40, 0.95), Noise(5), [9, 9, 10, 11, 12, 9]
    gumbel = torch.stack([noise.gumbel(90, TARGET, place) for place in positions])
    expected = (warp.log_probabilities(logits) + gumbel).argmax(-1)
    assert torch.equal(warp.choose(logits, positions, noise), expected)


def test_a_choice_follows_its_distribution_and_equals_a_draw():
    logits, warp, noise = torch.tensor([0.3, -1.0, 1.2, 0.0, -0.4]), Warp(0.8), Noise(2)
    p, places = warp.probabilities(logits), list(range(20_000))
    chosen = warp.choose(logits.expand(len(places), -1), places, noise)
    counts = torch.bincount(chosen, minlength=5)
    assert float(((counts - 20_000 * p) ** 2 / (20_000 * p)).sum()) < 33.4  # 4 degrees, one in a million
    assert [draw(p, noise, place) for place in range(300)] == chosen[:300].tolist()


def test_the_same_tokens_are_chosen_in_every_precision():
    logits = 3 * torch.randn(200, 60, generator=torch.Generator().manual_seed(1)).bfloat16()
    wide = [Warp(0.9).choose(logits.to(dtype), range(200), Noise(1)).tolist() for dtype in (torch.float32, torch.float64)]
    assert wide[0] == wide[1] == Warp(0.9).choose(logits, range(200), Noise(1)).tolist()


@pytest.mark.parametrize("warp", [Warp(), Warp(0.8), Warp(1.0, 30), Warp(1.0, 0, 0.9)])
def test_half_precision_is_widened_before_any_exponential(warp):
    logits = torch.randn(3, 500).bfloat16()
    assert warp.probabilities(logits).dtype == torch.float32
    assert torch.allclose(warp.probabilities(logits).sum(-1), torch.ones(3), atol=1e-5)
    assert torch.equal(warp.probabilities(logits), warp.probabilities(logits.float()))


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.999])
def test_a_nucleus_of_thousands_is_found_too(top_p):
    logits = 0.3 * torch.randn(2, 6000, generator=torch.Generator().manual_seed(3))
    ours = Warp(1.0, 0, top_p).probabilities(logits)
    theirs = TopPLogitsWarper(top_p)(None, logits).softmax(-1)
    assert torch.equal(ours > 0, theirs > 0)
    assert torch.allclose(ours, theirs, atol=1e-7)


def test_ties_at_the_edge_are_kept_whatever_their_order():
    logits = torch.tensor([2.0, 1.0, 1.0, 1.0, 0.0])
    for order in itertools.islice(itertools.permutations(range(5)), 0, 120, 7):
        mixed = logits[list(order)]
        for warp in (Warp(1.0, 2), Warp(1.0, 0, 0.5)):
            assert (warp.probabilities(mixed) > 0).tolist() == (mixed >= 1.0).tolist()


def test_one_row_has_the_distribution_it_has_among_others():
    # Speculative runs score many rows where the autoregressive run scores one: the distribution must not hang on company.
    logits = torch.randn(9, 3000, generator=torch.Generator().manual_seed(4))
    logits[3] *= 0.01
    for warp in (Warp(0.8), Warp(0.8, 50), Warp(0.8, 0, 0.9), Warp(1.2, 100, 0.7)):
        whole = warp.probabilities(logits)
        assert all(torch.equal(whole[row], warp.probabilities(logits[row])) for row in range(9))


COLDEST = (5e-324, 1e-300, 1e-45, 1e-38, 1e-37, 1e-10, 9e-7)


@pytest.mark.spread(12)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("temperature", COLDEST)
@pytest.mark.parametrize("cut", [{}, {"top_k": 3}, {"top_p": 0.9}])
def test_next_to_no_temperature_takes_the_likeliest_token(temperature, dtype, cut):
    rows = torch.randperm(64, generator=torch.Generator().manual_seed(0)).view(4, 16)
    for logits in (rows - 20, rows * 512 - 9000, (rows == rows.amax(-1, keepdim=True)) * 1e4):
        warp, logits = Warp(temperature, **cut), logits.to(dtype)
        assert torch.equal(warp.probabilities(logits), Warp().probabilities(logits))
        assert warp.choose(logits, [3, 4, 5, 6], Noise(0)).tolist() == logits.argmax(-1).tolist()
        assert not warp.log_probabilities(logits).isnan().any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("temperature", COLDEST)
def test_next_to_no_temperature_leaves_equals_equal(temperature, dtype):
    found = Warp(temperature).probabilities(torch.tensor([7.0, 9.0, -torch.inf, 9.0], dtype=dtype))
    assert found.tolist() == [0.0, 0.5, 0.0, 0.5]
