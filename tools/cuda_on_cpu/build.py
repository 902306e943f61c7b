# SPDX-License-Identifier: Apache-2.0
"""Build of the .cu files for the CPU: one library that is a Python module (the harness's controls) and, once loaded,
registers the ops for the CPU.

The flavour "fast" is for results. "checked" also notes every access to memory, and fails on undefined behaviour.
"""

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

KERNEL_FLAGS = {
    # -O1 compiles in half the time of -O2 and runs 10% slower: faster in all for `make test`. Line numbers, which only
    # "checked" reports, would take a tenth of the time.
    "fast": "-O1 -g0",
    # Without inlining a call stays a call; without SRA aggregates stay whole, so a load of 16 bytes is noted as one.
    "checked": "-O1 -fno-inline -fno-tree-sra -DSPECDEC_CHECKED "
    "-fsanitize=thread,undefined,float-cast-overflow -fno-sanitize=vptr,null",
}
HARNESS_FLAGS = {"fast": "-O2 -DNDEBUG", "checked": "-O2 -DNDEBUG -DSPECDEC_CHECKED"}
# The harness's files that each flavour compiles for itself. Those in neither set are compiled once for both.
APART = {"fast": {"memory", "async_copy"}, "checked": {"memory", "async_copy", "hooks", "race"}}
# The compiler does not instrument calls of these functions, so those of the .cu files are redirected to hooks.cpp.
COPIES = " ".join(f"--redefine-sym {f}=specdec_{f}" for f in ("memcpy", "memmove", "memset"))
HEADERS = "#include <cuda_runtime.h>\n"  # precompiled once per flavour


def rules(flavour):
    """Return the rules of a ninja file: how headers, kernels and the harness are compiled and linked."""
    import pybind11
    from torch.utils.cpp_extension import include_paths, library_paths

    from build_tools.ninja_file import TARGET, TOGETHER

    system = " ".join(
        f"-isystem {p}" for p in [*include_paths(), pybind11.get_include(), sysconfig.get_paths()["include"]]
    )
    compiler = (
        f"{os.environ.get('CXX', 'g++')} -std=c++20 -fPIC -g1 -march=native -fno-strict-aliasing -fvisibility=hidden"
    )
    defines = f"-DSPECDEC_CUDA_ON_CPU -DSPECDEC_MODULE={MODULE} {TARGET}"
    warnings = "-Wall -Wextra -Wno-psabi -Wno-unknown-pragmas"
    compile = f"{compiler} {warnings} {defines} -I{HERE} {system} -MMD -MF $out.d -o $out"
    redirect = f"&& objcopy {COPIES} $out" if flavour == "checked" else ""
    libraries = " ".join(f"-L{p} -Wl,-rpath,{p}" for p in library_paths())
    found = ["  depfile = $out.d", "  deps = gcc"]
    flags = KERNEL_FLAGS[flavour]
    return [
        *["rule headers", f"  command = {compile} {flags} -x c++-header $in", *found],
        *["rule kernel", f"  command = {compile} {flags} -include $headers -x c++ -c $in {redirect}", *found],
        *TOGETHER,
        *["rule harness", f"  command = {compile} $flags -x c++ -c $in", *found],
        *["rule link", f"  command = {compiler} -shared $in -o $out {libraries} -ltorch_cpu -lc10"],
    ]


def in_common():
    """Return the ninja file of the harness's objects that both flavours share."""
    lines = rules("fast")
    for path in common_sources():
        # The module does not run while kernels do, and -O2 takes half a minute for pybind11.
        flags = "-O0" if path.stem == "module" else HARNESS_FLAGS["fast"]
        lines += [f"build {object_of(path)}: harness {path}", f"  flags = {flags}"]
    return "\n".join(lines) + "\n"


def common_sources():
    return [p for p in sorted(HERE.glob("*.cpp")) if p.stem not in APART["checked"]]


def object_of(source):
    return f"{source.parent.name}.{source.stem}.o"


def ninja_file(flavour, csrc, kernels, common, harness=None, made=None):
    """Return the ninja file of a library.

    csrc: the folder with the sources. kernels: paths of its .cu files. common, harness, made: the folders with the
    objects that both flavours share, with the harness's objects of this flavour, and with the kernels' objects. harness
    or made is None if this ninja file builds its objects.
    """
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
        shared.pop("shared_begin"),  # the kernels' shared variables are between the two markers
        *[compiled("kernel", p, made) for p in kernels],
        *[compiled("kernel", p, harness) for p in sorted(HERE.glob("sample*.cu"))],
        shared.pop("shared_end"),
        *[compiled("harness", HERE / f"{stem}.cpp", harness) for stem in sorted(APART[flavour])],
        *shared.values(),
    ]
    if kernels:
        registered = sorted({x for p in kernels for x in p.parent.glob("*_op_cuda.cpp")})
        together = " ".join(map(str, [csrc / "cuda" / "launch.cpp", *registered]))
        lines += [f"build cuda_ops.cpp: together {together}", "build cuda_ops.o: harness cuda_ops.cpp", "  flags = -O0"]
        objects.append("cuda_ops.o")
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
    """Run ninja on the file with text `page` in a folder; return the folder."""
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
    """Build the library, compiling only what changed; return its path.

    The default flavour is that of SPECDEC_CUDA_ON_CPU, or "fast". ops selects folders of csrc/ops. With an empty
    selection the library has only the sample kernels, and loading it replaces no op.
    """
    flavour = flavour or os.environ.get("SPECDEC_CUDA_ON_CPU", "fast")
    if flavour not in KERNEL_FLAGS:
        raise ValueError(f"SPECDEC_CUDA_ON_CPU must be one of {', '.join(KERNEL_FLAGS)}, got {flavour}")
    csrc, top = Path(csrc).resolve(), ROOT / "build" / "cuda_on_cpu"
    common = make(top / "harness", in_common(), jobs)
    harness = make(top / f"{flavour}-harness", ninja_file(flavour, csrc, [], common), jobs)
    # verify_*, the slowest to compile, come first. *_by_id_cuda.cu are second copies of kernels, which are not needed
    # here: on the simulated device the first copies read rows with ids too (csrc/cuda/by_id.h).
    sources = sorted({*csrc.glob("ops/*/*_cuda.cu")} - {*csrc.glob("ops/*/*_by_id_cuda.cu")}, reverse=True)
    kernels = [p for p in sources if ops is None or p.parent.name in ops]
    if not kernels:
        return harness / f"{MODULE}.so"
    made = None
    if csrc == CSRC:  # a library of selected ops is linked from the objects of all ops
        made = make(top / flavour, ninja_file(flavour, csrc, sources, common, harness), jobs)
        if ops is None:
            return made / f"{MODULE}.so"
    name = f"{flavour}-{hashlib.sha256(f'{csrc} {ops}'.encode()).hexdigest()[:12]}"
    return make(top / name, ninja_file(flavour, csrc, kernels, common, harness, made), jobs) / f"{MODULE}.so"


@functools.cache
def load(flavour=None, csrc=CSRC, ops=None):
    """Load a library; return its module. Its ops replace the CPU's in this process."""
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
