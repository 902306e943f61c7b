# SPDX-License-Identifier: Apache-2.0
"""The output of `make` while a command runs."""

import sys

from build_tools import stage


def test_long_work_is_heard_of(capfd, monkeypatch):
    monkeypatch.setattr(stage, "EVERY", 0.2)
    work = "import time\nprint('[3/20] one.cpp', flush=True)\nprint('  |   ^', flush=True)\ntime.sleep(1.5)"
    assert stage.run("the ops, about 1 s", [sys.executable, "-c", work]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == "== the ops, about 1 s" and lines[-1].strip().startswith("done in ")
    assert len(lines) > 3 and any(line.endswith("[3/20] one.cpp") for line in lines[1:-1])
    assert not any("^" in line for line in lines)


def test_what_fails_is_shown_whole(capfd):
    assert stage.run("a stage", [sys.executable, "-c", "print('why'); raise SystemExit(3)"]) == 3
    out = capfd.readouterr().out
    assert "why\n" in out and "== failed: " in out
