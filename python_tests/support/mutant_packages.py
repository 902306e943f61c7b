# SPDX-License-Identifier: Apache-2.0
"""Copies of the package with one error in the sources, for PYTHONPATH, and the errors that count as catching it."""

import contextlib
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tools.cuda_on_cpu.build import ROOT
from tools.mutate import changed

PACKAGE = ROOT / "specdec_kernels"


@contextlib.contextmanager
def caught_by(*errors):
    """A context for a mutant's test, which must end with one of these errors or an error of the simulated device."""
    with pytest.raises((*errors, RuntimeError)) as raised:
        yield
    assert not isinstance(raised.value, RuntimeError) or str(raised.value).startswith("cuda_on_cpu: "), raised.value


def cpu_package(csrc, monkeypatch):
    """Build the CPU library from other sources; return a folder for PYTHONPATH with it and links to all other files."""
    import ninja

    from build_tools import ninja_file, schema

    folder = Path(csrc) / "build"
    monkeypatch.setattr(ninja_file, "CSRC", Path(csrc))
    shutil.rmtree(folder / PACKAGE.name, ignore_errors=True)
    shutil.copytree(
        PACKAGE, folder / PACKAGE.name, copy_function=os.symlink, ignore=shutil.ignore_patterns("__pycache__", "*.so")
    )
    schema.write(folder)
    page = ninja_file.ninja_file({"_C": folder / PACKAGE.name / "_C.so"}, None)
    (folder / "build.ninja").write_text(page)
    subprocess.run([Path(ninja.BIN_DIR) / "ninja", "-C", folder], check=True, capture_output=True)
    return folder


def package(file, old, new):
    """Change one Triton file; return a folder for PYTHONPATH with it and links to all other files of the package."""
    text = (PACKAGE / "triton" / file).read_text()
    folder = ROOT / "build" / "triton_mutants" / hashlib.sha256(f"{file} {old} {new}".encode()).hexdigest()[:12]
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(
        PACKAGE, folder / PACKAGE.name, copy_function=os.symlink, ignore=shutil.ignore_patterns("__pycache__")
    )
    path = folder / PACKAGE.name / "triton" / file
    path.unlink()
    path.write_text(changed(text, old, new))
    return folder
