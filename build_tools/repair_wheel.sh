#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# repair_wheel.sh WHEEL FOLDER: writes the wheel to FOLDER under the manylinux tag that auditwheel finds for it. The libraries of
# torch stay out, since torch itself has them. The wheel must need no other library: one that auditwheel copies in is an error.
set -euo pipefail
auditwheel repair --exclude 'libtorch*' --exclude 'libc10*' --wheel-dir "$2" "$1"
wheel=$(ls -t "$2"/*.whl | head -1)
if python3 -m zipfile -l "$wheel" | grep -F specdec_kernels.libs/; then
  echo "repair_wheel.sh: $wheel must bring no library, got the above" >&2
  exit 1
fi
echo "$wheel"
