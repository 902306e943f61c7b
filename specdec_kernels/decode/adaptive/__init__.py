# SPDX-License-Identifier: Apache-2.0
"""Choice of how many tokens to draft, and of the tree's shape, from measured step costs and measured acceptance.

Drafters ask it before they draft, and report each step's outcome to it. The decode loop itself does not use it.
"""
