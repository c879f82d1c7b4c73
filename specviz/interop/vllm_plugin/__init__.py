"""Plugin for vLLM that records requests as traces, one file per request.

In vLLM's environment, with REPO as a checkout of specviz:

    pip install --no-deps REPO
    SPECVIZ_VLLM_TRACES=FOLDER vllm serve …

vLLM's first model runner is recorded; on a GPU where vLLM chooses the second, set ``VLLM_USE_V2_MODEL_RUNNER=0`` (untested).
Under tensor parallelism one worker of the group records. Pipeline parallelism is untested, because the CPU build of 0.32 fails
with a drafter in the first stage and with ``--enforce-eager`` in the last.

The plugin also adds the server's speculative settings to ``/metrics``, and :class:`.proposer.Drafter` runs drafters of this
project.

vLLM finds the plugin by the entry point ``specviz-vllm`` in pyproject.toml. Without ``SPECVIZ_VLLM_TRACES`` the plugin does
nothing.
"""
