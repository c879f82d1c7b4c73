"""On a CUDA device: captured graphs write what the eager tier writes, and drafting stays exact there."""

from __future__ import annotations

import pytest
import torch

import specviz
from specviz.targets.text import TextTarget
from tests.support.tiny.text import decode, tiny_llama
from tests.support.worlds.text import PROMPT, WARPS, compose

pytestmark = pytest.mark.gpu


def on_cuda(tier: str) -> TextTarget:
    return TextTarget(tiny_llama(dtype=torch.float64).to("cuda"), "tiny", (), tier)


@pytest.mark.parametrize("warped", WARPS)
@pytest.mark.parametrize("name", ["autoregressive", "prompt_lookup", "token_recycling"])
def test_captured_graphs_write_the_eager_text(name: str, warped: str) -> None:
    warp = WARPS[warped]
    eager, graph = on_cuda("eager"), on_cuda("graph")
    alone = decode(eager, compose("autoregressive", {}, eager, warp), PROMPT, 200, warp, 7)
    drafted = decode(graph, compose(name, {}, graph, warp), PROMPT, 200, warp, 7)
    assert drafted.ids == alone.ids


def test_a_draw_does_not_depend_on_the_device() -> None:
    here = TextTarget(tiny_llama(dtype=torch.float64), "tiny", (), "eager")
    there, warp = on_cuda("graph"), WARPS["nucleus"]
    found = [decode(one, compose("autoregressive", {}, one, warp), PROMPT, 200, warp, 7).ids for one in (here, there)]
    assert found[0] == found[1]


@pytest.mark.model
@pytest.mark.parametrize("name", ["prompt_lookup", "eagle3"])
def test_a_real_run_on_the_device_says_so_and_keeps_the_text(name: str) -> None:
    trace = specviz.run(
        method=name, prompt="Repeat after me: one, two, three, four.", device="cuda", dtype="float32", tier="graph",
        baseline=True, max_new_tokens=64,
    )  # fmt: skip
    assert trace.run.device.startswith("cuda") and trace.run.tier == "graph"
    assert trace.end is not None and trace.end.baseline is not None and trace.end.baseline.equal
