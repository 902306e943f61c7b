# SPDX-License-Identifier: Apache-2.0
"""The public function of each op: docstring, checks, fake registration. Importing it loads the libraries first."""

from specdec_kernels import backends

backends.load()
