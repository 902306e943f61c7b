# SPDX-License-Identifier: Apache-2.0
"""What an engine's step costs with its own verification and with ours, in the engine's own environment."""
