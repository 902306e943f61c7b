# SPDX-License-Identifier: Apache-2.0
"""Reads the machine code of CUDA libraries: kernels, control flow, the loops that stream rows and what they cost.

The static gates and `tools/gpu_model` are made from it."""
