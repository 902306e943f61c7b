# SPDX-License-Identifier: Apache-2.0
"""Output of the command line and the demo: progress while loading, text as it streams, a table of statistics."""

import threading
from contextlib import contextmanager
from itertools import count
from time import perf_counter

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

__all__ = ["loading", "progress", "stats_table", "stream_text"]


_EVERY = 8.0  # seconds between two lines about long work, if there is no terminal for a progress bar


@contextmanager
def loading(console: Console, steps: int):
    """Yield on_step(description), to be called when each of `steps` begins.

    On a terminal it draws a bar. Otherwise it prints a line for each step, and one every few seconds while the step
    runs.
    """
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    with _steps_on_a_bar(console, steps) if console.is_terminal else _steps_in_lines(console) as on_step:
        yield on_step


@contextmanager
def _steps_on_a_bar(console, steps):
    with _bar(console, "loading {task.description}") as bar:
        task, begun = bar.add_task("", total=steps), count()
        yield lambda description: bar.update(task, description=description, completed=next(begun))


@contextmanager
def _steps_in_lines(console):
    latest, began = "", 0.0

    def on_step(description):
        nonlocal latest, began
        latest, began = description, perf_counter()
        console.print(f"loading: {description}", highlight=False)

    def still():
        if latest:
            console.print(f"loading: {latest}, {perf_counter() - began:.0f} s", highlight=False)

    with _every(_EVERY, still):
        yield on_step


class _Work:
    """The finished part of long work, and an estimate of the time left."""

    def __init__(self, total: float, expected: float | None):
        self.total, self.expected, self.finished = total, expected, 0.0
        self.began = self.latest = perf_counter()

    def add(self, amount: float) -> None:
        self.finished, self.latest = self.finished + amount, perf_counter()

    def __str__(self):
        """Return the estimated seconds left as text, from the speed so far, or from the expected time before the first
        piece is done."""
        left = self.expected
        if self.finished:
            left = (self.latest - self.began) / self.finished * (self.total - self.finished)
        return "" if left is None else f"about {max(0.0, left - (perf_counter() - self.latest)):.0f} s to go"


@contextmanager
def progress(console: Console, total: float, expected: float | None = None, first: str = "the first of them"):
    """Yield done(description, amount=1), to be called after each piece of `total` work.

    On a terminal it draws a bar. Otherwise it prints a line every few seconds, with an estimate of the time left.

    expected: the expected seconds of all the work. first: the description until the first piece is done.
    """
    work = _Work(total, expected)
    with (_work_on_a_bar if console.is_terminal else _work_in_lines)(console, work, first) as done:
        yield done


@contextmanager
def _work_on_a_bar(console, work, first):
    with _bar(console, "{task.description}", work) as bar:
        task = bar.add_task(first, total=work.total)

        def done(description: str, amount: float = 1):
            work.add(amount)
            bar.update(task, description=description, advance=amount)

        yield done


@contextmanager
def _work_in_lines(console, work, first):
    latest, said = first, work.began

    def say():
        nonlocal said
        if (now := perf_counter()) - said >= _EVERY:
            said = now
            print_line(work)

    def print_line(then):
        console.print(f"{latest}: {work.finished:g} of {work.total:g}, {then}".rstrip(", "), highlight=False)

    def done(description: str, amount: float = 1):
        nonlocal latest
        latest = description
        work.add(amount)
        if work.finished < work.total:
            say()

    with _every(_EVERY / 8, say):
        yield done
    print_line(f"{perf_counter() - work.began:.0f} s in all")


@contextmanager
def _every(seconds: float, say):
    """Call say() at this interval while the body runs."""
    ended = threading.Event()

    def run():
        while not ended.wait(seconds):
            say()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class _Left(ProgressColumn):
    def __init__(self, work: _Work):
        super().__init__()
        self.work = work

    def render(self, task):
        return Text(str(self.work))


def _bar(console, description, work: _Work | None = None):
    columns = [SpinnerColumn(), TextColumn(description), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    return Progress(*columns, *([_Left(work)] if work else []), console=console, transient=True)


def stream_text(console: Console, prompts: list[str], events) -> list[str]:
    """Write the text of request 0 as it arrives, then the other texts in order: first the part that has arrived, then
    the rest as it arrives. Return all texts."""
    texts, shown = [""] * len(prompts), 0

    def show(text, **style):
        console.print(text, end="", markup=False, highlight=False, soft_wrap=True, **style)

    def head(i):
        if len(prompts) > 1:
            console.print(f"\n[dim]-- request {i} --[/dim]")
        show(prompts[i], style="dim")

    done = [False] * len(prompts)
    head(0)
    for event in events:
        texts[event.index] += event.text
        done[event.index] = event.finished is not None
        if event.index == shown:
            show(event.text)
        while shown < len(prompts) and done[shown]:
            shown += 1
            if shown < len(prompts):
                head(shown)
                show(texts[shown])
    console.print()
    return texts


def stats_table(stats, method: str | None) -> Table:
    """Return the table of counts and times of a run. method: the name to show; None for plain decoding."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))

    def row(name, value):
        table.add_row(f"[dim]{escape(name)}[/dim]", value)

    row("new tokens", f"{stats.new_tokens}")
    row("tokens/s", f"{stats.tokens_per_second:.1f} (prompts read in {stats.prefill_seconds:.2f} s)")
    row("target calls", f"{stats.target_calls:.0f}, {stats.tokens_per_call:.2f} tokens per call and request")
    if method is not None:
        drafted = f"{stats.nodes_per_call - 1:.2f} drafted per call and request"
        row("method", f"{method}: {stats.accepted_length:.2f} tokens accepted of {drafted}")
        row(
            "acceptance",
            f"{stats.acceptance:.3f} of {stats.drafted} drafted, alpha {stats.alpha:.3f} of {stats.tested} tested",
        )
    parts = dict(draft=stats.draft_seconds, target=stats.target_seconds, verify=stats.verify_seconds)
    parts["other"] = max(0.0, stats.decode_seconds - sum(parts.values()))
    row("seconds", ", ".join(f"{name} {seconds:.2f}" for name, seconds in parts.items()))
    return table
