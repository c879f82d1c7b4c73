"""Plugin for vLLM that records requests as traces, one file per request.

With REPO a checkout, in vLLM's environment:

    pip install --no-deps REPO
    SPECVIZ_VLLM_TRACES=FOLDER vllm serve …

It records vLLM's first model runner; on a GPU where vLLM chooses the second, set ``VLLM_USE_V2_MODEL_RUNNER=0`` (untested).
Under tensor parallelism one worker of the group records. Pipeline parallelism is untested: there the CPU build of 0.32 itself
fails, with a drafter in the first stage, and with ``--enforce-eager`` in the last.

``/metrics`` then reports the server's speculative settings, and the class :class:`.proposer.Drafter` runs our drafters.

vLLM finds the plugin by the entry point ``specviz-vllm`` of pyproject.toml. Without ``SPECVIZ_VLLM_TRACES`` it does nothing.
"""
