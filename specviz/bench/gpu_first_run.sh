#!/usr/bin/env bash
# The first run on a GPU: tests, suites, clock and training, at most eight minutes, no network; leaves gpu_first_run.json.
# `--cpu` goes through every part with tiny sizes on any machine and measures nothing; `--rows FILE` prints an earlier run again.
# What SmolLM2 is needed for is left out where it is not here: `python -m specviz fetch smollm2-135m-instruct` fetches it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export HF_HUB_OFFLINE=1 HF_HUB_DISABLE_TELEMETRY=1 TOKENIZERS_PARALLELISM=false
exec "${PYTHON:-python3}" -m specviz.bench.first_run "$@"
