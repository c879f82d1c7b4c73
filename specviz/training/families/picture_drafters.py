"""``train vlm_eagle``, ``vlm_hivis``, ``vlm_dream``, ``vlm_text_only``: the small vision-language model in, drafters out.

They learn from the target's own answers about pictures. Its hidden states on them are computed on first use and kept in memory as
float16: a few hundred megabytes.

*EAGLE with visual rows*: regression of the next feature and 0.1 of the cross-entropy, all rows shown (arXiv 2401.15077).
*HiViS* (2509.23928): words alone; three self-fed steps, each with its learned vector; deeper steps only where a tree would
still be alive; cross-entropy over the target's ten likeliest tokens on top.
*DREAM* (2505.19201): divergence from the target's distribution, regression of the last feature (0.2) and of the middle one.
Axis names: ``token``, ``tap``, ``hidden``, ``start`` (places that draft), ``row``, ``step``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafting.networks import feature_file, small_lm
from specviz.drafting.networks.cross_net import CrossConfig, CrossNet
from specviz.drafting.networks.feature_net import FeatureNet, attend
from specviz.models.device import choose_device
from specviz.models.hub.cache_dir import cache_folder
from specviz.models.hub.vocabulary import tokenizer_hash
from specviz.models.vision import scenes as shipped
from specviz.models.vision.vision_drafts import TARGET as LEARNED_FROM
from specviz.models.vision.vision_drafts import told_apart
from specviz.targets.attention_maps import entropies, importance, middle_layers, most_looked_at
from specviz.training import acceptance, data, driver, parallel
from specviz.training.families import feature, scenes, small_draft
from specviz.training.families.feature import FeatureTraining
from specviz.training.families.feature_start import sample, shape_of, start
from specviz.training.families.scenes import FRESH, held_out
from specviz.training.families.scenes_batches import Writer
from specviz.training.families.scenes_vlm import Learner, Shape, answers
from specviz.training.families.scenes_words import exchanges
from specviz.training.families.small_draft import TokenTraining
from specviz.training.families.unrolling import sampled_starts, unroll
from specviz.training.features import LARGEST, DialogueFeatures
from specviz.training.registry import WEIGHTS, Job

SCENES = 700
HELD_OUT_SCENES = 70
QUESTIONS = 2
_SEEDS_FROM = 1 << 36
_AT_A_TIME = 35
_WARM_EVERY = (0.0, 1.0, 0.0, 0.7)
"""Temperatures, in turn over the training scenes; held-out answers are greedy."""
_LONGEST = 220


@dataclass(frozen=True)
class PictureDialogues:
    """``dialogues`` without picture tokens, and by dialogue the ``scene`` it is about; the last scenes are held out."""

    dialogues: data.Dialogues
    scene: np.ndarray

    def split(self) -> tuple[list[int], list[int]]:
        """Numbers to train on, and those kept out."""
        training = self.scene < SCENES - HELD_OUT_SCENES
        return np.flatnonzero(training).tolist(), np.flatnonzero(~training).tolist()


def scene_of(number: int) -> scenes.Scene:
    """The scene of this number."""
    training = number < SCENES - HELD_OUT_SCENES
    return scenes.compose(_SEEDS_FROM + number) if training else held_out(FRESH, 5000 + number)


def answered(learner: Learner, tokenizer: Any, path: Path, report: Callable[[str], None]) -> PictureDialogues:
    """The model's own answers, from the file that belongs to the weights in ``path``, or written now."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    file = cache_folder() / "data" / f"pictures-{digest}.npz"
    if not file.is_file():
        written = _write(learner, tokenizer, report)
        data.write(file, written.dialogues)
        np.save(file.with_suffix(".npy"), written.scene)
    return PictureDialogues(data.read(file), np.load(file.with_suffix(".npy"), allow_pickle=False))


@torch.no_grad()
def _write(learner: Learner, tokenizer: Any, report: Callable[[str], None]) -> PictureDialogues:
    """Questions and answers about all scenes, some scenes at a time, long answers apart from short ones."""
    writer, generator = Writer(tokenizer), torch.Generator(learner.model.device).manual_seed(0)
    spoken, about = list[data.Dialogue](), list[int]()
    for begin in range(0, SCENES, _AT_A_TIME):
        chosen = [scene_of(number) for number in range(begin, min(SCENES, begin + _AT_A_TIME))]
        visual = learner.seen(chosen)
        warm = 0.0 if begin >= SCENES - HELD_OUT_SCENES else _WARM_EVERY[begin // _AT_A_TIME % len(_WARM_EVERY)]
        asked = [(place, exchange) for place, scene in enumerate(chosen) for exchange in exchanges(scene, QUESTIONS)]
        for long in (True, False):
            part = [(place, writer.ids(one.question)) for place, one in asked if (one.kind == "describe") == long]
            places, questions = [place for place, _ in part], [ids for _, ids in part]
            with parallel.arithmetic(learner.model.device):
                found = answers(learner, visual[places], questions, writer, [_LONGEST] * len(part), warm, generator)
            for ids, row in zip(questions, found, strict=True):
                ended = row if row[-1] == writer.end else (*row, writer.end)
                spoken.append(data.Dialogue((*ids, writer.assistant), ended, warm))
            about += [begin + place for place in places]
        report(f"{len(spoken)} answers about {begin + len(chosen)} of {SCENES} scenes")
    return PictureDialogues(data.packed(spoken), np.array(about))


WORDS, ALL, COMPRESSED = "words", "all", "compressed"
"""What a drafter is shown of a prompt: its words, everything, or its words and the visual tokens looked at most."""
MIDDLE = -1
"""Stands for the hidden state whose layer looks least scattered, chosen for every token."""


@dataclass(frozen=True)
class PictureDialogueFeatures(DialogueFeatures):
    """``tokens`` may hold places of a picture, whose embedding is tap 0; ``positions`` [token] are the target's where the
    drafter keeps them, else counted anew."""

    positions: Tensor


class PictureStore:
    """Hidden states ``taps`` (transformers' numbering, or ``MIDDLE``) of a ``view`` of each dialogue."""

    keeps = True

    def __init__(
        self, learner: Learner, writer: Writer, spoken: PictureDialogues, taps: Sequence[int], view: str, keep: float = 1.0
    ) -> None:
        self.taps, self.view, self.keep, self.writer = tuple(taps), view, keep, writer
        self.dialogues, self.spoken, self.device = spoken.dialogues, spoken, learner.model.device
        self._learner, self._features = learner, dict[int, tuple[Tensor, Tensor, Tensor, int]]()

    def has(self, number: int) -> bool:
        """Whether this dialogue has been read already."""
        return number in self._features

    def get(self, numbers: Sequence[int]) -> list[DialogueFeatures]:
        """The dialogues with their features; what is missing is computed first."""
        dialogues: list[DialogueFeatures] = []
        for number in numbers:
            if number not in self._features:
                self._features[number] = self._compute(number)
            tokens, features, positions, first = self._features[number]
            dialogues.append(PictureDialogueFeatures(tokens, features.float(), first, positions))
        return dialogues

    @torch.no_grad()
    def _compute(self, number: int) -> tuple[Tensor, Tensor, Tensor, int]:
        """Tokens, features, positions, and where the answer begins, of what the drafter is shown."""
        text = self._learner.model.model.text_model
        with parallel.arithmetic(self.device):
            visual = self._learner.seen([scene_of(int(self.spoken.scene[number]))])[0]
        pictured, picture = len(visual), slice(1, 1 + len(visual))
        ids = [self.writer.user, *[self.writer.image] * pictured, *self.dialogues.of(number).tolist()]
        tokens, places = torch.tensor(ids, device=self.device), torch.arange(len(ids), device=self.device)
        embedded = text.embed_tokens(tokens)
        embedded[picture] = visual.float()
        with parallel.arithmetic(self.device):
            passed = text(inputs_embeds=embedded[None], position_ids=places[None], use_cache=False, output_hidden_states=True)
        hidden = {layer: states[0].float() for layer, states in enumerate(passed.hidden_states)}
        first = 1 + pictured + int(self.dialogues.prompt[number])
        shown = np.full(len(ids), True)
        shown[picture] = self.view == ALL
        if self.view == COMPRESSED:  # chosen when the prompt but for its last token is all there is
            prompt = {layer: states[: first - 1] for layer, states in hidden.items()}
            weights = importance(text, prompt, places[: first - 1], range(1, 1 + pictured))
            shown[[1 + place for place in most_looked_at(weights, self.keep)]] = True
        chosen, taps = places[torch.from_numpy(shown).to(self.device)], list[Tensor]()
        for tap in self.taps:
            if tap == MIDDLE:
                layers = middle_layers(len(hidden) - 1)
                best = entropies(text, layers, hidden, places).argmin(0)
                taps.append(torch.stack([hidden[layer] for layer in layers])[best, places])
            else:
                taps.append(hidden[tap])
        features = torch.stack(taps, dim=1)[chosen].clamp(-LARGEST, LARGEST).half()
        positions = chosen if self.view == COMPRESSED else places[: len(chosen)]
        return tokens[chosen], features, positions, first - (len(ids) - len(chosen))


TOKEN_WEIGHT, FEATURE_WEIGHT = 0.1, 0.2
NEAR_WEIGHT = 1.0
NEAR = 10
ALIVE = 5
STEPS = 3
NOISE = 0.1
"""Half the width of the uniform noise on features while training."""


def noisy(features: Tensor, generator: torch.Generator) -> Tensor:
    """Features as they are while drafting: only nearly right."""
    return features + (torch.rand(features.shape, generator=generator).to(features.device) - 0.5) * (2 * NOISE)


def all_rows_loss(net: FeatureNet, dialogue: DialogueFeatures, generator: torch.Generator, scale: float) -> Tensor:
    """EAGLE's. Taps are the input embeddings and the last feature."""
    embedded, features = dialogue.features[:, 0], dialogue.features[:, -1]
    rows = sampled_starts(dialogue.first, len(dialogue.tokens), [1.0], generator)
    outputs = unroll(net, dialogue.tokens, noisy(features, generator), rows, embedded)[0]
    return _regression(net, outputs, features[rows[0] + 1])[0].sum() * scale


def _regression(net: FeatureNet, outputs: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
    """The loss [start] of outputs against true features, and the target's logits there."""
    with torch.no_grad():
        truth = F.linear(features, net.head)
    regression = F.smooth_l1_loss(outputs, features, reduction="none").mean(-1)
    return regression + TOKEN_WEIGHT * F.cross_entropy(net.logits(outputs), truth.softmax(-1), reduction="none"), truth


def words_loss(net: FeatureNet, dialogue: DialogueFeatures, generator: torch.Generator, scale: float) -> Tensor:
    """HiViS's: the loss of each step counts where the target's choice was among the five likeliest of every step before."""
    features = dialogue.features[:, -1]
    rows = sampled_starts(dialogue.first, len(dialogue.tokens), [1.0] * STEPS, generator)
    outputs = unroll(net, dialogue.tokens, noisy(features, generator), rows)
    total, alive = torch.zeros((), device=features.device), torch.ones(len(rows[0]), device=features.device)
    for step, (chosen, output) in enumerate(zip(rows, outputs, strict=True)):
        alive = alive[torch.searchsorted(rows[step - 1], chosen)] if step else alive
        losses, truth = _regression(net, output, features[chosen + 1 + step])
        ours = net.logits(output)
        near = truth.topk(NEAR, dim=-1).indices
        losses = losses + NEAR_WEIGHT * F.cross_entropy(ours.gather(1, near), truth.gather(1, near).softmax(-1), reduction="none")
        total = total + (losses * alive).sum()
        alive = alive * (ours.topk(ALIVE, dim=-1).indices == truth.argmax(-1, keepdim=True)).any(-1)
    return total * scale


def cross_loss(net: CrossNet, dialogue: DialogueFeatures, generator: torch.Generator, scale: float) -> Tensor:
    """DREAM's. Taps are the input embeddings, the middle feature and the last one."""
    picture = cast(PictureDialogueFeatures, dialogue)
    embedded, between, features = (dialogue.features[:, tap] for tap in range(3))
    outputs, inside = net.whole(embedded, noisy(features, generator), picture.positions)
    rows = slice(dialogue.first - 1, len(dialogue.tokens) - 1)
    with torch.no_grad():
        distribution = F.linear(features[rows], net.head).log_softmax(-1)
    loss = F.kl_div(net.logits(outputs[rows]).log_softmax(-1), distribution, reduction="sum", log_target=True)
    loss = loss + FEATURE_WEIGHT * F.smooth_l1_loss(outputs[rows], features[rows], reduction="none").mean(-1).sum()
    loss = loss + F.smooth_l1_loss(inside[rows], between[rows], reduction="none").mean(-1).sum()
    return loss * scale


def unroll_cross(net: CrossNet, picture: PictureDialogueFeatures, starts: Tensor, depth: int) -> list[Tensor]:
    """Outputs [start, hidden] of each step of drafting from rows ``starts``, ascending, along the true text.

    Step 0 is the root's row: it reads thoughts up to the row before. Step j's row reads those and the outputs of steps
    0 to j - 1 in place of the target's thoughts; the embeddings of the rows between are true.
    """
    embedded, features, positions = picture.features[:, 0], picture.features[:, -1], picture.positions
    net.reach(int(positions[-1]) + 2)
    rows = torch.arange(len(embedded), device=embedded.device)
    later = rows[None] > rows[:, None]
    entered = net.enter(embedded)
    first = net.within(net.first, entered, positions, *net.keys_values(net.first, entered, positions), later)
    keys, values = (torch.cat(pair) for pair in zip(net.nothing(), net.thoughts(features[:-1]), strict=True))
    columns = torch.arange(len(keys), device=embedded.device)
    middle = net.across(first, keys, values, columns[None] > rows[:, None])
    committed = net.keys_values(net.last, middle, positions)
    queries = net.last.self_attn.q_proj(middle).view(len(rows), net.config.heads, -1)
    hidden = net.last.finish(middle, attend(net._turn(queries, positions), *committed, later))
    outputs = [net.norm(hidden)[starts]]
    thought: list[tuple[Tensor, Tensor]] = []
    drafted: list[tuple[Tensor, Tensor]] = []
    for step in range(1, depth):
        thought.append(net.thoughts(outputs[-1]))
        x, where = first[starts + step], positions[starts + step]
        x = net.reading.finish(x, attend(net._queries(x), keys, values, columns[None] > starts[:, None], thought))
        drafted.append(net.keys_values(net.last, x, where))
        queries = net._turn(net.last.self_attn.q_proj(x).view(len(x), net.config.heads, -1), where)
        x = net.last.finish(x, attend(queries, *committed, rows[None] > starts[:, None], drafted))
        outputs.append(net.norm(x))
    return outputs


def draft_logits(net: FeatureNet | CrossNet, picture: PictureDialogueFeatures, starts: Tensor, depth: int) -> list[Tensor]:
    """Logits [start, vocab] of each step of drafting along the truth; ``starts`` as of :func:`unroll`."""
    if isinstance(net, CrossNet):
        return [net.logits(output) for output in unroll_cross(net, picture, starts + 1, depth)]
    embedded = picture.features[:, 0] if picture.features.shape[1] > 1 else None
    outputs = unroll(net, picture.tokens, picture.features[:, -1], [starts] * depth, embedded)
    return [net.logits(output) for output in outputs]


@torch.inference_mode()
def acceptance_figures(net: FeatureNet | CrossNet, dialogues: Sequence[DialogueFeatures], depth: int) -> dict[str, float]:
    """Chain drafting from every place of greedy answers."""
    rows = [torch.zeros(0, depth, dtype=torch.long)]
    for dialogue in dialogues:
        inside = torch.arange(max(0, dialogue.first - 2), len(dialogue.tokens) - 1 - depth, device=dialogue.tokens.device)
        if len(inside):
            logits = draft_logits(net, cast(PictureDialogueFeatures, dialogue), inside, depth)
            ranks = [acceptance.ranks_of(one, dialogue.tokens[inside + 2 + step]) for step, one in enumerate(logits)]
            rows.append(torch.stack(ranks, 1).cpu())
    return acceptance.figures(torch.cat(rows))


TARGET = WEIGHTS / "scenes_vlm.safetensors"
DEPTH = 5
KEEP = 0.75
FITTED = 60
MEASURED = 80
TEXT_ONLY = {"width": 128, "layers": 4, "heads": 4, "inner": 384, "window": 256}


@dataclass(frozen=True)
class Kind:
    """Which ``view`` of a prompt one drafter gets, which hidden states it reads, and its network and loss."""

    view: str
    taps: Callable[[int], tuple[int, ...]]
    network: Callable[[Learner, Any, list[int]], Any]
    loss: Callable[..., Tensor]


@dataclass(frozen=True)
class Settings(feature.Settings):
    """Small networks on short answers: many answers an update, and a higher rate."""

    peak: float = 0.004
    decay: float = 0.02
    every: float = 1.0
    batch: int = 12
    measured: int = 30


class PictureTraining(FeatureTraining):
    """A drafter of one kind on the target's answers about pictures."""

    net: Any

    def __init__(self, kind: Kind, learner: Learner, tokenizer: Any, spoken: PictureDialogues, settings: Settings) -> None:
        layers, (training, held_out) = int(learner.model.config.text_config.num_hidden_layers), spoken.split()
        store: Any = PictureStore(learner, Writer(tokenizer), spoken, kind.taps(layers), kind.view, KEEP)
        net = kind.network(learner, store, training[:: max(1, len(training) // FITTED)])
        super().__init__(net, store, training, held_out, settings, partial(kind.loss, net), self.accepted)

    def accepted(self, numbers: Sequence[int]) -> dict[str, float]:
        """Chains along these answers."""
        return acceptance_figures(self.net, self.store.get(numbers), DEPTH)

    def figures(self) -> dict[str, float]:
        return self.accepted(self.held_out[:MEASURED])


class TextOnlyTraining(TokenTraining):
    """A small language model that knows nothing of the pictures (Gagrani et al., arXiv 2404.08856)."""

    def __init__(self, learner: Learner, tokenizer: Any, spoken: PictureDialogues, settings: small_draft.Settings) -> None:
        embedding, writer = learner.model.get_input_embeddings().weight.detach().float(), Writer(tokenizer)
        markers, parts = data.Markers((writer.user,), (writer.user,), writer.end), spoken.split()
        shape = {**TEXT_ONLY, "draft_vocab": len(embedding)}
        model = small_draft.fresh(embedding, markers, spoken.dialogues, parts[0], shape, settings.seed)
        super().__init__(model, spoken.dialogues, markers, parts, settings)

    def figures(self) -> dict[str, float]:
        greedy = data.greedy_only(self.dialogues, self.held_out)[:MEASURED]
        return acceptance.chain_agreement(self.model, self.dialogues, greedy, self.markers, DEPTH)


def make(job: Job) -> None:
    """Train, measure on held-out pictures, write the weights and print their card's line."""
    target = told_apart(TARGET)  # now: the file may be another by the time this is done
    learner, tokenizer, spoken = target_and_answers(job)
    state: Any
    if job.recipe.name == "vlm_text_only":
        state = TextOnlyTraining(learner, tokenizer, spoken, driver.settings_for(job, learner.model.device, small_draft.Settings))
        save: driver.Save = partial(small_lm.save, state.model)
    else:
        settings = driver.settings_for(job, learner.model.device, Settings)
        state = PictureTraining(KINDS[job.recipe.name], learner, tokenizer, spoken, settings)
        save = partial(feature_file.save, state.net)
    print(f"{len(state.training)} answers to learn from; {state.settings}", flush=True)
    line = f"{len(state.training)} answers of scenes-vlm about its own scenes"
    driver.run(job, state, line, save, tokenizer_hash=tokenizer_hash(tokenizer), **{LEARNED_FROM: target})


def target_and_answers(job: Job) -> tuple[Learner, Any, PictureDialogues]:
    """The target that ships, and its own answers. Raises ModelUnavailable when there is no such target yet."""
    model: Any
    model, tokenizer = shipped.load(TARGET)
    learner = Learner.around(model.to(choose_device(job.device)), Shape())
    return learner, tokenizer, answered(learner, tokenizer, TARGET, driver.say)


def _shared(learner: Learner) -> tuple[Tensor, Tensor]:
    model = learner.model
    return model.get_input_embeddings().weight.detach().float(), model.get_output_embeddings().weight.detach().float()


def _from_last_layer(steps: int) -> Callable[[Learner, Any, list[int]], FeatureNet]:
    """A narrow network that starts from the target's last layer and a linear guess, with this many step vectors."""

    def build(learner: Learner, store: Any, numbers: list[int]) -> FeatureNet:
        layers = int(learner.model.config.text_config.num_hidden_layers)
        config = replace(shape_of(learner.model.config, (layers,), False), steps=steps)
        net = FeatureNet(config, *_shared(learner), None).to(store.device)
        start(net, learner.model.model.text_model, sample(store, numbers, net.embedding, slice(-1, None)))
        return net

    return build


def _crossed(learner: Learner, store: Any, numbers: list[int]) -> CrossNet:
    """Decoder layers that start silent, a cross-attention that starts shut."""
    layers = int(learner.model.config.text_config.num_hidden_layers)
    config = CrossConfig(**{**vars(shape_of(learner.model.config, (0, layers), False)), "keep": KEEP})
    torch.manual_seed(0)
    net = CrossNet(config, *_shared(learner)).to(store.device)
    with torch.no_grad():
        for name, value in net.named_parameters():
            if value.ndim == 2:
                silent = name.startswith(("first.", "last.")) and ("o_proj" in name or "down_proj" in name)
                value.normal_(std=0.0 if silent else value.shape[1] ** -0.5)
        net.norm.weight.copy_(learner.model.model.text_model.norm.weight)
    return net


KINDS = {
    "vlm_eagle": Kind(ALL, lambda layers: (0, layers), _from_last_layer(0), all_rows_loss),
    "vlm_hivis": Kind(WORDS, lambda layers: (layers,), _from_last_layer(STEPS), words_loss),
    "vlm_dream": Kind(COMPRESSED, lambda layers: (0, MIDDLE, layers), _crossed, cross_loss),
}
