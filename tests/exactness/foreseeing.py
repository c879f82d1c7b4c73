"""Drafters for the ladder: one that foresees the target as well as told, and tiny networks of the shipped kinds."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specviz.drafters.feature_net import FeatureConfig, FeatureNet
from specviz.drafters.silent import Silent
from specviz.engine.interfaces import Context, Pick, Proposal, Round, Session, TargetPass
from specviz.engine.tree import DraftTree
from specviz.targets.text import TextTarget
from specviz.trace.schema import Note
from tests.tiny import perturbed


class Foreseer(Silent):
    """Says about any node of a tree what a copy of the target, its weights shaken by ``noise``, would say there."""

    support: Tensor | None = None

    def __init__(self, target: TextTarget, noise: float) -> None:
        self._model = TextTarget(perturbed(target.model, noise), "foreseeing", ())
        self._session: Session | None = None
        self._calls = 0

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        self._session = self._model.open(len(context.ids) + context.room)
        if len(context.ids) > 1:
            self._session.prefill(list(context.ids[:-1]))

    def logits(
        self, context: Context, tokens: Sequence[int], parents: Sequence[int], nodes: Sequence[int]
    ) -> Tensor | None:
        assert self._session is not None
        found = self._session.score(DraftTree.of(tokens, parents)).logits[list(nodes)]
        self._session.rewind(self._session.length)
        self._calls += 1
        return found

    def rows(
        self, context: Context, tokens: Sequence[int], parents: Sequence[int], nodes: Sequence[int]
    ) -> list[Proposal | None]:
        found = self.logits(context, tokens, parents, nodes)
        assert found is not None
        return [Proposal(law) for law in context.warp.log_probabilities(found).exp()]

    def observe(self, finished: Round) -> None:
        assert self._session is not None
        tokens = finished.draft.tree.host_tokens
        self._session.prefill([tokens[node] for node in (0, *finished.verdict.path)])

    def calls(self) -> int:
        made, self._calls = self._calls, 0
        return made

    def story(self, picks: Sequence[Pick]) -> tuple[Note, ...]:
        return ()

    def close(self) -> None:
        if self._session is not None:
            self._session.close()


def tiny_network(kind: str, target: TextTarget, draft_ids: Sequence[int] | None = None) -> FeatureNet:
    """An untrained network for a tiny target: "eagle" the narrow kind behind its last layer, "eagle3" the wide one."""
    config, wide = target.config, kind == "eagle3"
    torch.manual_seed(5)
    shape = FeatureConfig(
        vocab_size=config.vocab_size,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_size=config.hidden_size // config.num_attention_heads,
        inner=config.intermediate_size,
        taps=(0, 1, 2) if wide else (config.num_hidden_layers,),
        wide=wide,
    )
    ids = None if draft_ids is None else torch.tensor(draft_ids)
    head = target.model.get_output_embeddings().weight.detach()
    network = FeatureNet(shape, target.model.get_input_embeddings().weight.detach(), head, ids)
    return network.to(target.device, target.dtype).eval().requires_grad_(False)
