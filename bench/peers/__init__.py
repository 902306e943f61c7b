# SPDX-License-Identifier: Apache-2.0
"""Peers: other implementations of the same work.

Each module's functions return a callable that takes one set of inputs, or raise Unavailable.
"""
