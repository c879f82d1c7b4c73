"""A block repaired on the device: what deciding wave by wave on the host gives, on every device, note for note."""

import pytest
from msgspec import to_builtins

from specviz.engine.sampling import Warp
from specviz.methods.mulo_sd import local_verification
from specviz.methods.mulo_sd.local_verification import schedule
from tests.support.emulated_cuda import emulated_cuda
from tests.support.worlds.image import World

TIERS = ("eager", "graph")
WARPS = {"greedy": Warp(), "nucleus": Warp(1.1, top_p=0.9)}
VALUES = {
    "wide islands": {"tau": 0.3, "pool": 4},
    "lone islands": {"tau": 0.1, "pool": 4, "rows": 2, "radius": 0},
    "stale": {"tau": 0.1, "pool": 4, "rows": 2, "radius": 0, "cache": "stale"},
    "all again": {"tau": 1.1, "rows": 2},
    "all kept": {"tau": 0.0},
}


def recorded(run):
    """All that a trace says of the steps but their times."""
    return [{**to_builtins(step), "time": None} for step in run.steps]


class NodeByNode(local_verification._Repair):
    """The same repair with the host asking after every wave: sets of nodes, and passes over just those that are needed."""

    def take(self, session, draft, scored, context, rewrite):
        super().take(session, draft, scored, context, rewrite)
        self._context, self._last = context, len(draft.tree) - 1

    def run(self, islands):
        self.fresh, self.stale, self.ran, last = set(), set(), 1, self._last
        left, wave, drawn = [list(island) for island in islands], 0, {}
        while left:
            wave += 1
            heads = [island.pop(0) for island in left]
            left = [island for island in left if island]
            if again := self.stale & {head - 1 for head in heads}:
                self.passed(sorted(again | {node for node in self.fresh if node < max(again)}))
            for head in heads:
                place = self._context.position + head
                code = int(self._context.warp.choose(self._logits[head - 1][None], [place], self._context.noise))
                drawn[head] = wave
                if code != int(self._tokens[head]):
                    self._tokens[head] = code
                    self.fresh.add(head)
                    self.stale |= set(range(head, last + 1))
        if pending := sorted((self.stale if self._rewrite else self.fresh) - {last}):
            self.passed(range(pending[0], last) if self._rewrite else pending)
        self._outdated[sorted(self.stale)] = True
        self._passes[:] = self.ran
        return drawn

    def passed(self, nodes):
        self.ran += 1
        self.fresh -= set(nodes)
        left = self.stale - set(nodes)
        behind = min(left, default=self._last)
        self.stale = left | {node for node in self.stale & set(nodes) if node > behind}
        self._logits[list(nodes)] = self._session.rewrite(self._tokens, list(nodes)).logits


@pytest.mark.spread(1)
@pytest.mark.parametrize(("warped", "guidance"), [("nucleus", 2.0), ("greedy", 1.0)])
@pytest.mark.parametrize("which", list(VALUES))
def test_a_repair_is_what_asking_after_every_wave_gives(which, warped, guidance, monkeypatch):
    run, captured = (World(guidance, 8, layers=3, tier=tier).draw("mulo_sd", VALUES[which], WARPS[warped]) for tier in TIERS)
    with emulated_cuda():
        world = World(guidance, 8, layers=3, tier="graph", device="cuda")
        first, again = (world.draw("mulo_sd", VALUES[which], WARPS[warped]) for _ in range(2))
    monkeypatch.setattr(local_verification, "_Repair", NodeByNode)
    other = World(guidance, 8, layers=3).draw("mulo_sd", VALUES[which], WARPS[warped])
    assert recorded(run) == recorded(other)
    assert captured.ids == first.ids == again.ids == run.ids
    passes = [step.passes for step in run.steps]
    assert [step.passes for step in captured.steps] == [step.passes for step in first.steps] == passes


def test_a_schedule_draws_one_node_of_every_island_per_wave():
    assert schedule([[2, 3, 9], [5]]) == [[2, 5], [3], [9]] and schedule([]) == []
