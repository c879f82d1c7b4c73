"""Which codes of a block fail, which neighbours they take with them, and what hangs together: by hand on small grids."""

import torch

from specviz.methods.mulo_sd.local_verification import connected_components, dilate, neighbour_mass


def test_pooled_mass_is_a_codes_own_and_its_look_alikes():
    distribution = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1]])
    near = torch.tensor([[1, 2], [0, 3], [3, 0], [2, 1]])
    codes = torch.tensor([1, 3])
    assert torch.allclose(neighbour_mass(distribution, codes, near[:, :0]), torch.tensor([0.2, 0.1]))
    assert torch.allclose(neighbour_mass(distribution, codes, near[:, :1]), torch.tensor([0.3, 0.2]))
    assert torch.allclose(neighbour_mass(distribution, codes, near), torch.tensor([0.7, 0.3]))


def test_a_failure_takes_its_neighbours_but_never_what_came_before_the_first_failure():
    assert dilate([9], 0, 15, 4, 0) == [9]
    assert dilate([9], 0, 15, 4, 1) == [9, 10, 12, 13, 14]  # 8 and the row above come before it
    assert dilate([9, 2], 0, 15, 4, 1) == [2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14]
    assert dilate([], 0, 15, 4, 2) == []


def test_neighbours_do_not_wrap_round_the_edge_or_leave_the_block():
    assert dilate([7], 0, 15, 4, 1) == [7, 10, 11]
    assert dilate([4], 4, 7, 4, 1) == [4, 5]
    assert dilate([12], 12, 15, 4, 3) == [12, 13, 14, 15]


def test_cells_that_touch_by_a_corner_are_one_island():
    assert connected_components([0, 5, 10], 4) == [[0, 5, 10]]
    assert connected_components([3, 4], 4) == [[3], [4]]  # the end of a row does not touch the start of the next
    assert connected_components([0, 1, 3, 7, 12], 4) == [[0, 1], [3, 7], [12]]
    assert connected_components([], 4) == []
