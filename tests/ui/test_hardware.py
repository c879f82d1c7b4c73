"""What runs compute on is found once, in a process of its own, and told in a sentence."""

import subprocess
from collections import deque

import pytest
import torch

from specviz.models import device as probe
from specviz.ui import app_state, page
from specviz.ui.app_state import Hardware, sentence
from specviz.ui.settings import Settings
from specviz.ui.tabs import about_tab
from tests.support.devices import EMULATED, device_named
from tests.support.fakes.ui import HARDWARE, app

GPU = {"kind": "cuda", "name": "NVIDIA H200", "memory_gb": 150.1, "dtype": "bfloat16", "tier": "graph", "count": 1}


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (HARDWARE, "Runs on AMD EPYC 7763: 2 cores, float32, eager passes."),
        ({**HARDWARE, "cores": 1, "dtype": "bfloat16"}, "Runs on AMD EPYC 7763: 1 core, bfloat16, eager passes."),
        (GPU, "Runs on NVIDIA H200: 150 GB, bfloat16, captured graphs."),
        ({**HARDWARE, "unused_gpu": True}, "The installed PyTorch cannot use the GPU: install a CUDA build."),
        ({**GPU, "count": 4}, "Runs on NVIDIA H200: 150 GB, bfloat16, captured graphs, one of 4 GPUs."),
    ],
)
def test_the_sentence_names_the_device_and_how_it_is_used(facts, said):
    assert sentence(facts).endswith(said)


def test_a_gpu_is_found_with_its_memory_and_its_tier(monkeypatch):
    card = type("Card", (), {"name": "NVIDIA H200", "total_memory": 150_100_000_000})
    with device_named(EMULATED):
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
        assert probe.describe() == GPU


def test_it_is_looked_for_once_and_never_where_a_gpu_is_borrowed():
    looks = []

    def look(device):
        looks.append(device)
        return HARDWARE

    here = Hardware(Settings(device="cpu"), look)
    assert here.sentence() == here.sentence() == sentence(HARDWARE) and looks == ["cpu"]
    took = deque()
    space = Hardware(Settings(zero_gpu=True), look, took)
    assert space.sentence() == "Each run borrows a GPU for at most 60 s." and looks == ["cpu"]
    took.extend((9.0, 30.0, 12.4))
    assert space.sentence().endswith("60 s. Recent runs took about 12 s.")


@pytest.mark.parametrize("fault", [OSError("no torch"), ValueError("no JSON"), subprocess.TimeoutExpired("python", 1)])
def test_a_pytorch_that_does_not_start_is_told_and_not_hidden(fault):
    def look(device):
        raise fault

    assert Hardware(Settings(), look).sentence() == app_state.FAILED


def test_the_page_and_its_about_tab_tell_it(tmp_path):
    shared = app(tmp_path)
    built = page.build(shared)
    said = [fn for fn in built.fns.values() if fn.outputs and all("sp-hardware" in one.elem_classes for one in fn.outputs)]
    (told,) = said
    texts = told.fn()
    assert len(texts) == 3 and all(sentence(HARDWARE) in text for text in texts)
    assert sentence(HARDWARE) in about_tab.content(shared)
