"""Plugin of vLLM that records its requests as traces, a file each.

``PYTHONPATH=REPOSITORY:REPOSITORY/specviz/engines/vllm_plugin SPECVIZ_TRACES=FOLDER vllm serve …``: vLLM finds the plugin by the
entry point in the metadata folder beside this file. Without ``SPECVIZ_TRACES`` it does nothing.
"""
