"""Plugin of vLLM that records its requests as traces, a file each.

With REPO the folder that holds ``specviz``:

    PYTHONPATH=REPO:REPO/specviz/engines/vllm_plugin SPECVIZ_VLLM_TRACES=FOLDER vllm serve …

vLLM finds the plugin by the entry point in the metadata folder beside this file. Without ``SPECVIZ_VLLM_TRACES`` it does
nothing.
"""
