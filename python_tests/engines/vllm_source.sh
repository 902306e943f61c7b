#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The Python files of a vLLM that does not run here, from its wheel, for tests that read them: in FOLDER/vllm-VERSION.
#   vllm_source.sh FOLDER VERSION    such as 0.33
set -euo pipefail
folder=$1 version=$2
wheels=$(mktemp -d)
trap 'rm -r "$wheels"' EXIT
"$folder/bin/pip" download --no-deps --progress-bar off --dest "$wheels" "vllm==$version.0"
rm -rf "$folder/vllm-$version.part"
"$folder/bin/python" - "$wheels"/vllm-*.whl "$folder/vllm-$version.part" <<'EOF'
import sys
import zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel:
    wheel.extractall(sys.argv[2], [x for x in wheel.namelist() if x.startswith("vllm/") and x.endswith(".py")])
EOF
rm -rf "$folder/vllm-$version"
mv "$folder/vllm-$version.part" "$folder/vllm-$version"
