# SPDX-License-Identifier: Apache-2.0
"""Results of specdec_kernels.reference, with margins where it has them, each computed once per run.

The float64 loops take longer than most ops under test, and backends and workers need the same results. Tests use this
module in place of the reference: `from support import answers as reference`.

Results are kept in a folder of the run, which conftest.py makes and removes, each under a hash of the call's arguments.
Each read returns new tensors, so a test that writes to them changes no other test's.
"""

import functools
import hashlib
import os
import pickle
from pathlib import Path

from support import flat, worker

from specdec_kernels import reference

FOLDER = "SPECDEC_TEST_ANSWERS"  # the environment variable that names the folder; without it nothing is kept


def answer(op, *args, **kwargs):
    args, kwargs = flat.folded(op, args, kwargs)
    function = getattr(reference.banded, op, None) or getattr(reference, op)
    if FOLDER not in os.environ:
        return function(*args, **kwargs)
    try:
        call = worker._dumps((op, args, sorted(kwargs.items())))
    except ValueError:  # rows far apart span more memory than is worth hashing
        return function(*args, **kwargs)
    path = Path(os.environ[FOLDER], hashlib.sha256(call).hexdigest())
    if path.exists():
        return pickle.loads(path.read_bytes())
    result = function(*args, **kwargs)
    mine = path.with_suffix(f".{os.getpid()}")  # renamed when complete, since another worker may write the same result
    mine.write_bytes(worker._dumps(result))
    mine.rename(path)
    return result


def __getattr__(name):
    """Return ops that use the folder; everything else comes from the reference itself."""
    function = getattr(reference, name)
    return functools.partial(answer, name) if name in flat.SIDES or name in OPS else function


OPS = ("kseq_rho", "residual", "row_stats", "sample", "verify_chain", "verify_tree")  # the slow ones
