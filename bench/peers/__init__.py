# SPDX-License-Identifier: Apache-2.0
"""Peers: other implementations of the same work.

For an engine or our other kernels, a function returns a callable that takes one set of inputs, or raises Unavailable.
The functions of eager.py and tree.py do the work themselves.
"""
