"""Names shared by the vLLM plugin and its clients."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from specviz.errors import BadInput, shown
from specviz.interop.responses import converted
from specviz.methods.registry import build, get

DRAFTER = "SPECVIZ_VLLM_DRAFTER"
"""Environment variable with method and parameters for :class:`specviz.interop.vllm_plugin.proposer.Drafter`."""
INFO = "specviz:speculative_config_info"
"""Name of the plugin's metric in ``/metrics``, with the labels ``SETTINGS`` and ``DRAFTER``."""
SETTINGS = (
    "method", "model", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min", "suffix_decoding_max_tree_depth",
    "suffix_decoding_max_cached_requests", "suffix_decoding_max_spec_factor", "suffix_decoding_min_token_prob",
    "draft_sample_method",
)  # fmt: skip
"""Fields of vLLM's ``SpeculativeConfig`` that methods of this project set."""


class _Setting(Struct):
    method: str
    parameters: dict[str, Any] | None = None


def drafter_of(text: str) -> tuple[str, Any]:
    """Return method and parameters in ``text``, completed with defaults. Raises BadInput if ``text`` names no method."""
    try:
        setting = converted(_Setting, text)
        method = get(setting.method)
        return method.name, build(method.parameters, setting.parameters or {}, method.title)
    except BadInput as problem:
        usage = '{"method": "prompt_lookup", "parameters": {}}'
        raise BadInput(f"{DRAFTER} is {shown(text, 200)}; give it as {usage}. ({problem})") from None
