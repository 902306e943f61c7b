# SPDX-License-Identifier: Apache-2.0
"""What the command line and the demo print: progress while loading, text as it streams, a table of statistics."""

from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

__all__ = ["loading", "stats_table", "stream_text"]


@contextmanager
def loading(console: Console, steps: int = 4):
    """A progress bar; yields on_step(description) for load_pair."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    columns = (
        SpinnerColumn(),
        TextColumn("loading {task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=steps, completed=-1)

        def on_step(description: str):
            progress.update(task, description=description, advance=1)

        yield on_step


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
        row(
            "method",
            f"{method}: {stats.accepted_length:.2f} tokens accepted of {stats.nodes_per_call - 1:.2f} drafted per call and request",
        )
        row(
            "acceptance",
            f"{stats.acceptance:.3f} of {stats.drafted} drafted, alpha {stats.alpha:.3f} of {stats.tested} tested",
        )
    parts = dict(draft=stats.draft_seconds, target=stats.target_seconds, verify=stats.verify_seconds)
    parts["other"] = max(0.0, stats.decode_seconds - sum(parts.values()))
    row("seconds", ", ".join(f"{name} {seconds:.2f}" for name, seconds in parts.items()))
    return table
