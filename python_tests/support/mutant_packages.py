# SPDX-License-Identifier: Apache-2.0
"""The package with one thing wrong in its sources, where PYTHONPATH finds it, and what counts as finding out."""

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
    """A mutant's test, which ends with one of these errors or is stopped by the simulated device: by no other."""
    with pytest.raises((*errors, RuntimeError)) as raised:
        yield
    assert not isinstance(raised.value, RuntimeError) or str(raised.value).startswith("cuda_on_cpu: "), raised.value


def cpu_package(csrc, monkeypatch):
    """Where PYTHONPATH finds the package with the CPU's library made from other sources; the rest of it are links."""
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
    """Where PYTHONPATH finds the package with one Triton file changed; the rest of it are links."""
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
