"""Names that the plugin in a server and a client outside agree on."""

from __future__ import annotations

DRAFTER = "SPECVIZ_VLLM_DRAFTER"
"""Environment variable that tells :class:`specviz.engines.vllm_plugin.proposer.Drafter` what it is."""
INFO = "specviz:speculative_config_info"
"""The plugin's line in ``/metrics``: its labels are ``SETTINGS`` and ``DRAFTER``."""
SETTINGS = (
    "method", "model", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min", "suffix_decoding_max_tree_depth",
    "suffix_decoding_max_cached_requests", "suffix_decoding_max_spec_factor", "suffix_decoding_min_token_prob",
    "draft_sample_method",
)  # fmt: skip
"""Fields of vLLM's ``SpeculativeConfig`` that a method here may ask for."""
