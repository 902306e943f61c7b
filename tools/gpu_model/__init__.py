# SPDX-License-Identifier: Apache-2.0
"""Estimates how long calls take on a GPU that is not at hand, from the kernels' machine code.

A tool for judging, not a proof: nothing in it was measured on a GPU. README.md says how to run and read it."""
