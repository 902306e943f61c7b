# SPDX-License-Identifier: Apache-2.0
"""Long work is heard of where there is no terminal: a line now and then, no bar."""

import io

import pytest

pytest.importorskip("rich")
from rich.console import Console  # noqa: E402

from specdec_kernels.cli import console as spoken  # noqa: E402


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still unless told to go on."""
    now = [100.0]
    monkeypatch.setattr(spoken, "perf_counter", lambda: now[0])
    return now


def test_a_log_has_a_line_now_and_then(clock):
    text = io.StringIO()
    with spoken.progress(Console(file=text, width=80), 5) as done:
        for _ in range(5):
            clock[0] += 6
            done("timing")
    lines = ["timing: 2 of 5, about 18 s to go", "timing: 4 of 5, about 6 s to go", "timing: 5 of 5, 30 s in all"]
    assert text.getvalue().splitlines() == lines


def test_loading_names_its_steps_in_a_log():
    text = io.StringIO()
    with spoken.loading(Console(file=text, width=80)) as on_step:
        on_step("target smollm2")
        assert text.getvalue() == "loading: target smollm2\n"


def test_a_terminal_has_a_bar():
    text = io.StringIO()
    with spoken.progress(Console(file=text, width=80, force_terminal=True), 2) as done:
        done("timing")
        done("timing")
    assert "2/2" in text.getvalue() and "to go" not in text.getvalue()
