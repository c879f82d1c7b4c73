"""Plugin of vLLM that records its requests as traces, a file each.

With REPO a checkout, in vLLM's environment:

    pip install --no-deps REPO
    SPECVIZ_VLLM_TRACES=FOLDER vllm serve …

It records vLLM's first model runner; on a GPU that chooses the second one, set ``VLLM_USE_V2_MODEL_RUNNER=0`` (not tried here).
Under tensor parallel one worker of the group records. Pipeline stages could not be tried: there the CPU build of 0.32 fails in
code of its own, with a drafter in the first stage, and with ``--enforce-eager`` in the last.

``/metrics`` then says how the server speculates, and the class :class:`.proposer.Drafter` is there for drafters of ours.

vLLM finds the plugin by the entry point ``specviz-vllm`` of pyproject.toml. Without ``SPECVIZ_VLLM_TRACES`` it does nothing.
"""
