# SPDX-License-Identifier: Apache-2.0
"""The walks of verify_tree (csrc/ops/verify_tree)."""
