"""Runs of production engines as traces: what each tells of its rounds, and how to get it onto the stage.

================  =============================================  ==========================================================
engine            how                                            what is known of a round
================  =============================================  ==========================================================
transformers      ``with specviz.record(model, tokenizer)``      drafted tokens, q, p, the target's likeliest, phases
vLLM, plugin      :mod:`specviz.engines.vllm_plugin`             the same (q where vLLM keeps it), batch size; rejected
                                                                 drafts have their text; one file a request
vLLM, server      ``connect URL``; start it with                 accepted tokens, p, drafted and accepted counts; rejected
                  ``--per-request-spec-decode-metrics detailed`` drafts are counted, not named
llama.cpp         ``connect URL``                                the same, by the counts beside each token
others            ``connect URL``; SGLang was not tried here     tokens that arrive together, p
a file            ``import FILE``: see :mod:`.imports`           what is in it
================  =============================================  ==========================================================

``connect`` takes a second server with ``--baseline`` and measures the speed-up by prompts in turn; ``/metrics`` gives acceptance
by place in the draft. In the app, servers that ``SPECVIZ_SERVERS`` names stand among the targets of the Text tab.
"""
