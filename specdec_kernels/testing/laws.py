# SPDX-License-Identifier: Apache-2.0
"""The exact distribution of plain decoding, by enumeration, and comparisons of drawn sequences with a distribution."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import torch

from .outcomes import count_outcomes, distinct, token_rows
from .statistics import ALPHA, FEWEST, Law, Report, check_counts, passed

Model = Callable  # tuple of tokens -> [V], the distribution of the next token
Transform = Callable  # ([V], tuple of tokens) -> [V]
Seed = int | Sequence[int] | np.random.Generator


def softmax(row, tokens=(), temperature: float = 1.0) -> np.ndarray:
    """Return the float64 softmax of a row of logits. It can be used as a transform of ``enumerate_law``.

    Args:
        row: [V] logits.
        tokens: not read.
        temperature: above 0.

    Returns:
        float64 array [V].

    Example:
        >>> softmax([0.0, np.log(3)]).round(6).tolist()
        [0.25, 0.75]
    """
    z = np.asarray(row, dtype=np.float64) / temperature
    w = np.exp(z - z.max())
    return w / w.sum()


def probabilities(op: str, model: Model, tokens: tuple, transforms: Sequence[Transform] = ()) -> np.ndarray:
    """Return the distribution of the token after `tokens`. Raise if it is not one."""
    row = model(tokens)
    for transform in transforms:
        row = transform(row, tokens)
    row = np.asarray(row, dtype=np.float64)
    if row.ndim != 1 or not (row >= 0).all() or not abs(row.sum() - 1) <= 1e-5:
        got = f"a sum of {row.sum()}" if row.ndim == 1 else f"shape {list(row.shape)}"
        raise ValueError(f"{op}: model({tokens}) must be probabilities [V] that sum to 1, got {got}")
    return row


def enumerate_law(model: Model, length: int, prompt: Sequence[int] = (), transforms: Sequence[Transform] = ()) -> Law:
    """Return the exact joint distribution of the next tokens of plain decoding.

    Every sequence of positive probability is listed. There may be V^length of them, so this is for small vocabularies
    only. Temperature, filters, and penalties that count the tokens so far belong in ``transforms``. These are applied
    in order, to each row with the tokens before it.

    Args:
        model: a function of a tuple of tokens, the prompt first, that returns a row [V] for the next token:
            probabilities, or logits if a transform turns them into probabilities.
        length: how many tokens.
        prompt: the tokens before the first.
        transforms: functions of (row [V], tokens so far, the prompt first) that return a row [V].

    Returns:
        dict ``{tokens: probability}`` of floats. Tokens are tuples of ``length`` ids, without the prompt.

    Raises:
        ValueError: a row is not probabilities; the text names the tokens, and the sum or shape.

    Example:
        >>> def no_repeats(row, tokens):
        ...     row = [0.0 if v in tokens else x for v, x in enumerate(row)]
        ...     return [x / sum(row) for x in row]
        >>> enumerate_law(lambda tokens: [0.5, 0.25, 0.25], 2, prompt=(1,), transforms=[no_repeats])
        {(0, 2): 0.6666666666666666, (2, 0): 0.3333333333333333}
    """
    prompt, law = tuple(prompt), {(): 1.0}
    for _ in range(length):
        law = {
            (*t, v): mass * w
            for t, mass in law.items()
            for v, w in enumerate(probabilities("enumerate_law", model, prompt + t, transforms).tolist())
            if w > 0
        }
    return law


def complete_law(law: Law, model: Model, length: int) -> Law:
    """Return the distribution of emitted tokens after plain decoding has continued them to ``length`` tokens.

    A verification is lossless exactly if ``complete_law(law, model, length) == enumerate_law(model, length)`` up to
    rounding. Here ``law`` is the distribution of the tokens that it emits (``specdec_kernels.reference.chain_law``),
    and ``length`` is the largest number of tokens that it emits.

    Args:
        law: {emitted tokens: probability}; sequences longer than ``length`` are cut.
        model: as for ``enumerate_law``, returning probabilities.
        length: how many tokens.

    Returns:
        dict ``{tokens: probability}``.

    Raises:
        ValueError: as ``enumerate_law``.

    Example:
        >>> complete_law({(0, 1): 0.5, (1,): 0.5}, lambda tokens: [0.25, 0.75], 2)
        {(0, 1): 0.5, (1, 0): 0.125, (1, 1): 0.375}
    """
    full = defaultdict(float)
    for tokens, mass in law.items():
        for tail, m in enumerate_law(model, max(0, length - len(tokens)), tokens).items():
            full[(*tokens, *tail)[:length]] += mass * m
    return dict(full)


def complete_tokens(tokens, model: Model, length: int, seed: Seed = 0) -> np.ndarray:
    """Continue emitted tokens to ``length`` tokens by draws of plain decoding: ``complete_law`` for drawn tokens.

    Args:
        tokens: [N, L] integers padded with -1 (a tensor or an array), or a list of N token lists.
        model: as for ``enumerate_law``, returning probabilities.
        length: how many tokens; longer rows are cut.
        seed: a seed of ``numpy.random.default_rng`` (an int or a sequence of ints >= 0), or a generator.

    Returns:
        int64 array [N, length]. Tokens that the model cannot emit stay as they are, and their row is not continued.

    Raises:
        TypeError, ValueError: tokens of another type or shape, below -1, or after padding; a row that is not
        probabilities.

    Example:
        >>> complete_tokens([[1], [0, 1]], lambda tokens: [0.0, 1.0], 3).tolist()
        [[1, 1, 1], [0, 1, -1]]
    """
    rows, rng, known = token_rows("complete_tokens", tokens), np.random.default_rng(seed), {}

    def row(prefix):
        """Return the distribution after a prefix, or None if the model cannot emit the prefix."""
        if prefix not in known:
            before = row(prefix[:-1]) if prefix else None
            reached = not prefix or (before is not None and prefix[-1] < len(before) and before[prefix[-1]] > 0)
            known[prefix] = probabilities("complete_tokens", model, prefix) if reached else None
        return known[prefix]

    full = np.full((len(rows), length), -1, dtype=np.int64)
    full[:, : rows.shape[1]] = rows[:, :length]
    for i in range(length):
        open = np.flatnonzero(full[:, i] < 0)
        prefixes, which, _ = distinct(full[open, :i])
        for j, prefix in enumerate(prefixes.tolist()):
            if (p := None if -1 in prefix else row(tuple(prefix))) is not None:
                here = open[which == j]
                full[here, i] = draw_from(p, len(here), rng)
    return full


def draw_from(p: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Return n independent draws by inverse CDF. An id of probability 0 is never drawn."""
    edges = np.cumsum(p)
    return np.asarray(np.searchsorted(edges / edges[-1], rng.random(n), side="right"))


def check_tokens(tokens, law: Law, *, alpha: float = ALPHA, fewest: float = FEWEST, name: str = "") -> Report:
    """Compare drawn sequences with their exact joint distribution.

    Args:
        tokens: [N] or [N, L] integers padded with -1 (a tensor or an array), or a list of N token lists. A row without
            its padding is one outcome, so sequences of different lengths are different outcomes.
        law: {tuple of tokens: probability}.
        alpha, fewest, name: as for ``check_counts``.

    Returns:
        Report

    Raises:
        TypeError, ValueError: tokens of another type or shape, below -1, or after padding; as ``check_counts``.

    Example:
        >>> check_tokens([[0, 1], [1], [1], [0, 1]] * 50, {(0, 1): 0.5, (1,): 0.5}).statistic
        0.0
    """
    counts = count_outcomes(token_rows("check_tokens", tokens))
    return check_counts(counts, law, alpha=alpha, fewest=fewest, name=name)


def check_law(
    draw: Callable,
    law: Law,
    draws: int = 100_000,
    *,
    batch: int = 50_000,
    seed: int = 0,
    alpha: float = ALPHA,
    fewest: float = FEWEST,
    name: str = "",
) -> Report:
    """Compare the sequences that a sampler draws with their exact joint distribution.

    Args:
        draw: a function of int64 seeds [n] (a CPU tensor, all different) that returns n sequences, as ``check_tokens``
            takes them; sequence i must be drawn by seeds[i]. A sampler with a generator of its own may ignore the seeds
            and draw ``len(seeds)`` sequences.
        law: {tuple of tokens: probability}, for example from ``enumerate_law``.
        draws: how many sequences.
        batch: the most sequences that one call of ``draw`` draws.
        seed: the first seed; the others follow it.
        alpha, fewest, name: as for ``check_counts``.

    Returns:
        Report

    Raises:
        TypeError, ValueError: as ``check_tokens``; ``draw`` returns a wrong number of sequences.

    Example:
        >>> law = enumerate_law(lambda tokens: [0.75, 0.25], 2)
        >>> def draw(seeds):
        ...     generator = torch.Generator().manual_seed(int(seeds[0]))
        ...     return (torch.rand(len(seeds), 2, generator=generator) < 0.25).long()
        >>> check_law(draw, law, 20_000).passed
        True
    """
    counts = Counter()
    for first in range(seed, seed + draws, batch):
        seeds = torch.arange(first, min(first + batch, seed + draws), dtype=torch.int64, device="cpu")
        rows = token_rows("check_law", draw(seeds))
        if len(rows) != len(seeds):
            raise ValueError(f"check_law: draw must return a sequence for each seed, {len(seeds)}, got {len(rows)}")
        counts.update(count_outcomes(rows))
    return check_counts(counts, law, alpha=alpha, fewest=fewest, name=name)


def assert_law(draw: Callable, law: Law, draws: int = 100_000, **options) -> Report:
    """Raise AssertionError with the report's text unless a sampler's draws have the distribution.

    Args:
        draw, law, draws: as for ``check_law``.
        options: ``batch``, ``seed``, ``alpha``, ``fewest`` and ``name`` of ``check_law``.

    Returns:
        Report

    Raises:
        AssertionError: the draws fail.
        TypeError, ValueError: as ``check_law``.

    Example:
        >>> assert_law(lambda seeds: seeds[:, None] % 2, {(0,): 0.5, (1,): 0.5}, 1000).statistic
        0.0
    """
    return passed(check_law(draw, law, draws, **options))
