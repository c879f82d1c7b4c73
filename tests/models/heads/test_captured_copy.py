"""A target's copy in 8 bits for a GPU: right in its numbers, captured as the target is, and in the target's half precision."""

import gc
import weakref

import pytest
import torch

from specviz.drafting.networks.fused_decoder import FusedSession
from specviz.engine.cached import cached
from specviz.engine.tiers import Inputs
from specviz.engine.tree import DraftTree
from specviz.errors import ModelUnavailable
from specviz.models.heads.intermediate_models import (
    FewBitLinear,
    as_stored,
    captured_copy,
    integer_product,
    layouts_of,
    lean_copy,
)
from specviz.targets.text import TextTarget
from tests.support.devices import EMULATED, device_named
from tests.support.tiny import hybrid as tiny_hybrid
from tests.support.tiny.text import tiny_llama
from tests.support.worlds.text import DEEP, PROMPT, deep_target

TREE = DraftTree.of((7, 30, 11, 42, 20, 13), (-1, 0, 1, 1, 2, 0))
INT8 = (integer_product, integer_product)
PLAIN = (as_stored, as_stored)


@pytest.mark.parametrize("tier", ["eager", "graph"])
def test_the_copy_is_the_target_but_for_the_rounding(tier):
    target = TextTarget(deep_target().model, "deep", (3,), tier)
    exact, rounded = captured_copy(target, PLAIN), captured_copy(target, INT8, name="in 8 bits")
    assert (rounded.name, rounded.tier, rounded.eos_ids, exact.name) == ("in 8 bits", tier, {3}, "deep")
    sessions = [one.open(40, (0, 3, DEEP)) for one in (target, exact, rounded)]
    for session in sessions:
        session.prefill(PROMPT)
    for path in ((0, 1, 3), (0, 5)):
        wanted, plain, near = (session.score(TREE) for session in sessions)
        assert torch.allclose(wanted.logits, plain.logits, atol=1e-9)
        assert float((near.logits - wanted.logits).norm() / wanted.logits.norm()) < 0.3
        assert torch.equal(near.hidden[0], wanted.hidden[0]), "the embedding is the target's own"
        for session in sessions:
            session.keep(path)
    linears = [module for module in rounded.model.modules() if isinstance(module, FewBitLinear)]
    assert len(linears) == 7 * DEEP + 1
    assert rounded.model.get_input_embeddings().weight is target.model.get_input_embeddings().weight


def test_layers_may_be_left_out_and_states_keep_their_numbers():
    target, numbers, taps = deep_target(), [0, 1, 4, 5], (0, 2, 3, 5, DEEP)
    lean = FusedSession(lean_copy(target, layer_numbers=numbers), 40, taps)
    shorter = captured_copy(target, PLAIN, numbers).open(40, taps)
    for session in (lean, shorter):
        session.prefill(PROMPT)
    for path in ((0, 1, 3), (0, 5)):
        wanted, found = lean.score(TREE), shorter.score(TREE)
        assert torch.allclose(wanted.logits, found.logits, atol=1e-3)
        for tap in taps[:-1]:
            assert torch.allclose(wanted.hidden[tap], found.hidden[tap], atol=1e-3)
        lean.keep(path)
        shorter.keep(path)
    assert lean.length == shorter.length
    assert len(target.model.model.layers) == DEEP == target.model.config.num_hidden_layers, "the target itself stays whole"


def test_the_copys_pass_needs_no_numbers_from_the_host():
    target = TextTarget(tiny_llama(dtype=torch.bfloat16).to("meta"), "tiny", (), "graph")
    copied = captured_copy(target, INT8)
    logits, _ = copied.open(32).graph.padded_pass(Inputs.of(8, torch.device("meta")), 256)
    assert logits.is_meta and logits.dtype == torch.bfloat16


def test_a_copy_goes_with_its_target():
    def made():
        target = deep_target()
        return target, cached(target.model, "a copy", lambda: captured_copy(target, INT8))

    target, copied = made()
    session = copied.open(20)
    session.prefill(PROMPT)
    session.close()
    gone = weakref.ref(target.model), weakref.ref(copied.model)
    del target, copied, session
    gc.collect()
    assert [one() for one in gone] == [None, None]


def test_a_target_over_several_devices_or_with_recurrent_layers_is_not_copied():
    spread = deep_target()
    spread.spread = ("cuda:0", "cuda:1")
    for target in (spread, tiny_hybrid.target(tiny_hybrid.pure())):
        with pytest.raises(ModelUnavailable, match="has recurrent layers or is on several devices"):
            captured_copy(target, INT8)


def test_a_lean_copy_computes_in_half_precision_on_a_gpu():
    with device_named(EMULATED) as device:
        target = TextTarget(deep_target().model.to(device, torch.bfloat16), "deep", (), "eager")
        decoder = lean_copy(target, layouts_of("int8", target.device), group=2)
        session, own = FusedSession(decoder, 40), target.open(40)
        for one in (session, own):
            one.prefill(PROMPT)
        tree = DraftTree.of(TREE.host_tokens, TREE.shape.parents, device)
        found, wanted = session.score(tree).logits, own.score(tree).logits
        assert decoder.dtype == found.dtype == session._cache.layers[0].dtype == torch.bfloat16
        assert float((found.float() - wanted.float()).norm() / wanted.float().norm()) < 0.3
