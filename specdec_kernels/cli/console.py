# SPDX-License-Identifier: Apache-2.0
"""What the command line and the demo print: progress while loading, text as it streams, a table of statistics."""

from contextlib import contextmanager
from time import perf_counter

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

__all__ = ["loading", "progress", "stats_table", "stream_text"]


_EVERY = 10.0  # seconds between two lines about long work, where there is no terminal to draw a bar on


@contextmanager
def loading(console: Console, steps: int = 4):
    """Yields on_step(description) for load_pair: a bar on a terminal, elsewhere a line for each step."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    if not console.is_terminal:
        yield lambda description: console.print(f"loading: {description}", highlight=False)
        return
    with _bar(console, "loading {task.description}") as bar:
        task = bar.add_task("", total=steps, completed=-1)
        yield lambda description: bar.update(task, description=description, advance=1)


@contextmanager
def progress(console: Console, total: int):
    """Yields done(description), to be called after each of `total` pieces of work: a bar on a terminal, elsewhere a
    line now and then, with what is left to do."""
    if console.is_terminal:
        with _bar(console, "{task.description}") as bar:
            task = bar.add_task("the first of them", total=total)
            yield lambda description: bar.update(task, description=description, advance=1)
        return
    began = said = perf_counter()
    finished = 0

    def done(description: str):
        nonlocal said, finished
        finished, now = finished + 1, perf_counter()
        if now - said >= _EVERY or finished == total:
            said, left = now, (now - began) / finished * (total - finished)
            then = f"about {left:.0f} s to go" if left else f"{now - began:.0f} s in all"
            console.print(f"{description}: {finished} of {total}, {then}", highlight=False)

    yield done


def _bar(console, description):
    columns = TextColumn(description), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    return Progress(SpinnerColumn(), *columns, console=console, transient=True)


def stream_text(console: Console, prompts: list[str], events) -> list[str]:
    """Write one request's text as it arrives; of a batch, the first live and the others after it -> all texts."""
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
    """Counts and times of a run of the loop. method: None for plain decoding, "chain", or a method of verify_tree."""
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
