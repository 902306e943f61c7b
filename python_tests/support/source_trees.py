# SPDX-License-Identifier: Apache-2.0
"""A copy of the source tree in which something is added and run."""

import os
import shutil
import subprocess
import sys

import pytest
from support import answers
from support.paths import ROOT


def copied(tree):
    """Copy the files that git lists to another folder."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    for file in listed.stdout.split() or pytest.skip("not a git checkout"):
        if (ROOT / file).is_file():
            (tree / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, tree / file)
    return tree


def add(file, before, lines):
    text = file.read_text()
    assert text.count(before) == 1, file
    file.write_text(text.replace(before, before + lines))


def run(tree, *command, **environment):
    environment = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "SPECDEC_TEST": "all"} | environment
    environment.pop(answers.FOLDER, None)  # its results are those of this tree
    done = subprocess.run([sys.executable, *command], cwd=tree, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout
