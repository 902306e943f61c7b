# SPDX-License-Identifier: Apache-2.0
"""Compile every Triton kernel ahead of time for some of the targets, and print its figures, one JSON list per line.

    PYTHONPATH=.:python_tests python -m gates.triton_kernels [--spill]

It needs no GPU, and must run in its own process, without TRITON_INTERPRET. --spill compiles a kernel that the gates
must refuse.
"""

import concurrent.futures
import functools
import json
import os
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

from gates.machine_code import amd, nvidia

TARGETS = [("cuda", 80, 32), ("cuda", 90, 32), ("cuda", 100, 32), ("cuda", 120, 32), ("hip", "gfx942", 64)]
SEED = int(os.environ.get("SPECDEC_SEED", "1"))
THOROUGH = os.environ.get("SPECDEC_THOROUGH") == "1"


def operations():
    """Return kernel -> counts of the operations that all versions of Triton compile alike.

    Only the compiler's front end runs, which takes a tenth of the time. Kernels for float32 rows are left out: only
    their loads differ.
    """
    import triton
    from support.aot import aot_cases
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget

    target = GPUTarget("cuda", 90, 32)
    backend = triton.compiler.make_backend(target)
    found = {}
    for case in aot_cases():
        if "float32" not in case.name:
            options, context = backend.parse_options(case.options(32)), ir.context()
            ir.load_dialects(context)
            backend.load_dialects(context)
            functions = backend.get_codegen_implementation(options), backend.get_module_map()
            module = str(case.source().make_ir(target, options, *functions, context))
            found[case.name] = Counter(re.findall(r"= \"?((?:math|scf)\.\w+|tt\.(?:load|reduce|scan)\b)", module))
    assert len(found) > 30
    return found


# Vocabularies so small that a tile is no wider than the row, or than its number of chunks
NARROW = (1, 5, 64, 256, 1000, 2500)


def compile_narrow():
    """Compile the kernels that filter short rows, down to machine code."""
    import triton
    from support.aot import aot_cases, filter_calls
    from triton.backends.compiler import GPUTarget

    for V in NARROW:
        for case in aot_cases(V, filter_calls):
            triton.compile(case.source(), target=GPUTarget("cuda", 90, 32), options=case.options(32))


def targets(i, name):
    """Return the targets for which a kernel is compiled.

    Kernels for float32 rows have one target, since they differ from those for bfloat16 in their loads only. With
    SPECDEC_THOROUGH=1 the others have three, which depend on SPECDEC_SEED. Without it they have two, except two kinds,
    which have one, or none for float32 rows: kernels for padded buffers, which differ by a comparison, and those of
    verify_tree, which take ten seconds to compile.
    """
    turn = [TARGETS[(i + j) % len(TARGETS)] for j in (0, 2)]
    if "--spill" in sys.argv:
        return TARGETS
    if THOROUGH:
        return TARGETS[:1] if "float32" in name else [TARGETS[(i + SEED + j) % len(TARGETS)] for j in (0, 1, 3)]
    if name.startswith("verify_tree"):
        return [] if "float32" in name else turn[:1]
    if "padded" in name:
        return [] if "float32" in name else turn[:1]
    return TARGETS[:1] if "float32" in name else turn


@functools.cache
def cases():
    if "--spill" in sys.argv:
        from gates.spill_triton import cases
    else:
        from support.aot import aot_cases as cases
    return list(cases())


def compiled(target, index):
    """Return the figures of one kernel for one target."""
    import triton
    from triton.backends.compiler import GPUTarget

    backend, arch, lanes = target
    case = cases()[index]
    code = triton.compile(case.source(), target=GPUTarget(backend, arch, lanes), options=case.options(lanes)).asm
    if backend == "hip":
        return amd(case.name, code["amdgcn"], case.wide, case.threads)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(code["cubin"])
        [kernel] = nvidia(path)
    return kernel._replace(name=case.name, reads_rows=case.wide, threads=case.threads)


if __name__ == "__main__":
    every = [(target, i) for i, case in enumerate(cases()) for target in targets(i, case.name)]
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        for kernel in pool.map(compiled, *zip(*every)):
            print(json.dumps(kernel))
