# SPDX-License-Identifier: Apache-2.0
"""Builds the .cu files for the CPU: one library that is a Python module (the harness's controls) and, once loaded,
registers the ops for the CPU. "fast" is for results, "checked" also notes every access to memory and fails on undefined
behaviour."""

import contextlib
import fcntl
import functools
import hashlib
import importlib.util
import os
import subprocess
import sysconfig
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CSRC = ROOT / "csrc"
MODULE = "specdec_cuda_on_cpu"
TORCH_TARGET = "0x020a000000000000"  # as in setup.py

KERNEL_FLAGS = {
    "fast": "-O2",
    # -O1 without inlining keeps a call a call; aggregates stay whole, so that a load of 16 bytes is noted as one.
    "checked": "-O1 -fno-inline -fno-tree-sra -DSPECDEC_CHECKED "
    "-fsanitize=thread,undefined,float-cast-overflow -fno-sanitize=vptr,null",
}
HARNESS_FLAGS = {"fast": "-O2 -DNDEBUG", "checked": "-O2 -DNDEBUG -DSPECDEC_CHECKED"}
# Calls of these are not instrumented: those of the .cu files go to hooks.cpp.
COPIES = " ".join(f"--redefine-sym {f}=specdec_{f}" for f in ("memcpy", "memmove", "memset"))


def ninja_file(flavour, kernels, harness):
    """kernels: paths of .cu files; harness: the folder that holds the harness's objects, or None where they are
    built."""
    import pybind11
    from torch.utils.cpp_extension import include_paths, library_paths

    system = " ".join(
        f"-isystem {p}" for p in [*include_paths(), pybind11.get_include(), sysconfig.get_paths()["include"]]
    )
    compiler = (
        f"{os.environ.get('CXX', 'g++')} -std=c++20 -fPIC -g1 -march=native -fno-strict-aliasing -fvisibility=hidden"
    )
    defines = f"-DSPECDEC_CUDA_ON_CPU -DSPECDEC_MODULE={MODULE} -DTORCH_TARGET_VERSION={TORCH_TARGET}"
    warnings = "-Wall -Wextra -Wno-psabi -Wno-unknown-pragmas"
    compile = f"{compiler} {warnings} {defines} -I{HERE} {system} -MMD -MF $out.d -o $out -x c++ -c $in"
    redirect = f"&& objcopy {COPIES} $out" if flavour == "checked" else ""
    libraries = " ".join(f"-L{p} -Wl,-rpath,{p}" for p in library_paths())
    lines = [
        *[
            "rule kernel",
            f"  command = {compile} {KERNEL_FLAGS[flavour]} {redirect}",
            "  depfile = $out.d",
            "  deps = gcc",
        ],
        *["rule harness", f"  command = {compile} {HARNESS_FLAGS[flavour]}", "  depfile = $out.d", "  deps = gcc"],
        *["rule link", f"  command = {compiler} -shared $in -o $out {libraries} -ltorch_cpu -lc10"],
    ]

    def compiled(rule, source, folder=None):
        name = f"{source.parent.name}.{source.stem}.o"
        if folder:
            return str(folder / name)
        lines.append(f"build {name}: {rule} {source}")
        return name

    apart = {"shared_begin", "shared_end"} | ({"hooks", "race"} if flavour == "fast" else set())
    rest = [p for p in sorted(HERE.glob("*.cpp")) if p.stem not in apart]
    objects = [
        compiled(
            "harness", HERE / "shared_begin.cpp", harness
        ),  # the kernels' shared variables lie between the two markers
        *[compiled("kernel", p) for p in kernels],
        compiled("kernel", HERE / "sample.cu", harness),
        compiled("harness", HERE / "shared_end.cpp", harness),
        *[compiled("harness", p, harness) for p in rest],
    ]
    lines.append(f"build {MODULE}.so: link {' '.join(objects)}")
    return "\n".join(lines) + "\n"


@contextlib.contextmanager
def locked(path):
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def make(folder, page, jobs):
    import ninja

    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / "lock"):
        file = folder / "build.ninja"
        if not file.exists() or file.read_text() != page:
            file.write_text(page)
        done = subprocess.run(
            [Path(ninja.BIN_DIR) / "ninja", "-C", folder, "-j", str(jobs)], capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"cuda_on_cpu: the build failed\n{done.stdout}{done.stderr}")
    return folder / f"{MODULE}.so"


def build(flavour=None, csrc=CSRC, ops=None, jobs=2):
    """The library's path, once what changed is compiled. The flavour is SPECDEC_CUDA_ON_CPU's by default, or "fast".
    ops picks folders of csrc; with none of them the library holds the sample kernels only, and loading it leaves the
    process's ops alone."""
    flavour = flavour or os.environ.get("SPECDEC_CUDA_ON_CPU", "fast")
    if flavour not in KERNEL_FLAGS:
        raise ValueError(f"SPECDEC_CUDA_ON_CPU must be one of {', '.join(KERNEL_FLAGS)}, got {flavour}")
    csrc, top = Path(csrc).resolve(), ROOT / "build" / "cuda_on_cpu"
    harness = top / f"{flavour}-harness"
    sample_only = make(harness, ninja_file(flavour, [], None), jobs)
    kernels = [p for p in sorted(csrc.glob("ops/*/*_cuda.cu")) if ops is None or p.parent.name in ops]
    if not kernels:
        return sample_only
    whole = csrc == CSRC and ops is None
    name = flavour if whole else f"{flavour}-{hashlib.sha256(f'{csrc} {ops}'.encode()).hexdigest()[:12]}"
    return make(top / name, ninja_file(flavour, kernels, harness), jobs)


@functools.cache
def load(flavour=None, csrc=CSRC, ops=None):
    """The module of a library that is now loaded: its ops have taken the place of the CPU's in this process."""
    import specdec_kernels  # noqa: F401  first, so that these registrations are the later ones

    path = build(flavour, csrc, ops)
    spec = importlib.util.spec_from_file_location(
        f"{path.parent.name}.{MODULE}", path
    )  # pybind11 keeps one module for each name
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    import sys

    for name in sys.argv[1:] or KERNEL_FLAGS:
        print(build(name))
