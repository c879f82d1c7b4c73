"""``train gto``: a low-rank change to the EAGLE-3 drafter, rewarded for its trees."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from specviz.drafters.networks.weights import read_weights, write_weights
from specviz.models.drafters.heads import load_heads
from specviz.models.drafters.lora_heads import CHANGES, digest, independent_copy
from specviz.targets.text import TextTarget
from specviz.training.common import data, loop, parallel
from specviz.training.common.card import card, dialogues_line, print_card
from specviz.training.common.features import FeatureStore, store_for
from specviz.training.common.loop import Schedule, Step, TrainState
from specviz.training.common.optimizer import Optimizer
from specviz.training.common.parallel import cores
from specviz.training.common.target_assets import TargetAssets, target_assets
from specviz.training.feature import eagle3, gto
from specviz.training.feature.acceptance_eval import acceptance_figures
from specviz.training.feature.gto import Arena, Groups, LowRank
from specviz.training.feature.recipes import read_all
from specviz.training.feature.tree_reward import Size, Tree, grown, worth
from specviz.training.registry import WEIGHTS, Job

STRIDE = 5
MEASURED = 40
START = "eagle3"


@dataclass(frozen=True)
class Settings(Schedule):
    """An update reads ``batch`` dialogues, one at a time on each of ``workers`` cores.
    ``average`` is the share that an average of the weights keeps at each update."""

    minutes: float = 10.0
    peak: float = 0.0008
    warm: int = 10
    every: float = 1.0
    workers: int = 2
    batch: int = 8
    rank: int = 16
    average: float = 0.97
    groups: Groups = field(default_factory=Groups)


class GtoTraining(TrainState):
    """A low-rank ``change`` to the drafter of ``arena``, learned with the tree's reward."""

    unit = "prefixes"
    settings: Settings

    def __init__(
        self, arena: Arena, change: LowRank, store: FeatureStore, training: Sequence[int], settings: Settings,
    ) -> None:  # fmt: skip
        super().__init__(settings, Optimizer(change.factors, average=settings.average))
        self.arena, self.change, self.store = arena, change, store
        self.training = training
        self._gains: list[Tensor] = []
        self.settle()

    def settle(self) -> None:
        self.change.put()

    def numbers_of(self, update: int) -> list[int]:
        """The dialogues of an update, the same after a resumption."""
        batch = self.settings.batch
        return data.in_turn(self.training, update * batch, batch, [self.settings.seed])

    def step(self, share: float) -> Step:
        """Cross-entropy, and the reward of trees grown from a few prefixes of each dialogue."""
        number, arena, how, seed = self.progress.updates, self.arena, self.settings.groups, self.settings.seed
        numbers, judgements = self.numbers_of(number), list[gto.Judged]()
        answers = sum(len(self.store.dialogues.answer(dialogue_number)) for dialogue_number in numbers)
        prefixes = self.settings.batch * how.groups * how.members

        def loss(part: tuple[int, int]) -> Tensor:
            place, dialogue_number = part
            dialogue = self.store.get([dialogue_number])[0]
            generator = torch.Generator().manual_seed(seed + 1_000_003 * number + place)
            total = eagle3.loss(arena.net, arena.place, dialogue, generator, 1.0 / answers)
            starts = gto.chosen_starts(dialogue, how, np.random.default_rng([seed, number, place]))
            if not len(starts):
                return total
            judgement = gto.judged(arena, dialogue, starts, how.size)
            judgements.append(judgement)
            pulled = gto.tree_loss(arena, dialogue, judgement, gto.WEIGHT / prefixes)
            return total if pulled is None else total + pulled

        gradients, value = parallel.gradients(list(enumerate(numbers)), loss, self.change.leaves, self.settings.workers)
        self._gains += [judgement.gain for judgement in judgements]
        return Step(value, sum(len(judgement.gain) for judgement in judgements), self.change.gradients(gradients))

    def measure(self) -> dict[str, float]:
        """Of the prefixes since the last milestone, the share whose trees differed and the mean gain."""
        gain = torch.cat(self._gains) if self._gains else torch.zeros(1)
        self._gains = []
        return {"differing": float((gain != 0).float().mean()), "gain": float(gain.mean())}


Forests = Mapping[int, Sequence[Tree]]


@torch.inference_mode()
def forests_of(state: GtoTraining, numbers: Sequence[int], size: Size, factors: dict[str, Tensor]) -> dict[int, list[Tree]]:
    """For each dialogue the tree behind every token from the last of its prompt to the last but one, under ``factors``."""
    state.change.put(factors)
    forests = {}
    for number in numbers:
        dialogue = state.store.get([number])[0]
        starts = torch.arange(dialogue.first - 2, len(dialogue.tokens) - 2, device=dialogue.tokens.device)
        features = dialogue.features[:, eagle3.TAPS].flatten(1)
        forests[number] = grown(state.arena.net, dialogue.tokens, features, starts, size)
    return forests


def tau_of(state: GtoTraining, forests: Forests, depth: int) -> float:
    """Tokens a step, bonus included, of decoding these dialogues' (greedy) answers with their trees."""
    steps, emitted = 0, 0
    for number, trees in forests.items():
        answer = [int(token) for token in state.store.dialogues.answer(number)]
        done = 0
        while done + depth + 1 <= len(answer):  # a step cut by the end of the answer is left out
            followed = trees[done].along(answer[done:])
            done, steps, emitted = done + followed + 1, steps + 1, emitted + followed + 1
    return emitted / max(1, steps)


def rewards_of(state: GtoTraining, arms: Sequence[Forests], members: int) -> list[float]:
    """Each arm's mean tree reward at the same places: every few tokens of the dialogues' answers."""
    sums, places = [0.0] * len(arms), 0
    for number in arms[0]:
        text = [int(token) for token in state.store.ids(number)]
        first = len(text) - len(state.store.dialogues.answer(number))
        offsets = range(0, len(arms[0][number]), STRIDE)
        roots = [first - 1 + place for place in offsets]
        forests = [[arm[number][place] for place in offsets] for arm in arms]
        worths = worth(state.arena.target, text, roots, forests, members)
        sums = [total + sum(tree_worth.reward for tree_worth in row) for total, row in zip(sums, worths, strict=True)]
        places += len(roots)
    return [total / max(1, places) for total in sums]


def measured(
    state: GtoTraining, arms: Mapping[str, dict[str, Tensor]], numbers: Sequence[int], size: Size, say: Callable[[str], None]
) -> dict[str, dict[str, float]]:
    """τ and mean tree reward of each arm, on held-out greedy answers, all arms at the same places; and by depth how often
    the truth was drafted first or among five."""
    forests = {name: forests_of(state, numbers, size, factors) for name, factors in arms.items()}
    rewards = rewards_of(state, list(forests.values()), 4 * STRIDE)
    figures = {}
    for (name, forest), reward in zip(forests.items(), rewards, strict=True):
        state.change.put(arms[name])
        acceptance = acceptance_figures(state.arena.net, state.store, eagle3.TAPS, numbers, size.depth)
        acceptance.pop("tau")  # of chains; the trees' own counts
        figures[name] = {"tau": tau_of(state, forest, size.depth), "reward": reward, **acceptance}
        say(f"{name}: " + "  ".join(f"{key} {value:.4f}" for key, value in figures[name].items()))
    return figures


def unlearned(change: LowRank) -> dict[str, Tensor]:
    """Factors of no change at all: the start."""
    return {name: torch.zeros_like(value) for name, value in change.factors.items()}


def make(job: Job) -> None:
    """Train, measure start and end on held-out answers, write ``assets/weights/gto.safetensors``."""
    files = data.find(job.data)
    assets = target_assets(job.device)
    device = assets.target.device
    torch.set_num_threads(1 if device.type == "cpu" else torch.get_num_threads())  # cores are shared out by dialogues
    settings = settings_for(device, job)
    state, held_out = prepare(assets, data.read_all(files), settings)
    print(f"{len(state.training)} dialogues to learn from, {len(held_out)} to measure on; {settings}", flush=True)
    read_all(state.store, held_out, settings.workers)
    name = job.recipe.name
    progress = loop.train(state, loop.checkpoint_of(name))
    path, learned = WEIGHTS / f"{name}.safetensors", state.optimizer.averaged()
    runs = {
        "start": unlearned(state.change),
        "gto": rounded(loop.quantised_file(name), learned),
    }
    figures = measured(state, runs, held_out, settings.groups.size, lambda line: print(line, flush=True))
    facts = card(
        name, settings, dialogues_line(files), progress.spent(device.type, "prefixes"), figures,
        **{CHANGES: base_of(), "tokenizer_hash": assets.target.tokenizer_hash},
    )  # fmt: skip
    write_weights(path, learned, facts)
    print_card(path, facts)


def settings_for(device: torch.device, job: Job) -> Settings:
    """A GPU takes more dialogues an update; a processor one a core at a time."""
    common = {"minutes": job.minutes, "resume": job.resume}
    return Settings(batch=16, workers=1, **common) if device.type == "cuda" else Settings(workers=cores(), **common)


def prepare(assets: TargetAssets, dialogues: data.Dialogues, settings: Settings) -> tuple[GtoTraining, list[int]]:
    """The rewarded training, and the held-out dialogues with greedy answers that everything is measured on."""
    loaded = assets.target
    target = TextTarget(loaded.model, loaded.name, sorted(loaded.eos_ids), "eager")
    shipped = load_heads(START, None, loaded, target)
    net, before = independent_copy(shipped).float(), independent_copy(shipped).float()
    training, held_out = data.split(dialogues)
    _, unread = data.set_apart(dialogues, training)
    store = store_for(loaded.model, loaded.name, dialogues, assets.markers)
    ids = torch.arange(target.vocab_size, device=target.device) if net.draft_ids is None else net.draft_ids
    arena = Arena(net, before, target, data.places_in(ids, target.vocab_size))
    change = LowRank(net, settings.rank, settings.seed)
    return GtoTraining(arena, change, store, unread, settings), data.greedy_only(store.dialogues, held_out)[:MEASURED]


def rounded(path: Path, factors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Write factors, and read what the rounding left of them: that is what is measured."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_weights(path, factors, {CHANGES: base_of()})
    device = next(iter(factors.values())).device
    return {name: value.to(device) for name, value in read_weights(path)[0].items()}


def base_of() -> str:
    """The file that is changed."""
    return f"{START}.safetensors {digest(WEIGHTS / f'{START}.safetensors')}"
