"""What counts as recognised in a description of a picture."""

from collections import Counter

from specviz.bench.recognition import listed


def test_things_are_listed_once_each_whatever_else_is_said_of_them():
    said = (
        "The picture shows two things on a white background. At the top there is a cat. A red circle is on the left. "
        "The cat is right of the circle. One of the things is a shape and one is not. The largest thing is the cat."
    )
    assert listed(said) == Counter({"cat": 1, "circle": 1})
