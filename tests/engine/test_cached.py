"""What is made once for an object: by one thread of many, and freed with the object."""

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from specviz.engine.cached import cached


class Owner:
    """Anything that can be referred to weakly."""


def test_many_threads_get_the_one_value_of_a_key():
    owner, made, together = Owner(), [], threading.Barrier(8)

    def ask(_):
        together.wait()
        return cached(owner, "key", lambda: made.append(1) or object())

    with ThreadPoolExecutor(8) as threads:
        values = list(threads.map(ask, range(8)))
    assert len(made) == 1 and len(set(map(id, values))) == 1
    assert cached(owner, "other", lambda: None) is None and cached(Owner(), "key", object) is not values[0]


def test_a_value_may_be_made_of_others_of_the_same_owner():
    owner = Owner()
    assert cached(owner, "whole", lambda: cached(owner, "part", lambda: 1) + 1) == 2


def test_nobody_waits_for_what_is_made_for_another_owner():
    making, done = threading.Event(), threading.Event()

    def slow():
        making.set()
        assert done.wait(10)

    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(cached, Owner(), "key", slow)
        assert making.wait(10)
        assert cached(Owner(), "key", lambda: 2) == 2 and not first.done()
        done.set()


def test_values_go_with_their_owner():
    owner = Owner()
    freed = weakref.ref(cached(owner, "key", Owner))
    gc.collect()
    assert freed() is not None
    del owner
    gc.collect()
    assert freed() is None


def test_what_fails_is_made_again():
    owner, problem = Owner(), RuntimeError("no memory")

    def fail():
        raise problem

    with pytest.raises(RuntimeError, match="no memory"):
        cached(owner, "key", fail)
    assert cached(owner, "key", lambda: 3) == 3
