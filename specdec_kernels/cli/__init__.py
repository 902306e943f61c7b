# SPDX-License-Identifier: Apache-2.0
"""The command line: python -m specdec_kernels info | selfcheck | generate | cache."""

from specdec_kernels.cli.app import COMMANDS, main

__all__ = ["COMMANDS", "main"]
