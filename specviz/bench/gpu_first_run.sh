#!/usr/bin/env bash
# The first run on a GPU: clock, suites and tests, at most eight minutes, without network access; writes gpu_first_run.json.
# `--cpu` is a dry run of every part with tiny sizes on any machine; `--rows FILE` prints an earlier run's results.
# The text suite needs SmolLM2, fetched beforehand: `python -m specviz fetch smollm2-135m-instruct`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export HF_HUB_OFFLINE=1 HF_HUB_DISABLE_TELEMETRY=1 TOKENIZERS_PARALLELISM=false
exec "${PYTHON:-python3}" -m specviz.bench.first_run "$@"
