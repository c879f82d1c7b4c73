"""A shape that grew on a device is the shape with the same parents, and a pass over it gives the same rows."""

import pytest
import torch

from specviz.engine.state_space import sources_of
from specviz.engine.tree import DraftTree, GrownShape, TreeShape
from tests.support.emulated_cuda import emulated_cuda
from tests.support.tiny.text import tiny_target

PARENTS = (-1, 0, 0, 0, 2, 2, 1, 4, 6)
LEVELS = ([0, 0, 0], [1, 1, 0], [0, 2])
"""The same by rows of the level above."""
TOKENS = [3, 7, 1, 4, 9, 2, 5, 8, 6]


def grown():
    shape = GrownShape.root("cpu")
    for rows in LEVELS:
        shape = shape.below(torch.tensor(rows))
    return shape


def test_a_grown_shape_is_the_one_with_the_same_parents():
    shape, plain = grown(), TreeShape(PARENTS)
    assert len(shape) == len(plain) and shape.depths == plain.depths
    assert torch.equal(shape.ancestors_on(torch.device("cpu")), plain.ancestors)
    assert shape.parents == PARENTS and shape.children == plain.children and shape.path(8) == plain.path(8)
    assert torch.equal(shape.ancestors, plain.ancestors)


@pytest.mark.parametrize("taps", [2, 4, 6])
def test_its_convolution_reads_what_that_of_the_plain_shape_reads(taps):
    here = torch.device("cpu")
    assert torch.equal(sources_of(grown(), taps, here), sources_of(TreeShape(PARENTS), taps, here))


def test_tokens_and_parents_are_told_in_one_copy():
    with emulated_cuda() as device:
        shape = GrownShape.root("cuda").below(torch.zeros(2, dtype=torch.long, device="cuda"))
        tree = DraftTree(shape, torch.ones(3, dtype=torch.long, device="cuda"))
        assert device.fresh().waits == 0
        assert tree.host_tokens == (1, 1, 1) and tree.shape.parents == (-1, 0, 0) and tree.shape.children[0] == (1, 2)
        assert device.fresh().waits == 1


@pytest.mark.parametrize("tier", ["eager", "graph"])
def test_a_pass_over_it_gives_the_same_rows(tier):
    session = tiny_target(tier, torch.float64).open(64)
    session.prefill([5, 9, 2])
    plain = session.score(DraftTree.of(TOKENS, PARENTS)).logits.clone()
    session.rewind(session.length)
    other = session.score(DraftTree(GrownShape.root("cpu"), torch.tensor(TOKENS[:1]))).logits.clone()
    session.rewind(session.length)
    again = session.score(DraftTree(grown(), torch.tensor(TOKENS))).logits
    assert torch.allclose(again, plain, atol=1e-12) and torch.allclose(other, plain[:1], atol=1e-12)
