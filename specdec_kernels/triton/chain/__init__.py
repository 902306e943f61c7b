# SPDX-License-Identifier: Apache-2.0
"""The kernels of verify_chain (csrc/ops/verify_chain)."""
