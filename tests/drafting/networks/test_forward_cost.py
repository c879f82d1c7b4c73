"""A drafter's forward is measured once for a network and a width, and follows the network."""

import pytest

from specviz.drafting.networks import forward_cost as measuring
from specviz.drafting.networks.forward_cost import forward_cost
from tests.support.tiny.text import tiny_target
from tests.support.worlds.feature import tiny_net


def test_a_forward_is_measured_once_for_each_network_and_width(monkeypatch):
    model = tiny_target().model
    first, second = (tiny_net(model, wide, 40).runtime() for wide in (True, False))
    found = forward_cost(first, 3)
    assert 0 < found < 1000
    monkeypatch.setattr(measuring, "_measure", lambda network, rows: 1000.0 + rows)
    assert forward_cost(first, 3) == found, "kept"
    assert (forward_cost(first, 5), forward_cost(second, 3)) == (1005.0, 1003.0)


def test_the_clock_stands_around_the_forward_and_its_head(monkeypatch):
    network = tiny_net(tiny_target().model, True, 40).runtime()
    clock = [0.0]
    monkeypatch.setattr(measuring.time, "perf_counter", lambda: clock[0])
    head, rows = network.logits, []

    def slow(outputs):
        clock[0] += 0.005
        rows.append(len(outputs))
        return head(outputs)

    monkeypatch.setattr(network, "logits", slow)
    assert forward_cost(network, 4) == pytest.approx(5.0)
    assert set(rows) == {4}
