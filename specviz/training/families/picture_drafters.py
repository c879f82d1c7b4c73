"""``train vlm_eagle``, ``vlm_hivis``, ``vlm_dream``, ``vlm_text_only``: drafters for the small vision-language model.

Drafters learn from the target's answers about pictures. The target's hidden states are computed on first use and stay in memory
as float16: a few hundred megabytes.

*EAGLE with visual rows* (arXiv 2401.15077): regression of the next feature and 0.1 times the cross-entropy, over all rows.
*HiViS* (2509.23928): text rows only, and three autoregressive steps with step embeddings. A deeper step counts only where a
tree would still contain the true token. The loss also includes the cross-entropy over the target's ten most likely tokens.
*DREAM* (2505.19201): KL divergence from the target's distribution, plus regression of the last (0.2) and of the middle feature.
Axis names: ``token``, ``tap``, ``hidden``, ``start`` (places that draft), ``row``, ``step``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafting.networks.cross_net import CrossConfig, CrossNet
from specviz.drafting.networks.eagle_head import EagleHead
from specviz.models.device import choose_device
from specviz.models.hub.cache_dir import cache_folder
from specviz.models.hub.packed_model import LEARNED_FROM, digest, named
from specviz.models.text.text import tokenizer_hash
from specviz.models.vision import scenes as shipped
from specviz.targets.attention_maps import entropies, importance, middle_layers, most_attended
from specviz.training import acceptance, data, driver, parallel
from specviz.training.driver import Job, Schedule
from specviz.training.families import scenes, small_draft
from specviz.training.families.feature import FeatureTraining, regression, sample, sampled_starts, shape_of, start, unroll
from specviz.training.families.scenes_render import Renderer
from specviz.training.families.scenes_vlm import Learner, answers
from specviz.training.families.scenes_words import Exchange, Writer, exchanges
from specviz.training.families.small_draft import TokenTraining
from specviz.training.features import LARGEST, DialogueFeatures
from specviz.training.registry import WEIGHTS

SCENES = 700
HELD_OUT_SCENES = 70
QUESTIONS = 2
_SEEDS_FROM = 1 << 36
_AT_A_TIME = 35
_WARM_EVERY = (0.0, 1.0, 0.0, 0.7)
"""Temperatures of successive groups of training scenes. Held-out answers are greedy."""
_LONGEST = 220


class PictureDialogues(NamedTuple):
    """Dialogues about pictures, without image tokens. ``scene`` [dialogue]: number of the scene; the last scenes are held out."""

    dialogues: data.Dialogues
    scene: np.ndarray

    def split(self) -> tuple[list[int], list[int]]:
        """Return the numbers of the training dialogues and of the held-out dialogues."""
        training = self.scene < SCENES - HELD_OUT_SCENES
        return np.flatnonzero(training).tolist(), np.flatnonzero(~training).tolist()


def scene_of(number: int) -> tuple[np.ndarray, list[Exchange]]:
    """Return the picture of scene ``number``, uint8 [row, column, 3], and what is said about it."""
    training = number < SCENES - HELD_OUT_SCENES
    scene, paint = scenes.compose(_SEEDS_FROM + number) if training else scenes.held_out(5000 + number)
    return _renderer().seeded(number).draw(scenes.stacked([paint]))[0].numpy(), exchanges(scene, QUESTIONS)


@cache
def _renderer() -> Renderer:
    return Renderer(torch.device("cpu"))


@torch.no_grad()
def _write(learner: Learner, tokenizer: Any) -> PictureDialogues:
    """Decode answers about all scenes, with long and short answers in separate batches."""
    writer, generator = Writer(tokenizer), torch.Generator(learner.model.device).manual_seed(0)
    spoken, about = list[data.Dialogue](), list[int]()
    for begin in range(0, SCENES, _AT_A_TIME):
        chosen = [scene_of(number) for number in range(begin, min(SCENES, begin + _AT_A_TIME))]
        visual = learner.tokens_of([picture for picture, _ in chosen])
        warm = 0.0 if begin >= SCENES - HELD_OUT_SCENES else _WARM_EVERY[begin // _AT_A_TIME % len(_WARM_EVERY)]
        asked = [(place, exchange) for place, (_, about) in enumerate(chosen) for exchange in about]
        for long in (True, False):
            part = [(place, writer.ids(one.question)) for place, one in asked if (one.kind == "describe") == long]
            places, questions = [place for place, _ in part], [ids for _, ids in part]
            with parallel.arithmetic(learner.model.device):
                found = answers(learner, visual[places], questions, writer, _LONGEST, warm, generator)
            for ids, row in zip(questions, found, strict=True):
                ended = row if row[-1] == writer.end else (*row, writer.end)
                spoken.append(data.Dialogue((*ids, writer.assistant), ended, warm))
            about += [begin + place for place in places]
        driver.say(f"{len(spoken)} answers about {begin + len(chosen)} of {SCENES} scenes")
    return PictureDialogues(data.packed(spoken), np.array(about))


WORDS, ALL, COMPRESSED = "words", "all", "compressed"
"""View that a drafter has of a prompt: text rows, all rows, or text rows and the most attended visual tokens."""
MIDDLE = -1
"""Tap that denotes the hidden state of the middle layer with the lowest attention entropy, chosen per token."""
KEEP = 0.75
"""Share of the visual tokens in the compressed view."""
TAPS: Mapping[str, Callable[[int], tuple[int, ...]]] = {
    WORDS: lambda layers: (layers,), ALL: lambda layers: (0, layers), COMPRESSED: lambda layers: (0, MIDDLE, layers)
}  # fmt: skip
"""Function from the number of layers to the taps, by view. A tap is a hidden state in transformers' numbering, or MIDDLE."""


@dataclass(frozen=True)
class PictureDialogueFeatures(DialogueFeatures):
    """Features of a dialogue about a picture.

    ``tokens`` may include image tokens, whose embeddings are tap 0. ``positions`` [token]: positions in the target for the
    compressed view, else consecutive.
    """

    positions: Tensor


class PictureStore:
    """Store of hidden states in float16, for one ``view``. ``taps``: hidden states to store; empty: the taps of the view."""

    keeps = True

    def __init__(self, learner: Learner, writer: Writer, spoken: PictureDialogues, view: str, taps: Sequence[int] = ()) -> None:
        layers = int(learner.model.config.text_config.num_hidden_layers)
        self.taps, self.view, self.writer = taps or TAPS[view](layers), view, writer
        self.dialogues, self.spoken, self.device = spoken.dialogues, spoken, learner.model.device
        self._learner, self._known = learner, dict[int, PictureDialogueFeatures]()

    def has(self, number: int) -> bool:
        """Whether the features of the dialogue are stored."""
        return number in self._known

    def get(self, numbers: Sequence[int]) -> list[DialogueFeatures]:
        """Return the dialogues ``numbers`` with features; missing features are computed first."""
        self._known |= {number: self._compute(number) for number in numbers if number not in self._known}
        return [replace(known, features=known.features.float()) for known in map(self._known.__getitem__, numbers)]

    @torch.no_grad()
    def _compute(self, number: int) -> PictureDialogueFeatures:
        """Return a dialogue in the drafter's view, with features from a target pass."""
        text = self._learner.model.model.text_model
        with parallel.arithmetic(self.device):
            visual = self._learner.tokens_of([scene_of(int(self.spoken.scene[number]))[0]])[0]
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
        if self.view == COMPRESSED:  # chosen by the prompt without the last token, as in drafting
            prompt = {layer: states[: first - 1] for layer, states in hidden.items()}
            weights = importance(text, prompt, places[: first - 1], range(1, 1 + pictured))
            shown[[1 + place for place in most_attended(weights, KEEP)]] = True
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
        return PictureDialogueFeatures(tokens[chosen], features, first - (len(ids) - len(chosen)), positions)


FEATURE_WEIGHT = 0.2
NEAR_WEIGHT = 1.0
NEAR = 10
ALIVE = 5
STEPS = 3
NOISE = 0.1
"""Half the width of the uniform noise on features."""


def noisy(features: Tensor, generator: torch.Generator) -> Tensor:
    """Add noise to features, since a drafter later reads approximate features."""
    return features + (torch.rand(features.shape, generator=generator).to(features.device) - 0.5) * (2 * NOISE)


def all_rows_loss(net: EagleHead, dialogue: DialogueFeatures, generator: torch.Generator, scale: float) -> Tensor:
    """Return EAGLE's loss. Taps: input embeddings, last feature."""
    embedded, features = dialogue.features[:, 0], dialogue.features[:, -1]
    rows = sampled_starts(dialogue.first, len(dialogue.tokens), [1.0], generator)
    outputs = unroll(net, dialogue.tokens, noisy(features, generator), rows, embedded)[0]
    return regression(net, outputs, features[rows[0] + 1])[0].sum() * scale


def words_loss(net: EagleHead, dialogue: DialogueFeatures, generator: torch.Generator, scale: float) -> Tensor:
    """Return HiViS's loss. A step counts if the target's top token was among the drafter's top five in all earlier steps."""
    features = dialogue.features[:, -1]
    rows = sampled_starts(dialogue.first, len(dialogue.tokens), [1.0] * STEPS, generator)
    outputs = unroll(net, dialogue.tokens, noisy(features, generator), rows)
    total, alive = torch.zeros((), device=features.device), torch.ones(len(rows[0]), device=features.device)
    for step, (chosen, output) in enumerate(zip(rows, outputs, strict=True)):
        alive = alive[torch.searchsorted(rows[step - 1], chosen)] if step else alive
        losses, truth = regression(net, output, features[chosen + 1 + step])
        ours = net.logits(output)
        near = truth.topk(NEAR, dim=-1).indices
        losses = losses + NEAR_WEIGHT * F.cross_entropy(ours.gather(1, near), truth.gather(1, near).softmax(-1), reduction="none")
        total = total + (losses * alive).sum()
        alive = alive * (ours.topk(ALIVE, dim=-1).indices == truth.argmax(-1, keepdim=True)).any(-1)
    return total * scale


def cross_loss(net: CrossNet, dialogue: DialogueFeatures, generator: torch.Generator, scale: float) -> Tensor:
    """Return DREAM's loss. Taps: input embeddings, middle feature, last feature."""
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
    """Return the outputs [start, hidden] of each draft step from the rows ``starts`` along the true text.

    Step 0 is the root's row, which reads the target's features up to the previous row. In step j, the outputs of steps 0 to j - 1
    replace later features; embeddings are always true.
    """
    embedded, features, positions = picture.features[:, 0], picture.features[:, -1], picture.positions
    outputs = net.whole(embedded, features, positions)[0][starts][None]
    for step in range(1, depth):
        rows = []
        for number, end in enumerate((starts + step + 1).tolist()):
            thoughts = torch.cat((features[: end - step - 1], outputs[:, number], features[end - 1 : end]))
            rows.append(net.whole(embedded[:end], thoughts, positions[:end])[0][-1])
        outputs = torch.cat((outputs, torch.stack(rows)[None]))
    return list(outputs)


def draft_logits(net: EagleHead | CrossNet, picture: PictureDialogueFeatures, starts: Tensor, depth: int) -> list[Tensor]:
    """Return the logits [start, vocab] of each draft step along the true text. ``starts``: as in :func:`unroll`."""
    if isinstance(net, CrossNet):
        return [net.logits(output) for output in unroll_cross(net, picture, starts + 1, depth)]
    embedded = picture.features[:, 0] if picture.features.shape[1] > 1 else None
    outputs = unroll(net, picture.tokens, picture.features[:, -1], [starts] * depth, embedded)
    return [net.logits(output) for output in outputs]


def acceptance_metrics(net: EagleHead | CrossNet, dialogues: Sequence[DialogueFeatures], depth: int) -> dict[str, float]:
    """Return the acceptance of chains from every position of greedy answers."""
    draft: Any = partial(draft_logits, net, depth=depth)
    return acceptance.metrics(acceptance.chain_ranks(dialogues, depth, draft))


TARGET = WEIGHTS / "scenes_vlm.safetensors"
DEPTH = 5
FITTED = 60
TEXT_ONLY = {"width": 128, "layers": 4, "heads": 4, "inner": 384, "window": 256}
VIEWS = {"vlm_eagle": ALL, "vlm_hivis": WORDS, "vlm_dream": COMPRESSED}
LOSSES: Mapping[str, Callable[..., Tensor]] = {ALL: all_rows_loss, WORDS: words_loss, COMPRESSED: cross_loss}


class PictureTraining(FeatureTraining):
    """Training of a drafter with one view."""

    net: Any

    def __init__(self, view: str, learner: Learner, tokenizer: Any, spoken: PictureDialogues, settings: Schedule) -> None:
        store: Any = PictureStore(learner, Writer(tokenizer), spoken, view)
        training, held_out = spoken.split()
        net = network(learner, store, training[:: max(1, len(training) // FITTED)])
        measured = lambda numbers: acceptance_metrics(net, store.get(numbers), DEPTH)  # noqa: E731
        super().__init__(net, store, training, held_out, settings, partial(LOSSES[view], net), measured)


class TextOnlyTraining(TokenTraining):
    """Training of a small language model on the text of the dialogues (Gagrani et al., arXiv 2404.08856)."""

    def __init__(self, learner: Learner, tokenizer: Any, spoken: PictureDialogues, settings: Schedule) -> None:
        embedding, writer = learner.model.get_input_embeddings().weight.detach().float(), Writer(tokenizer)
        markers, parts = data.Markers((writer.user,), (writer.user,), writer.end), spoken.split()
        shape = {**TEXT_ONLY, "draft_vocab": len(embedding)}
        model = small_draft.new_model(embedding, markers, spoken.dialogues, parts[0], shape)
        super().__init__(model, spoken.dialogues, markers, parts, settings)


def make(job: Job) -> None:
    """Train, measure on held-out pictures, and write the weights."""
    target = named(TARGET)  # before training, during which the file may change
    learner, tokenizer, spoken = target_and_answers(job)
    settings = driver.settings_for(job, learner.model.device)
    state: Any
    if job.recipe.name == "vlm_text_only":
        state = TextOnlyTraining(learner, tokenizer, spoken, settings)
        net = state.model
    else:
        state = PictureTraining(VIEWS[job.recipe.name], learner, tokenizer, spoken, settings)
        net = state.net
        net.config = replace(net.config, **job.recipe.shape)
    line = f"{len(state.training)} answers of scenes-vlm about its own scenes"
    driver.run(job, state, line, net.save, tokenizer_hash=tokenizer_hash(tokenizer), **{LEARNED_FROM: target})


def target_and_answers(job: Job) -> tuple[Learner, Any, PictureDialogues]:
    """Return the shipped target, the tokenizer and the target's answers, which a file in the cache keeps for these weights.

    Raises ModelUnavailable if the target is missing.
    """
    model: Any
    model, tokenizer = shipped.load(TARGET)
    learner = Learner(model.to(choose_device(job.device)))
    file = cache_folder() / "data" / f"picture-answers-{digest(TARGET)}.npz"
    scenes_file = file.with_suffix(".npy")
    if not file.is_file():
        written = _write(learner, tokenizer)
        data.write(file, written.dialogues)
        np.save(scenes_file, written.scene)
    return learner, tokenizer, PictureDialogues(data.read(file), np.load(scenes_file, allow_pickle=False))


def network(learner: Learner, store: Any, numbers: list[int]) -> EagleHead | CrossNet:
    """Return an initialised network for the store's view.

    For the compressed view, the decoder layers add zero. For other views, a feature network starts from the target's last layer
    and a linear fit to the dialogues ``numbers``.
    """
    model: Any = learner.model
    layers, embedding = store.taps[-1], model.get_input_embeddings().weight.detach().float()
    head = model.lm_head.weight.detach().float()
    narrow = shape_of(model.config, (layers,), False)
    if store.view != COMPRESSED:
        net = EagleHead(replace(narrow, steps=STEPS if store.view == WORDS else 0), embedding, head, None).to(store.device)
        start(net, model.model.text_model, sample(store, numbers, net.embedding, slice(-1, None)))
        return net
    torch.manual_seed(0)
    crossed = CrossNet(CrossConfig(**{**vars(narrow), "taps": (0, layers), "keep": KEEP}), embedding, head).to(store.device)
    with torch.no_grad():
        for name, value in crossed.named_parameters():
            if value.ndim == 2:
                silent = name.startswith(("first.", "last.")) and ("o_proj" in name or "down_proj" in name)
                value.normal_(std=0.0 if silent else value.shape[1] ** -0.5)
        crossed.norm.weight.copy_(model.model.text_model.norm.weight)
    return crossed
