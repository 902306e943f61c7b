# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of vLLM with its own verification and with ours, in its environment: a call, a step, whole texts."""
