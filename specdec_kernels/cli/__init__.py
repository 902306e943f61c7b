# SPDX-License-Identifier: Apache-2.0
"""The command line: python -m specdec_kernels info | generate | selfcheck."""

from specdec_kernels.cli.app import Method, app, main

__all__ = ["Method", "app", "main"]
