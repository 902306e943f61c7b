# SPDX-License-Identifier: Apache-2.0
"""The public function of each op: docstring, checks, fake registration. Importing it loads the libraries first, so a
module can look its op up once; in a call, ``torch.ops.specdec.<name>.default`` takes 0.2 us."""

from specdec_kernels import backends

backends.load()
