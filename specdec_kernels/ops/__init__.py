# SPDX-License-Identifier: Apache-2.0
"""The public function of each op: docstring, checks, fake registration.

Importing this package first loads the libraries of the ops. So a module can look its op up when it is imported. A
look-up of ``torch.ops.specdec.<name>.default`` in every call would cost 0.2 us.
"""

from specdec_kernels import backends

backends.load()
