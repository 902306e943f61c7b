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
    "fast": "-O1",  # half the time of -O2 to compile, a tenth more to run: tests of tier test spend less in all
    # -O1 without inlining keeps a call a call; aggregates stay whole, so that a load of 16 bytes is noted as one.
    "checked": "-O1 -fno-inline -fno-tree-sra -DSPECDEC_CHECKED "
    "-fsanitize=thread,undefined,float-cast-overflow -fno-sanitize=vptr,null",
}
HARNESS_FLAGS = {"fast": "-O2 -DNDEBUG", "checked": "-O2 -DNDEBUG -DSPECDEC_CHECKED"}
# Of the harness, what is not one for both flavours; the rest is compiled once.
APART = {"fast": {"memory", "async_copy"}, "checked": {"memory", "async_copy", "hooks", "race"}}
# Calls of these are not instrumented: those of the .cu files go to hooks.cpp.
COPIES = " ".join(f"--redefine-sym {f}=specdec_{f}" for f in ("memcpy", "memmove", "memset"))
# Half of what a small .cu file takes is reading these: once for all of a flavour.
HEADERS = "".join(f"#include <{x}>\n" for x in ("cuda_runtime.h", "torch/csrc/stable/library.h"))


def rules(flavour):
    """The lines of a ninja file that say how things are compiled, and the name of what makes the headers."""
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
    compile = f"{compiler} {warnings} {defines} -I{HERE} {system} -MMD -MF $out.d -o $out"
    redirect = f"&& objcopy {COPIES} $out" if flavour == "checked" else ""
    libraries = " ".join(f"-L{p} -Wl,-rpath,{p}" for p in library_paths())
    found = ["  depfile = $out.d", "  deps = gcc"]
    flags = KERNEL_FLAGS[flavour]
    return [
        *["rule headers", f"  command = {compile} {flags} -x c++-header $in", *found],
        *["rule kernel", f"  command = {compile} {flags} -include $headers -x c++ -c $in {redirect}", *found],
        *["rule harness", f"  command = {compile} $flags -x c++ -c $in", *found],
        *["rule link", f"  command = {compiler} -shared $in -o $out {libraries} -ltorch_cpu -lc10"],
    ]


def in_common():
    """The ninja file of the harness's objects that are one for both flavours."""
    lines = rules("fast")
    for path in common_sources():
        # Nothing of the module runs while kernels do, and half a minute of -O2 is pybind11's
        flags = "-O0" if path.stem == "module" else HARNESS_FLAGS["fast"]
        lines += [f"build {object_of(path)}: harness {path}", f"  flags = {flags}"]
    return "\n".join(lines) + "\n"


def common_sources():
    return [p for p in sorted(HERE.glob("*.cpp")) if p.stem not in APART["checked"]]


def object_of(source):
    return f"{source.parent.name}.{source.stem}.o"


def ninja_file(flavour, kernels, common, harness=None, made=None):
    """kernels: paths of .cu files. common, harness, made: the folders that hold the harness's objects, those of this
    flavour and the kernels'; the last two None where they are built here."""
    lines = rules(flavour)
    headers = (harness or Path()) / "headers.h"
    if not harness:
        lines.append(f"build {headers}.gch: headers {headers}")

    def compiled(rule, source, folder):
        if folder:
            return folder / object_of(source)
        needs = f" | {headers}.gch" if rule == "kernel" else ""
        lines.append(f"build {object_of(source)}: {rule} {source}{needs}")
        lines.append(f"  headers = {headers}" if rule == "kernel" else f"  flags = {HARNESS_FLAGS[flavour]}")
        return object_of(source)

    shared = {p.stem: common / object_of(p) for p in common_sources()}
    objects = [
        shared.pop("shared_begin"),  # the kernels' shared variables lie between the two markers
        *[compiled("kernel", p, made) for p in kernels],
        *[compiled("kernel", p, harness) for p in sorted(HERE.glob("sample*.cu"))],
        shared.pop("shared_end"),
        *[compiled("harness", HERE / f"{stem}.cpp", harness) for stem in sorted(APART[flavour])],
        *shared.values(),
    ]
    lines.append(f"build {MODULE}.so: link {' '.join(map(str, objects))}")
    return "\n".join(lines) + "\n"


@contextlib.contextmanager
def locked(path):
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def write(path, text):
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def make(folder, page, jobs):
    """The folder, once what its ninja file asks for is made."""
    import ninja

    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / "lock"):
        write(folder / "build.ninja", page)
        write(folder / "headers.h", HEADERS)
        done = subprocess.run(
            [Path(ninja.BIN_DIR) / "ninja", "-C", folder, "-j", str(jobs)], capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"cuda_on_cpu: the build failed\n{done.stdout}{done.stderr}")
    return folder


def build(flavour=None, csrc=CSRC, ops=None, jobs=2):
    """The library's path, once what changed is compiled. The flavour is SPECDEC_CUDA_ON_CPU's by default, or "fast".
    ops picks folders of csrc; with none of them the library holds the sample kernels only, and loading it leaves the
    process's ops alone."""
    flavour = flavour or os.environ.get("SPECDEC_CUDA_ON_CPU", "fast")
    if flavour not in KERNEL_FLAGS:
        raise ValueError(f"SPECDEC_CUDA_ON_CPU must be one of {', '.join(KERNEL_FLAGS)}, got {flavour}")
    csrc, top = Path(csrc).resolve(), ROOT / "build" / "cuda_on_cpu"
    common = make(top / "harness", in_common(), jobs)
    harness = make(top / f"{flavour}-harness", ninja_file(flavour, [], common), jobs)
    sources = sorted(csrc.glob("ops/*/*_cuda.cu"), reverse=True)  # verify_*, the slowest, first
    kernels = [p for p in sources if ops is None or p.parent.name in ops]
    if not kernels:
        return harness / f"{MODULE}.so"
    made = None
    if csrc == CSRC:  # some of its ops are linked from what all of them are
        made = make(top / flavour, ninja_file(flavour, sources, common, harness), jobs)
        if ops is None:
            return made / f"{MODULE}.so"
    name = f"{flavour}-{hashlib.sha256(f'{csrc} {ops}'.encode()).hexdigest()[:12]}"
    return make(top / name, ninja_file(flavour, kernels, common, harness, made), jobs) / f"{MODULE}.so"


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
