# SPDX-License-Identifier: Apache-2.0
"""Other ways to do the same step. Each module's functions return a call of one set of inputs, or raise Unavailable."""
