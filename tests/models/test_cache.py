"""Loaded models are kept as far as there is memory, and made once however many ask."""

import threading

import pytest

from specviz.models.cache import ModelCache


class Word(str):
    """Text that can be forgotten."""


def test_a_thing_is_made_once_and_the_oldest_goes_first():
    shelf = ModelCache(lambda place: 20)
    made = []

    def get(name):
        return shelf.get((name, "float32"), lambda: made.append(name) or Word(name), lambda: 10)

    for name in ("a", "b", "a", "c", "a", "b"):
        assert get(name) == name
    assert made == ["a", "b", "c", "b"]


def test_releasing_forgets_by_name_or_all():
    shelf = ModelCache()
    first = shelf.get(("a", "float32"), object)
    other = shelf.get(("b", "float32"), object)
    shelf.release("a")
    assert shelf.get(("b", "float32"), object) is other
    assert shelf.get(("a", "float32"), object) is not first
    shelf.release()
    assert shelf.get(("b", "float32"), object) is not other


def test_threads_that_want_the_same_thing_share_it():
    shelf = ModelCache()
    entered, go_on = threading.Event(), threading.Event()
    made = []
    found = []

    def make():
        made.append(1)
        entered.set()
        assert go_on.wait(30)
        return object()

    threads = [threading.Thread(target=lambda: found.append(shelf.get(("a",), make))) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert entered.wait(30)
    assert shelf.get(("b",), lambda: "other is not kept waiting") == "other is not kept waiting"
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert len(made) == 1 and len(found) == 4 and len({id(thing) for thing in found}) == 1


def test_a_failure_is_not_kept():
    shelf = ModelCache()

    def fail():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        shelf.get(("a",), fail)
    assert shelf.get(("a",), lambda: 5) == 5
