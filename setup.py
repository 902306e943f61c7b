# SPDX-License-Identifier: Apache-2.0
"""Build of _C.so and, if nvcc is found and SPECDEC_CUDA and SPECDEC_CROSS allow it, of _C_cuda.so.

Both use libtorch's stable ABI, so one wheel serves every Python from 3.10 and every torch from 2.10 on.
"""

import os
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

try:
    import torch  # noqa: F401
except ImportError:
    sys.exit(
        "specdec_kernels: torch is missing from the build environment. Install it first, then build against it:\n"
        "    pip install 'torch>=2.10' 'setuptools>=70.1' ninja numpy\n"
        "    pip install --no-build-isolation -e ."
    )

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT))

from build_tools import cross, nvcc, schema  # noqa: E402
from build_tools.ninja_file import SANITIZE, ninja_file  # noqa: E402

CROSS = cross.wanted()
BASE = ROOT / "build" / CROSS.machine if CROSS else ROOT / "build"  # apart from files for this machine
# A fixed folder, so that a rebuild compiles only what changed.
BUILD = BASE / ("ninja-sanitize" if SANITIZE else "ninja")
COMPILER = None if CROSS else nvcc.wanted()
DROP_CUDA = not COMPILER and os.environ.get("SPECDEC_CUDA") != "keep"  # remove the CUDA ops of an older build
LIBRARIES = ["_C", "_C_cuda"] if COMPILER else ["_C"]


class NinjaBuild(build_ext):
    def get_ext_filename(self, fullname):
        return fullname.replace(".", os.sep) + ".so"  # no PyInit, so no Python tag

    def build_extensions(self):
        import ninja

        if SANITIZE and self.inplace:
            sys.exit(
                "specdec_kernels: what SPECDEC_SANITIZE builds must not take the place of the package's own: "
                "give a --build-lib"
            )
        if COMPILER:
            print(
                f"specdec_kernels: CUDA ops for {';'.join(nvcc.archs(COMPILER))} by nvcc {COMPILER.version}", flush=True
            )
        elif CROSS:
            print(f"specdec_kernels: CPU ops only, for {CROSS.machine} by {CROSS.compiler}", flush=True)
        else:
            choice = os.environ.get("SPECDEC_CUDA")
            searched = "CUDA_HOME, CUDA_PATH, PATH or /usr/local/cuda"
            why = f"SPECDEC_CUDA={choice}" if choice else f"nvcc was not found in {searched}"
            print(f"specdec_kernels: CPU ops only: {why}", flush=True)
        outputs = {name: Path(self.get_ext_fullpath(f"specdec_kernels.{name}")).absolute() for name in LIBRARIES}
        outputs["_C"].parent.mkdir(parents=True, exist_ok=True)
        if DROP_CUDA:
            outputs["_C"].with_name("_C_cuda.so").unlink(missing_ok=True)
        BUILD.mkdir(parents=True, exist_ok=True)
        schema.write(BUILD)
        (BUILD / "build.ninja").write_text(ninja_file(outputs, COMPILER, CROSS))
        jobs = ["-j", os.environ["MAX_JOBS"]] if os.environ.get("MAX_JOBS") else []
        if subprocess.run([Path(ninja.BIN_DIR) / "ninja", "-C", BUILD, *jobs]).returncode:
            sys.exit(
                "specdec_kernels: the build failed" + (" (SPECDEC_CUDA=0 leaves the CUDA ops out)" if COMPILER else "")
            )

    def copy_extensions_to_source(self):
        if CROSS:
            sys.exit("specdec_kernels: what SPECDEC_CROSS builds does not run here: build a wheel of it")
        super().copy_extensions_to_source()
        if DROP_CUDA:
            (ROOT / "specdec_kernels" / "_C_cuda.so").unlink(missing_ok=True)


class StableWheel(bdist_wheel):
    def get_tag(self):
        return "py3", "none", f"linux_{CROSS.machine}" if CROSS else super().get_tag()[2]


setup(
    ext_modules=[Extension(f"specdec_kernels.{name}", []) for name in LIBRARIES],
    cmdclass={"build_ext": NinjaBuild, "bdist_wheel": StableWheel},
    options={"build": {"build_base": str(BASE)}} if CROSS else {},
)
