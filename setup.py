# SPDX-License-Identifier: Apache-2.0
"""Builds _C.so: plain C++ on libtorch's stable ABI, so one wheel serves every Python and every torch from 2.10 on."""

import os
import platform
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

try:
    import torch
    from torch.utils.cpp_extension import include_paths, library_paths
except ImportError:
    sys.exit(
        "specdec_kernels: torch is missing from the build environment. Install it first, then build against it:\n"
        "    pip install 'torch>=2.10' setuptools ninja\n"
        "    pip install --no-build-isolation ."
    )

ROOT = Path(__file__).parent
BUILD = ROOT / "build" / "ninja"  # fixed, so that a rebuild compiles only what changed
TORCH_TARGET = "0x020a000000000000"  # the stable ABI of torch 2.10

ISAS = {"base": ""}
if platform.machine() in ("x86_64", "AMD64"):
    ISAS["avx2"] = "-mavx2 -mfma -mf16c"
    ISAS["avx512"] = "-mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c -mprefer-vector-width=512"


def ninja_file(output):
    """The whole build as one page of ninja."""
    includes = " ".join(f"-isystem {p}" for p in include_paths())
    libs = " ".join(f"-L{p} -Wl,-rpath,$$ORIGIN/../torch/lib" for p in library_paths())
    lines = [
        f"cxx = {os.environ.get('CXX', 'g++')}",
        f"cflags = -std=c++20 -O3 -fPIC -Wall -Wextra -Wno-psabi -fvisibility=hidden -ffile-prefix-map={ROOT}=. -DTORCH_TARGET_VERSION={TORCH_TARGET} {includes}",
        "rule compile",
        "  command = $cxx $cflags $isa -MMD -MF $out.d -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "  description = $in $isa",
        "rule link",
        f"  command = $cxx -shared $in -o $out {libs} -ltorch_cpu -lc10",
        "  description = $out",
    ]
    objects = []
    for source in sorted((ROOT / "csrc").glob("*/*.cpp")) + [ROOT / "csrc" / "schema.cpp"]:
        name = source.relative_to(ROOT / "csrc").with_suffix("").as_posix().replace("/", ".")
        variants = ISAS if source.name == "rows_isa.cpp" else {"": ""}
        for isa, flags in variants.items():
            objects.append(f"{name}{'.' + isa if isa else ''}.o")
            lines.append(f"build {objects[-1]}: compile {source}")
            if isa:
                lines.append(f"  isa = -DSPECDEC_ISA={isa} -Wno-maybe-uninitialized -Wno-uninitialized {flags}")
    lines.append(f"build {output}: link {' '.join(objects)}")
    return "\n".join(lines) + "\n"


class NinjaBuild(build_ext):
    def get_ext_filename(self, fullname):
        return fullname.replace(".", os.sep) + ".so"  # no PyInit, so no Python tag

    def build_extension(self, ext):
        import ninja

        output = Path(self.get_ext_fullpath(ext.name)).absolute()
        output.parent.mkdir(parents=True, exist_ok=True)
        BUILD.mkdir(parents=True, exist_ok=True)
        (BUILD / "build.ninja").write_text(ninja_file(output))
        subprocess.run([Path(ninja.BIN_DIR) / "ninja", "-C", BUILD], check=True)


class StableWheel(bdist_wheel):
    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[Extension("specdec_kernels._C", [])],
    cmdclass={"build_ext": NinjaBuild, "bdist_wheel": StableWheel},
)
