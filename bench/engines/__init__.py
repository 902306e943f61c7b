# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of an engine's step with its own verification and with ours, in the engine's environment."""
