"""Text requests: a causal language model, its tokenizer, and the prompt as a chat turn or as it stands."""

from __future__ import annotations

import hashlib

from specviz.engine.sampling import Warp
from specviz.errors import BadInput, ContextFull
from specviz.methods.parameters import build
from specviz.methods.resources import MethodResources
from specviz.models.drafters.drafts import draft_model
from specviz.models.drafters.grouped import grouped_model
from specviz.models.drafters.heads import drafting_heads, ours
from specviz.models.drafters.intermediate_models import middle_model
from specviz.models.text.load import load_causal_lm
from specviz.request import Memory, Request, refuse_unused
from specviz.requests.prepared import Prepared, Progress, measured_curve, suited
from specviz.targets.causal import causal_target


def prepare(request: Request, memory: Memory, progress: Progress) -> Prepared:
    """Load and check. Raises a SpecvizError that says what to change."""
    method = suited(request.method, "text", request.target)
    if request.image is not None:
        raise BadInput(f"{request.target} reads no pictures. Leave the picture out, or choose a target that does: scenes-vlm.")
    refuse_unused(request, {"guidance": "only a model that draws pictures is guided by its prompt"})
    warp = Warp(request.temperature, request.top_k, request.top_p)
    parameters = build(method.parameters, request.parameters, request.method)
    loaded = load_causal_lm(request.target, request.dtype, request.device, progress)
    target = causal_target(loaded.model, loaded.name, loaded.eos_ids, request.tier)
    text = loaded.text
    ids = text.encode(request.prompt, request.raw)
    if len(ids) + request.max_new_tokens > target.context_length:
        raise ContextFull(
            f"The prompt has {len(ids)} tokens; with {request.max_new_tokens} new ones that is more than the "
            f"{target.context_length} that {loaded.name} can see. Shorten the prompt or ask for fewer tokens."
        )
    parts = MethodResources(
        target=target,
        warp=warp,
        prompt_key=hashlib.sha256(repr((loaded.name, ids)).encode()).hexdigest(),
        recall=memory.recall,
        cost_curve=lambda: measured_curve(target, progress),
        draft_model=lambda: draft_model(request.draft, loaded, target, progress),
        heads=lambda kind: drafting_heads(kind, request.draft, loaded, target, progress),
        middle=lambda kind: middle_model(kind, request.draft, loaded, target, progress),
        grouped=lambda kind, group: grouped_model(kind, group, request.draft, loaded, target, progress),
        draft_name=request.draft or "",
        own_heads=ours(request.draft),
        curve_of=lambda draft: measured_curve(draft, progress),
    )
    template = {"chat_template": text.uses_template(request.raw), "tokenizer_hash": loaded.tokenizer_hash}
    return Prepared(request, method, parameters, loaded, target, text, ids, parts, facts=template, memory=memory)
