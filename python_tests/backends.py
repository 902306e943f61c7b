# SPDX-License-Identifier: Apache-2.0
"""One way to call an op, whatever runs it. Tests take the fixture `backend` and call run(op, backend, ...).

SPECDEC_TEST_BACKENDS=reference runs the tests against the float64 reference: a test of the tests.
"""

import os

NAMES = os.environ.get("SPECDEC_TEST_BACKENDS", "cpu").split(",")


def call(op, backend):
    """The op as a function of its public arguments (CPU tensors in, CPU tensors out)."""
    import specdec_kernels as sk

    return getattr(sk.reference if backend == "reference" else sk, op)


def run(op, backend, *args, **kwargs):
    return call(op, backend)(*args, **kwargs)
