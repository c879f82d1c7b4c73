"""Runs of production engines as traces: how to record each engine, and the facts that it reports about a round.

================  =============================================  ==========================================================
engine            how                                            known about a round
================  =============================================  ==========================================================
transformers      ``with specviz.record(model, tokenizer)``      drafted tokens, q, p, the target's likeliest, phases
vLLM, plugin      :mod:`specviz.interop.vllm_plugin`             the same (q where vLLM keeps it), batch size; rejected
                                                                 drafts have their text; one file per request
vLLM, server      ``connect URL``; start it with                 accepted tokens, p, drafted and accepted counts; rejected
                  ``--per-request-spec-decode-metrics detailed`` drafts are counted, not named
llama.cpp         ``connect URL``                                the same, by the counts beside each token
others            ``connect URL``; SGLang was not tried here     tokens that arrive together, p
a file            ``import FILE``: see :mod:`.imports`           the file's contents
================  =============================================  ==========================================================

``run --method M --engine vllm`` goes the other way: it runs our method on a running vLLM, with the same parameters. Without
``--server`` it prints the ``vllm serve`` command, or the reason why vLLM cannot run the method (:mod:`.vllm_methods`). With it,
it refuses a server whose known settings differ, and ``--compare F`` puts that run and ours on one page.

``connect`` takes a second server with ``--baseline`` and measures the speed-up by alternating prompts; ``/metrics`` gives
acceptance by position in the draft. In the app, servers in ``SPECVIZ_SERVERS`` are listed among the targets of the Text tab.
"""
