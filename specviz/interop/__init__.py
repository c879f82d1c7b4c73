"""Runs of production engines as traces: how each engine is recorded, and what it reports about a round.

================  =============================================  ==========================================================
engine            how                                            known about a round
================  =============================================  ==========================================================
transformers      ``with specviz.record(model, tokenizer)``      drafted tokens, q, p; the target's top tokens; times
vLLM, plugin      :mod:`specviz.interop.vllm_plugin`             the same (q where vLLM keeps it), batch size; rejected
                                                                 drafts have text; one file per request
vLLM, server      ``connect URL``; start it with                 accepted tokens, p, drafted and accepted counts; rejected
                  ``--per-request-spec-decode-metrics detailed`` drafts are counted, not named
llama.cpp         ``connect URL``                                the same, from the counts sent with each token
others            ``connect URL``; SGLang was not tried here     tokens that arrive together, p
a file            ``import FILE``: see :mod:`.responses`         the contents of the file
================  =============================================  ==========================================================

``run --method M --engine vllm`` works in the other direction: it runs a method of this project on vLLM with the same parameters.
Without ``--server`` it prints the ``vllm serve`` command, or the reason why vLLM cannot run the method (:mod:`.vllm_methods`).
With ``--server`` it refuses a server whose known settings differ; ``--compare F`` puts both runs on one page.

``connect --baseline`` takes a second server and measures the speed-up with alternating prompts; ``/metrics`` gives acceptance by
draft position. In the app, the servers in ``SPECVIZ_SERVERS`` are among the targets of the Text tab.
"""
