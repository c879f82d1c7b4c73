"""The drafting language model: its cache is the committed text, whatever was rejected, and its distributions are the warped
ones."""

import pytest
import torch

from specviz.acceptance.exact import Rejection
from specviz.drafting.levels import ChainLevels
from specviz.drafting.runtimes.language_model import LanguageModelDrafter, SessionModel
from specviz.drafting.trees.sampled import Sampled
from specviz.engine.interfaces import Composition, SingleDrafter
from specviz.engine.sampling import Warp
from specviz.engine.tree import chain
from specviz.targets.text import TextTarget
from tests.support.tiny.text import VOCAB, decode, perturbed, tiny_llama, tiny_target

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


class Ledger:
    """A draft model that keeps the text it was given, and answers with logits that depend on all of it."""

    support = None

    def __init__(self, capacity):
        self.capacity, self.text, self.longest, self.closed = capacity, [], 0, False

    def extend(self, ids):
        assert len(ids) > 0, "nothing to run"
        self.text += ids
        assert len(self.text) <= self.capacity
        self.longest = max(self.longest, len(ids))
        return torch.randn(VOCAB, generator=torch.Generator().manual_seed(hash(tuple(self.text)) % 2**31))

    def chain(self, ids, deepest):
        return ChainLevels(lambda token: self.extend(ids if token is None else token.tolist()), deepest)

    def rewind(self, length):
        assert 0 <= length <= len(self.text)
        del self.text[length:]

    def close(self):
        self.closed = True


class Checked(LanguageModelDrafter):
    """After every distribution it gives, what its model holds must be the very text that the distribution is about."""

    asked = 0

    def levels(self, context):
        inner, chain = super().levels(context), []

        def after(token):
            chain.extend([] if token is None else token.tolist())
            logits = inner.ask() if token is None else inner.ask(token, torch.tensor([0]))
            assert self._model.text == [*context.ids, *chain]
            self.asked += 1
            return logits[0]

        return ChainLevels(after, inner.deepest)


@pytest.mark.spread(1)
@pytest.mark.parametrize("warp", [Warp(), Warp(0.9)], ids=["greedy", "warm"])
@pytest.mark.parametrize("prompt", [[5], PROMPT])
def test_the_draft_models_text_is_always_the_committed_text(warp, prompt):
    opened = []

    def open_model(capacity):
        opened.append(Ledger(capacity))
        return opened[-1]

    drafter = Checked(open_model, 1024)
    run = decode(tiny_target(), Composition(SingleDrafter(drafter, Sampled(chain(4))), Rejection()), prompt, 60, warp)
    assert drafter.asked == sum(step.draft_calls for step in run.steps) == 4 * len(run.steps)
    assert len(opened) == 1
    assert opened[0].closed


def test_after_full_acceptance_the_missing_token_is_fed():
    fed = []
    target = tiny_target()

    class Counted(SessionModel):
        def extend(self, ids):
            fed.append(len(ids))
            return super().extend(ids)

    drafter = LanguageModelDrafter(lambda capacity: Counted(target.open(capacity), target), 1024)
    run = decode(target, Composition(SingleDrafter(drafter, Sampled(chain(3))), Rejection()), PROMPT, 40, Warp())
    assert [len(step.path) for step in run.steps] == [3] * 10
    # The prompt but its last token; then that token; later the last drafted token and the bonus token together.
    assert fed == [len(PROMPT) - 1, 1, 1, 1] + [2, 1, 1] * 9


@pytest.mark.parametrize("tier", ["eager", "graph"])
@pytest.mark.parametrize("length", [5, 40])
def test_a_session_answers_like_the_model_alone(tier, length):
    target = tiny_target(tier)
    model = SessionModel(target.open(100), target)
    text = [(7 * place) % VOCAB for place in range(length)]
    model.extend(text)
    model.rewind(length - 2)
    found = model.extend([9, 8])
    alone = target.model(torch.tensor([[*text[:-2], 9, 8]])).logits[0, -1]
    assert torch.allclose(found, alone, atol=1e-9)


def test_a_shorter_draft_context_stops_drafting_and_not_the_run():
    target, small = tiny_target(), TextTarget(perturbed(tiny_llama(context=32), 0.02), "small", ())
    drafter = LanguageModelDrafter(lambda capacity: SessionModel(small.open(capacity), small), small.context_length)
    composition = Composition(SingleDrafter(drafter, Sampled(chain(3))), Rejection())
    run = decode(target, composition, PROMPT, 60, Warp())
    assert any(step.path for step in run.steps[:4])
    assert not any(step.draft_calls for step in run.steps[-5:])
    assert decode(target, composition, PROMPT * 6, 10, Warp()).outcome.reason == "budget"


@pytest.mark.parametrize("draft_vocab", [VOCAB + 16, VOCAB - 8])
def test_vocabularies_padded_differently_still_fit(draft_vocab):
    target, small = tiny_target(), TextTarget(tiny_llama(seed=3, vocab=draft_vocab), "small", ())
    drafter = LanguageModelDrafter(
        lambda capacity: SessionModel(small.open(capacity), small, target.vocab_size), small.context_length
    )
    composition = Composition(SingleDrafter(drafter, Sampled(chain(3))), Rejection())
    prompt = [token for token in PROMPT if token < draft_vocab]
    run = decode(target, composition, prompt, 12, Warp(1.0, top_k=8), seed=2)
    drafted = [node.token for step in run.steps for node in step.nodes[1:]]
    assert drafted
    assert max(drafted) < min(VOCAB, draft_vocab)
