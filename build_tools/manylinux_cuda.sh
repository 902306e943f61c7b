#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Inside the manylinux_2_28 image: nvcc CUDA (13.0) and what it links statically; nothing of it ends up in the wheel but code.
set -euo pipefail
version=${CUDA//./-}
dnf config-manager --add-repo https://developer.download.nvidia.com/compute/cuda/repos/rhel8/x86_64/cuda-rhel8.repo
dnf install -y "cuda-nvcc-$version" "cuda-cudart-devel-$version"
ln -sfn "/usr/local/cuda-$CUDA" /usr/local/cuda
/usr/local/cuda/bin/nvcc --version
