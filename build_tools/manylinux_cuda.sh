#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs nvcc of version $CUDA (such as 13.0) and the CUDA runtime, inside the manylinux_2_28 image. nvcc links the runtime
# statically, so the wheel gets no CUDA library.
set -euo pipefail
version=${CUDA//./-}
dnf config-manager --add-repo https://developer.download.nvidia.com/compute/cuda/repos/rhel8/x86_64/cuda-rhel8.repo
dnf install -y "cuda-nvcc-$version" "cuda-cudart-devel-$version"
ln -sfn "/usr/local/cuda-$CUDA" /usr/local/cuda
/usr/local/cuda/bin/nvcc --version
