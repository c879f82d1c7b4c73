"""What counts as recognised in a description of a picture, and what the included model recognises at least."""

from collections import Counter
from statistics import mean

import pytest

from specviz.bench.recognition import listed, shares


def test_things_are_listed_once_each_whatever_else_is_said_of_them():
    said = (
        "The picture shows two things on a white background. At the top there is a cat. A red circle is on the left. "
        "The cat is right of the circle. One of the things is a shape and one is not. The largest thing is the cat."
    )
    assert listed(said) == Counter({"cat": 1, "circle": 1})


@pytest.mark.model
def test_the_included_model_recognises_half_of_what_other_programs_draw():
    found = {column: mean(share for values in kinds.values() for share in values) for column, kinds in shares(4).items()}
    assert found["names"] > 0.45 and found["colours"] > 0.6 and found["left or right"] > 0.7
