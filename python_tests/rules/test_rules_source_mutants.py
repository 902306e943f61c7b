# SPDX-License-Identifier: Apache-2.0
"""Every mutant of the rules' CUDA and Triton sources fails a test that the right sources pass."""

import functools
import inspect

import pytest
from support.mutant_packages import caught_by, package
from support.rule_mutants import CUDA, TRITON, with_kernels_of, with_triton_of
from support.worker import renewed

from tools.cuda_on_cpu.build import CSRC
from tools.cuda_on_cpu.mutants import mutate

pytestmark = [pytest.mark.slow, pytest.mark.thorough]  # about 15 seconds each


def fails(caught, verify, backend):
    test, arguments = caught
    fixtures = {"verify": verify, "sweep": verify, "op_backend": backend, "sweep_backend": backend}
    given = {name: fixtures[name] for name in inspect.signature(test).parameters if name in fixtures}
    with caught_by(AssertionError, ChildProcessError):  # a mutant whose process dies counts as caught
        test(**given, **arguments)


@pytest.fixture(scope="module")
def workers():
    """Return a function that returns a worker process: a new one if the last one died. In it, each mutant's kernels
    replace those of the previous mutant."""
    with renewed("mutants", {"OMP_NUM_THREADS": "1"}) as worker:
        yield worker


@pytest.fixture(scope="module")
def interpreters():
    """Return the same for mutants in Triton."""
    with renewed("mutants", {"SPECDEC_BACKEND": "triton", "TRITON_INTERPRET": "1"}) as worker:
        yield worker


@pytest.mark.parametrize("name", CUDA)
def test_cuda_mutant_is_caught(workers, name):
    *change, caught = CUDA[name]
    fails(caught, functools.partial(workers().call, with_kernels_of, mutate(CSRC, *change)), "cuda-on-cpu")


@pytest.mark.parametrize("name", TRITON)
def test_triton_mutant_is_caught(interpreters, name):
    pytest.importorskip("triton")
    *change, caught = TRITON[name]
    fails(caught, functools.partial(interpreters().call, with_triton_of, package(*change)), "triton-interpret")
