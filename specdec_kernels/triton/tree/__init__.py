# SPDX-License-Identifier: Apache-2.0
"""The walk of verify_tree (csrc/ops/verify_tree)."""
