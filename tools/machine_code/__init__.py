# SPDX-License-Identifier: Apache-2.0
"""Analysis of the machine code of CUDA libraries: kernels, control flow, and the cost of loops that stream rows.

The static gates and `tools/gpu_model` use it.
"""
