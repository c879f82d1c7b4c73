"""How well a block drafter foresees the target, on held-out greedy answers the target itself wrote.

A greedy answer is the target's argmax at every position, so drafting along it *is* speculative decoding at T = 0; the target
need not run again.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specviz.drafters.block_drafter import BlockDrafter
from specviz.drafters.networks.block_net import BlockNet
from specviz.engine.interfaces import Context, Draft, Round, TargetPass, Verdict
from specviz.engine.sampling import Noise, Warp
from specviz.engine.tree import DraftTree
from specviz.training.common.features import DialogueFeatures, FeatureStore


@torch.inference_mode()
def levels(net: BlockNet, store: FeatureStore, numbers: Sequence[int]) -> dict[str, float]:
    """Of one forward from every place of the answers, by level: was the truth drafted first among places whose lower levels
    were right (``first1``, ...), or among five (``five1``, ...); and first whatever the lower levels were (``blind1``, ...).
    ``tau``: tokens a step of one such forward emits, the bonus included."""
    reached, right, near, blind = (torch.zeros(net.block) for _ in range(4))
    starts = 0
    for dialogue in store.get(numbers):
        hits = torch.cat([_hits(net, dialogue, phase) for phase in range(net.block)])  # [start, level, rank]
        alive = torch.ones(len(hits), dtype=torch.bool, device=hits.device)
        starts += len(hits)
        for level in range(net.block):
            hit = hits[:, level]
            reached[level] += int(alive.sum())
            near[level] += int(hit.any(1)[alive].sum())
            blind[level] += int(hit[:, 0].sum())
            alive &= hit[:, 0]
            right[level] += int(alive.sum())
    named = {
        "first": right / reached.clamp_min(1),
        "five": near / reached.clamp_min(1),
        "blind": blind / max(1, starts),
    }
    by_level = {f"{name}{level + 1}": float(rate[level]) for name, rate in named.items() for level in range(net.block)}
    return {"tau": 1 + float(right.sum()) / max(1, starts), **by_level}


def _hits(net: BlockNet, dialogue: DialogueFeatures, phase: int) -> Tensor:
    """Bool [start, level, rank]: which of the five likeliest tokens is the text's, for blocks laid at ``phase``."""
    block = net.block
    first = max(0, dialogue.first - 1 - block)
    first += (phase - first) % block
    starts = torch.arange(first, len(dialogue.tokens) - 2 * block, block, device=dialogue.tokens.device)
    outputs = net(dialogue.tokens[None, 1:], dialogue.features[None, :-1, -1], phase)[0]
    places = starts[:, None] + torch.arange(block, device=starts.device)
    best = net.draft_ids[net.logits(outputs[places]).topk(min(5, len(net.draft_ids))).indices]
    return best == dialogue.tokens[places + block + 1][..., None]


@torch.inference_mode()
def chains(net: BlockNet, store: FeatureStore, numbers: Sequence[int], forwards: int, most: int) -> dict[str, float]:
    """Chain drafting with ``forwards`` drafter forwards a step along the answers, at most ``most`` steps: mean tokens
    emitted a step (``tau``, bonus included) and a forward; ``first1``, ... and ``five1``, ... by depth as above. Steps that
    the end of an answer would cut are left out."""
    depth = forwards * net.block
    reached, right, near = torch.zeros(depth), torch.zeros(depth), torch.zeros(depth)
    steps = emitted = 0
    for dialogue in store.get(numbers):
        along = _Along(net, dialogue)
        while along.root + depth + 1 < len(dialogue.tokens) and steps < most:
            accepted, close = along.step(forwards)
            reached[: accepted + 1] += 1
            right[:accepted] += 1
            near[: accepted + int(close)] += 1
            steps, emitted = steps + 1, emitted + accepted + 1
    named = {"first": right / reached.clamp_min(1), "five": near / reached.clamp_min(1)}
    figures = {
        "tau": emitted / max(1, steps),
        "tau_per_forward": emitted / max(1, forwards * steps),
        "steps": float(steps),
    }
    return figures | {f"{name}{level + 1}": float(rate[level]) for name, rate in named.items() for level in range(depth)}


class _Along:
    """A drafter that goes along one answer; ``root`` is the place of the last committed token."""

    def __init__(self, net: BlockNet, dialogue: DialogueFeatures) -> None:
        self.tap, self.dialogue, self.root = net.config.tap, dialogue, dialogue.first - 1
        self._tokens = dialogue.tokens.tolist()
        self._drafter = BlockDrafter(net)
        self._drafter.begin(self._context(), self._pass(0, self.root))

    def _context(self) -> Context:
        device = self.dialogue.tokens.device
        return Context(
            self._tokens[: self.root + 1], self.dialogue.first, 0, Warp(), Noise(0), device, 1 << 20, record_notes=False
        )

    def _pass(self, start: int, end: int) -> TargetPass | None:
        features = self.dialogue.features[start:end, -1]
        return TargetPass(features, {self.tap: features}) if end > start else None

    def step(self, forwards: int) -> tuple[int, bool]:
        """Draft a chain, commit what was right and the token after it. How many drafts were right, and whether the truth was
        among the five likeliest where the first wrong one stood."""
        drafter, context, root = self._drafter, self._context(), self.root
        chain, support = [self._tokens[root]], drafter.support
        five: list[list[int]] = []
        for _ in range(forwards):
            logits = drafter.blocks(context, chain, range(-1, len(chain) - 1), [len(chain) - 1])
            if logits is None or support is None:
                break
            chain += support[logits[0].argmax(-1)].tolist()
            five += support[logits[0].topk(min(5, len(support))).indices].tolist()
        truth = self._tokens[root + 1 : root + 1 + len(chain)]
        accepted = next(place for place in range(len(chain)) if place + 1 == len(chain) or chain[place + 1] != truth[place])
        path = tuple(range(1, accepted + 1))
        verdict = Verdict("greedy", path, truth[accepted], "target", (), (0, *path))
        scored = self._pass(root, root + accepted + 1)
        assert scored is not None
        tree = DraftTree.of(chain, range(-1, len(chain) - 1), self.dialogue.tokens.device)
        drafter.observe(Round(context, Draft(tree), scored, verdict, truth[: accepted + 1]))
        self.root += accepted + 1
        return accepted, accepted < len(five) and truth[accepted] in five[accepted]
