# SPDX-License-Identifier: Apache-2.0
"""Rules that say what is emitted in place of the target's law, or when a draft is accepted (csrc/rules)."""
