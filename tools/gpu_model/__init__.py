# SPDX-License-Identifier: Apache-2.0
"""Estimates, from the kernels' machine code, of how long calls take on a GPU that is not at hand.

It is a tool to compare designs, not a proof. README.md explains how to run and read it.
"""
