# SPDX-License-Identifier: Apache-2.0
"""Progress of long work: a bar on a terminal, otherwise a line every few seconds, with an estimate of the time left."""

import io
import time
from contextlib import nullcontext, redirect_stderr

import pytest

pytest.importorskip("rich")
from rich.console import Console  # noqa: E402

from specdec_kernels.cli import console as spoken  # noqa: E402
from specdec_kernels.cli import main  # noqa: E402


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is advanced. Nothing is printed between two pieces."""
    monkeypatch.setattr(spoken, "_every", lambda *_: nullcontext())
    now = [100.0]
    monkeypatch.setattr(spoken, "perf_counter", lambda: now[0])
    return now


def test_a_log_has_a_line_now_and_then(clock):
    """Lines show the time left, from the speed so far. Pieces may have different sizes."""
    text = io.StringIO()
    with spoken.progress(Console(file=text, width=80), 8) as done:
        for amount in (1, 2, 2, 2, 1):
            clock[0] += 6 * amount
            done("timing", amount)
    lines = ["timing: 3 of 8, about 30 s to go", "timing: 5 of 8, about 18 s to go", "timing: 7 of 8, about 6 s to go"]
    assert text.getvalue().splitlines() == [*lines, "timing: 8 of 8, 48 s in all"]


@pytest.mark.parametrize("expected, says", [(90.0, "warm up: 0 of 2, about 9"), (None, "warm up: 0 of 2\n")])
def test_long_pieces_are_heard_of(monkeypatch, expected, says):
    """Before the first piece has ended, the given estimate is shown, if there is one."""
    monkeypatch.setattr(spoken, "_EVERY", 0.1)
    text = io.StringIO()
    with spoken.progress(Console(file=text, width=80), 2, expected, "warm up") as done:
        _until(lambda: says in text.getvalue())
        done("timing")
        _until(lambda: "timing: 1 of 2, about " in text.getvalue())
        done("timing")
    assert "timing: 2 of 2, " in text.getvalue().splitlines()[-1]


def _until(true):
    for _ in range(1000):
        if true():
            return
        time.sleep(0.02)
    raise AssertionError("not within 20 s")


def test_loading_names_its_steps_in_a_log(monkeypatch):
    monkeypatch.setattr(spoken, "_EVERY", 0.1)
    text = io.StringIO()
    with spoken.loading(Console(file=text, width=80), 3) as on_step:
        on_step("target smollm2")
        assert text.getvalue() == "loading: target smollm2\n"
        _until(lambda: "loading: target smollm2, 0 s\n" in text.getvalue())


def test_loading_counts_what_is_done_on_a_terminal():
    text = io.StringIO()
    with spoken.loading(Console(file=text, width=80, force_terminal=True), 2) as on_step:
        for step in ("target", "packing"):
            on_step(step)
            time.sleep(0.3)  # the bar is drawn ten times a second
    assert "0/2" in text.getvalue() and "1/2" in text.getvalue() and "-1/" not in text.getvalue()


def test_a_terminal_has_a_bar():
    text = io.StringIO()
    with spoken.progress(Console(file=text, width=120, force_terminal=True), 2, 50.0) as done:
        time.sleep(0.3)
        done("timing")
        done("timing")
    assert "2/2" in text.getvalue() and "about 50 s to go" in text.getvalue() and "-:--" not in text.getvalue()


def test_progress_is_seen_while_stderr_is_redirected(monkeypatch, capsys):
    """Unpacking a .gguf model redirects sys.stderr for minutes. `generate` still prints its progress."""
    generate = pytest.importorskip("specdec_kernels.cli.generate")

    def load(args, says):
        with redirect_stderr(io.StringIO()):
            says.print("still unpacking")
        raise ValueError("loaded enough")

    monkeypatch.setattr(generate, "_load", load)
    assert main(["generate", "--prompt", "a"]) == 2
    assert capsys.readouterr().err.splitlines() == ["still unpacking", "error: loaded enough"]
