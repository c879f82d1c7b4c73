"""Plugin of vLLM that records its requests as traces, a file each.

With REPO the folder that holds ``specviz``:

    PYTHONPATH=REPO:REPO/specviz/engines/vllm_plugin SPECVIZ_VLLM_TRACES=FOLDER vllm serve …

It records vLLM's first model runner; on a GPU that chooses the second one, set ``VLLM_USE_V2_MODEL_RUNNER=0`` (not tried here).
``/metrics`` then says how the server speculates, and the class :class:`.proposer.Drafter` is there for drafters of ours.

vLLM finds the plugin by the entry point in the metadata folder beside this file. Without ``SPECVIZ_VLLM_TRACES`` it does
nothing.
"""
