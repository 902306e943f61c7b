# SPDX-License-Identifier: Apache-2.0
"""Decides how many tokens to draft, and in what tree, from the measured cost of a step and the measured acceptance.
Drafters ask it before they draft and tell it what became of the step; the decode loop does not know of it."""
