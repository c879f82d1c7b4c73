"""A tiny target that writes synthetic code, and a block and a chain drafter of about the same size that learn to foresee it.

The block drafter is the masked language model with DEER's two stages (arXiv 2512.15176), the chain EAGLE's one layer (arXiv
2401.15077): the recipes of the drafters that ship, on the same answers of the target, for about as much computing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from specviz.drafters.networks.feature_net import FeatureNet
from specviz.drafters.networks.masked_lm import MaskedLM
from specviz.training.common import data
from specviz.training.common.features import FeatureStore
from specviz.training.common.loop import rate as rate_at
from specviz.training.common.optimizer import Optimizer
from specviz.training.diffusion import make_deer, make_masked_lm
from specviz.training.diffusion.make_deer import FIRST, SECOND, Stages
from specviz.training.diffusion.masked_training import MaskedTraining
from specviz.training.diffusion.masked_training import Settings as MaskedSettings
from specviz.training.draft_model import small_draft
from specviz.training.feature import eagle, feature_start
from specviz.training.feature.gto import LowRank
from specviz.training.feature.recipes import FeatureTraining, Settings
from specviz.training.toy import programs
from specviz.training.toy.programs import END, IDS, LINE, START, WORDS

MARKERS = data.Markers(prefix=(IDS[START],), turn=(IDS[LINE],), end=IDS[END])
WINDOW = 160
"""Tokens that the masked language model reads at a time: any program with a block behind it."""
LONGEST = 120
"""Tokens of an answer, at most."""
FITTED = 64
"""Answers on which the chain drafter's linear start is fitted."""
DECAY = 0.01


@dataclass(frozen=True)
class Plan:
    """Updates of each training, and the answers there are. ``target`` to ``second`` are of the target, the masked language
    model, and DEER's two stages; a control spends those of ``second`` on more of the first. Of the ``chains`` the last learns
    until it hardly errs, the others for a few updates, so that one is as good as the block drafter at the first place.
    """

    hidden: int = 64
    layers: int = 3
    answers: int = 1000
    target: int = 220
    base: int = 220
    first: int = 100
    second: int = 200
    chains: tuple[int, ...] = (60, 75, 100, 900)
    seed: int = 0


@dataclass(frozen=True)
class World:
    """The target, its greedy answers (one in twenty kept out) and what it thought of them."""

    model: LlamaForCausalLM
    dialogues: data.Dialogues
    store: FeatureStore
    training: list[int]
    held_out: list[int]


@dataclass
class Learned:
    """A drafter's weights by arm, and the seconds of one core that each took."""

    seconds: dict[str, float] = field(default_factory=dict)
    arms: dict[str, dict[str, Tensor]] = field(default_factory=dict)


def world(plan: Plan, folder: Path) -> World:
    """Teach a target, let it answer; ``folder`` keeps its hidden states."""
    model = _target(plan)
    answers = _answers(model, plan)
    store = FeatureStore(model, answers, MARKERS, (plan.layers,) * 4, folder)  # EAGLE's recipe reads the last of four
    training, held_out = data.split(answers)
    store.get(training)
    return World(model, answers, store, training, held_out)


def _target(plan: Plan, batch: int = 24, peak: float = 0.01) -> LlamaForCausalLM:
    """A small Llama that has read programs: cross-entropy of all that follows a question."""
    torch.manual_seed(plan.seed)
    config = LlamaConfig(
        vocab_size=len(WORDS), hidden_size=plan.hidden, intermediate_size=2 * plan.hidden, num_hidden_layers=plan.layers,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=512, tie_word_embeddings=False,
        initializer_range=0.1, bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    named = dict(model.named_parameters())
    optimizer = Optimizer(named, average=0.98)
    texts = programs.programs(batch * plan.target, plan.seed + 1)
    for number in range(plan.target):
        ids, labels = _padded(list(islice(texts, batch)))
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits
        gradients = torch.autograd.grad(F.cross_entropy(logits.flatten(0, 1), labels.flatten()), list(named.values()))
        rate = rate_at(peak, number / plan.target, number)
        optimizer.step(dict(zip(named, gradients, strict=True)), rate, DECAY)
    with torch.no_grad():
        for name, value in optimizer.averaged().items():
            named[name].copy_(value)
    return model.eval().requires_grad_(False)


def _padded(texts: list[tuple[list[int], list[int]]]) -> tuple[Tensor, Tensor]:
    """Questions with answers as ids [text, token + 1], and labels [text, token] of the answers alone."""
    width = len(MARKERS.prefix) + max(len(question) + len(answer) for question, answer in texts)
    ids = torch.zeros(len(texts), width, dtype=torch.long)
    labels = torch.full((len(texts), width), data.IGNORED)
    for row, (question, answer) in enumerate(texts):
        tokens, first = [*MARKERS.prefix, *question, *answer], len(MARKERS.prefix) + len(question)
        ids[row, : len(tokens)] = torch.tensor(tokens)
        labels[row, first : len(tokens)] = ids[row, first : len(tokens)]
    return ids, labels[:, 1:]


@torch.inference_mode()
def _answers(model: LlamaForCausalLM, plan: Plan) -> data.Dialogues:
    """Fresh questions, answered by the target at temperature 0."""
    questions = torch.tensor([[*MARKERS.prefix, *question] for question, _ in programs.programs(plan.answers, plan.seed + 2)])
    turns: list[list[int]] = []
    for part in questions.split(256):
        sequences = model.generate(
            part, attention_mask=torch.ones_like(part), max_new_tokens=LONGEST, do_sample=False,
            eos_token_id=MARKERS.end, pad_token_id=0,
        )  # fmt: skip
        for row in sequences[:, len(MARKERS.prefix) :].tolist():
            turns.append(row[: row.index(MARKERS.end) + 1] if MARKERS.end in row else row)
    starts = np.concatenate(([0], np.cumsum([len(turn) for turn in turns])))
    prompt = np.full(len(turns), questions.shape[1] - len(MARKERS.prefix))
    tokens = np.array([token for turn in turns for token in turn])
    return data.Dialogues(tokens, starts, prompt, np.zeros(len(turns), np.float32))


def chain(world: World, plan: Plan, updates: int) -> tuple[FeatureNet, float]:
    """EAGLE's drafter after so many updates of its own recipe, and the seconds of one core it took."""
    began = time.process_time()
    model, store = world.model, world.store
    embedding, head = model.get_input_embeddings().weight.detach(), model.lm_head.weight.detach()
    net = FeatureNet(feature_start.shape_of(model.config, store.taps[eagle.TAPS], False), embedding, head, None)
    fitted = world.training[:FITTED]
    feature_start.start(net, model, feature_start.sample(store, fitted, embedding, eagle.TAPS))
    settings = Settings(workers=1, seed=plan.seed, peak=0.004, decay=0.02)
    state = FeatureTraining(net, store, world.training, world.held_out, settings, partial(eagle.loss, net), lambda numbers: {})
    for number in range(updates):
        state.update(number / updates)
    state.use_average()
    return net.requires_grad_(False), time.process_time() - began


def block(world: World, plan: Plan) -> tuple[MaskedLM, Learned]:
    """The masked language model and DEER's stages by their own recipes: the network, and the weights of the arms ``base``,
    ``first``, ``deer`` (after the second stage) and ``control`` (as many more updates of the first)."""
    model = _masked(world, plan)
    base = MaskedSettings(batch=16, part=16, peak=0.015, warm=10, half=False, seed=plan.seed)
    learned = Learned()
    teach = partial(_taught, model, learned)
    teach("base", make_masked_lm.prepare(model, world.dialogues, MARKERS, base), plan.base)
    stages = Stages(reach=16, texts=32)
    change = LowRank(model, stages.rank, plan.seed)
    first_settings = replace(base, peak=0.005)
    second_settings = replace(first_settings, batch=stages.texts, part=stages.texts, peak=first_settings.peak * stages.calm)
    first_factors: dict[str, Tensor] = {}
    for arm, stage, settings, updates in (
        ("first", FIRST, first_settings, plan.first), ("deer", SECOND, second_settings, plan.second),
        ("control", FIRST, first_settings, plan.second),
    ):  # fmt: skip
        if first_factors:
            change.factors = {name: value.clone() for name, value in first_factors.items()}
        state = make_deer.prepare(model, world.dialogues, MARKERS, change, stage, stages, settings)
        teach(arm, state, updates)
        first_factors = first_factors or {name: value.clone() for name, value in state.optimizer.averaged().items()}
    use(model, learned, "deer")
    return model, learned


def _masked(world: World, plan: Plan) -> MaskedLM:
    """A fresh network with the weights of an untaught small draft model, read and written by the target's embedding."""
    embedding = world.model.get_input_embeddings().weight.detach()
    shape = {"draft_vocab": len(WORDS), "width": 64, "layers": 3, "heads": 2, "inner": 128, "window": WINDOW, "theta": 200}
    settings = small_draft.Settings(seed=plan.seed)
    start = small_draft.prepare(embedding, MARKERS, world.dialogues, shape, settings, (world.training, world.held_out))
    return make_masked_lm.from_autoregressive(start.model, WINDOW)


def _taught(model: MaskedLM, learned: Learned, arm: str, state: MaskedTraining, updates: int) -> None:
    """So many updates, after which the averaged weights are the arm's."""
    began = time.process_time()
    for number in range(updates):
        state.update(number / updates)
    state.use_average()
    learned.seconds[arm] = time.process_time() - began
    learned.arms[arm] = {name: value.detach().clone() for name, value in model.state_dict().items()}


def use(model: MaskedLM, learned: Learned, arm: str) -> MaskedLM:
    """Put an arm's weights into the network."""
    model.load_state_dict(learned.arms[arm])
    return model.eval().requires_grad_(False)
