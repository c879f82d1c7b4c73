"""A stop is seen between any two units of what comes before a run, and in an inspection, however long the whole takes."""

import io
import threading

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specviz.engine.cost import measure
from specviz.engine.stop import Interrupted, stoppable
from specviz.inspection.diagnosis import judge
from specviz.inspection.forced import Reading, teacher_force
from specviz.models.cache import exclusive_loading
from specviz.models.heads.intermediate_models import as_stored, captured_copy, lean_copy
from specviz.models.hub.catalog import WheelFile
from specviz.models.hub.hub import _is_whole
from specviz.models.packing import pack
from specviz.targets import hybrid
from tests.support.tiny import foreseen
from tests.support.tiny.hybrid import delta
from tests.support.tiny.hybrid import target as hybrid_target
from tests.support.tiny.text import tiny_llama, tiny_target

LAYERS = 2


class Asked(threading.Event):
    """A flag that is set once it was asked so often, and counts how often it was asked after that."""

    def __init__(self, after):
        super().__init__()
        self.after = after
        self.times = 0

    def is_set(self):
        self.times += 1
        return self.times > self.after


def reading(target):
    target.piece = 4
    return 5, lambda: target.open(40).prefill(range(20))


def reading_with_states():
    target, tokens = hybrid_target(delta()), hybrid.CHUNK + 1
    return 2, lambda: target.open(tokens + 20).prefill([1] * tokens)


def measuring():
    target = tiny_target()
    return 6, lambda: measure(target, lambda rows, milliseconds: None, (1, 2))


def laying_out():
    target = tiny_target()
    return 4 * LAYERS + 1, lambda: lean_copy(target, (as_stored, as_stored))


def copying():
    target = tiny_target()
    return 7 * LAYERS, lambda: captured_copy(target, (as_stored, as_stored))


def packing():
    return 7 * LAYERS, lambda: pack(tiny_llama(dtype=torch.float32))


def loading(folder):
    config = LlamaConfig(vocab_size=48, hidden_size=16, intermediate_size=16, num_hidden_layers=LAYERS, num_attention_heads=2)
    LlamaForCausalLM(config).save_pretrained(folder)

    def load():
        with exclusive_loading():
            return LlamaForCausalLM.from_pretrained(folder, local_files_only=True)

    return 9 * LAYERS, load


def hashing():
    return 3, lambda: _is_whole(io.BytesIO(bytes(3 << 20)), WheelFile("big", "1", "big.bin", 3 << 20, "", 3 << 20))


def foreseeing():
    head = foreseen.head()
    texts = foreseen.passages(head)
    return len(texts), lambda: teacher_force(Reading(head), texts, 2)


def comparing():
    head = foreseen.head()
    texts = foreseen.passages(head)
    return 10 * len(texts), lambda: judge(Reading(head), texts, foreseen.target(), 2, 100.0)


PHASES = {
    "a text read in pieces": lambda folder: reading(tiny_target()),
    "a text read with states": lambda folder: reading_with_states(),
    "passes measured": lambda folder: measuring(),
    "matrices laid out": lambda folder: laying_out(),
    "a model copied": lambda folder: copying(),
    "a model packed": lambda folder: packing(),
    "a model loaded": loading,
    "a file checked": lambda folder: hashing(),
    "a drafter foreseen": lambda folder: foreseeing(),
    "its readings compared": lambda folder: comparing(),
}


@pytest.mark.spread(4)
@pytest.mark.parametrize("name", PHASES)
def test_a_stop_is_seen_between_two_units_of_every_phase(name, tmp_path):
    units, work = PHASES[name](tmp_path)
    never, at_once, later = Asked(10**9), Asked(0), Asked(units - 1)
    with pytest.raises(Interrupted), stoppable(at_once):
        work()
    with pytest.raises(Interrupted), stoppable(later):
        work()
    assert at_once.times == 1 and later.times == units, "whatever hears of a stop goes on with nothing"
    with stoppable(never):
        work()
    assert never.times >= units


def test_a_stop_is_no_fault_that_a_handler_of_errors_could_take_for_its_own():
    assert not issubclass(Interrupted, Exception)
