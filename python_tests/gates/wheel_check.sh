#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs one wheel beside several releases of torch, each in a fresh environment, and checks what works there.
# CUDA builds of torch install and import without a GPU; each takes some 6 GB of disk.
#
#     python_tests/gates/wheel_check.sh [torch==2.10.0 torch ...]      by default the oldest torch supported and the newest
#
# WHEEL=path: a wheel that is already built. WORK=folder: keeps the environments there for another run.
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python3}
WORK=${WORK:-$(mktemp -d)}
[ $# -gt 0 ] || set -- torch==2.10.0 torch

if [ -z "${WHEEL:-}" ]; then
    "$PYTHON" -m pip wheel --quiet --no-build-isolation --no-deps --wheel-dir "$WORK/dist" .
    WHEEL=$(ls -t "$WORK"/dist/specdec_kernels-*.whl | head -1)
fi
echo "$(basename "$WHEEL"): $(stat -c %s "$WHEEL") bytes"

for torch in "$@"; do
    environment=$WORK/${torch//[=<>]/-}
    [ -d "$environment" ] || "$PYTHON" -m venv "$environment"
    "$environment/bin/python" -m pip install --quiet --disable-pip-version-check "$torch" numpy
    "$environment/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall "$WHEEL"
    # Every symbol is looked up at load time, so that none can be missing later.
    (cd "$WORK" && LD_BIND_NOW=1 "$environment/bin/python" -P "$OLDPWD/python_tests/gates/wheel_check.py")
done
