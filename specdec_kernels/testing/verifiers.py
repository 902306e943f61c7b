# SPDX-License-Identifier: Apache-2.0
"""A test of a verifier on known rows: its emitted tokens are compared with their exact joint distribution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from ..reference.chain_law import chain_law
from .laws import Model, Transform, check_law, complete_tokens, draw_from, enumerate_law, softmax
from .outcomes import distinct, token_rows
from .statistics import ALPHA, FEWEST, Law, Report, passed

EXPECTED = ("target", "token", "block")


class Step(NamedTuple):
    """The input of a verifier: n requests with G drafted tokens each. The tensors are on the CPU; see ``to``."""

    target_logits: torch.Tensor  # [n, G+1, V] float32: row i follows i drafted tokens
    target_probs: torch.Tensor  # [n, G+1, V] float32: the distribution that the target samples from at these rows
    draft_tokens: torch.Tensor  # [n, G] int64
    draft_logits: torch.Tensor  # [n, G, Vq] float32; for a one-hot draft 0 at the token, -inf elsewhere
    draft_probs: torch.Tensor  # [n, G, Vq] float32: the distribution of the draft tokens
    seed: torch.Tensor  # [n] int64, one for each request
    one_hot: bool  # the drafts are one-hot (n-gram, prompt lookup): an engine may take them without rows

    def to(self, device) -> Step:
        moved: dict[str, Any] = {
            name: x.to(device) for name, x in self._asdict().items() if isinstance(x, torch.Tensor)
        }
        return self._replace(**moved)


class Side:
    """The rows of one side after every prefix, as logits and as probabilities."""

    def __init__(self, model: Model, transform: Transform):
        self.model, self.transform, self.known = model, transform, {}

    def rows(self, prefix: tuple) -> tuple[np.ndarray, np.ndarray]:
        """Return the float32 logits after a prefix, and the float64 probabilities computed from them."""
        if prefix not in self.known:
            logits = np.asarray(self.model(prefix)).astype(np.float32)
            self.known[prefix] = logits, np.asarray(self.transform(logits, prefix), dtype=np.float64)
        return self.known[prefix]

    def probabilities(self, prefix: tuple) -> np.ndarray:
        return self.rows(prefix)[1]

    def after(self, prefixes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the rows after the m distinct prefixes among ``prefixes`` [n, i]: logits [m, V], probabilities [m, V],
        and for each prefix the index of its row [n]."""
        found, which, _ = distinct(prefixes)
        logits, probs = zip(*[self.rows(tuple(prefix)) for prefix in found.tolist()])
        return np.stack(logits), np.stack(probs), which


@dataclass(frozen=True)
class Case:
    """A target and a draft with known rows. ``cases()`` returns some; write others for your engine's own filters.

    Args:
        name, finds: the name of the case, and the errors that it was made to find.
        target: a function of the tuple of tokens so far that returns the target's logits [V]; rounded to float32.
        draft: the same for the draft; or a function that returns one id, which makes the draft one-hot.
        length: how many tokens are drafted.
        transform, draft_transform: (logits [V] float32, tokens so far) -> the probabilities that are sampled from; by
            default the softmax. Filters, temperature and penalties go here. The verifier must apply the same ones.

    Raises:
        ValueError: a length below 1.

    Example:
        >>> sharp = Case("sharp", "temperature forgotten", lambda tokens: [1.0, 0.0], lambda tokens: [0.5, 0.5], 1,
        ...              transform=lambda row, tokens: softmax(row, temperature=0.5))
        >>> sharp.step(torch.arange(4)).target_probs.shape
        torch.Size([4, 2, 2])
    """

    name: str
    finds: str
    target: Model
    draft: Model
    length: int
    transform: Transform = softmax
    draft_transform: Transform = softmax

    def __post_init__(self):
        if self.length < 1:
            raise ValueError(f"Case: length must be at least 1, got {self.length}")

    @cached_property
    def one_hot(self) -> bool:
        return np.ndim(self.draft(())) == 0

    @cached_property
    def p(self) -> Side:
        return Side(self.target, self.transform)

    @cached_property
    def q(self) -> Side:
        if not self.one_hot:
            return Side(self.draft, self.draft_transform)
        width = len(np.asarray(self.target(())))
        return Side(lambda prefix: np.where(np.arange(width) == self.draft(prefix), 0.0, -np.inf), softmax)

    def law(self, expected: str = "target") -> Law:
        """Return the distribution of the emitted tokens, {tokens: probability}.

        "target": of ``length + 1`` tokens of the target itself. "token" (each draft tested by itself) or "block": of
        the tokens that one step of this verification emits.
        """
        p, q = self.p.probabilities, self.q.probabilities
        if expected == "target":
            return enumerate_law(p, self.length + 1)
        return chain_law(p, q, self.length, method=expected)

    def step(self, seeds: torch.Tensor, draft: Callable | None = None) -> Step:
        """Draft tokens for requests with these seeds, and return the rows of both sides. draft: as for
        ``check_verifier``."""
        rng, tokens = generator(seeds, "draft"), np.zeros((len(seeds), 0), dtype=np.int64)
        target, drafts = [self.p.after(tokens)], []
        for i in range(self.length):
            logits, probs, which = self.q.after(tokens)
            if draft is None or self.one_hot:
                new = np.zeros(len(seeds), dtype=np.int64)
                for j, q in enumerate(probs):
                    here = np.flatnonzero(which == j)
                    new[here] = draw_from(q, len(here), rng)
            else:
                new = token_rows("draft", draft(torch.from_numpy(logits[which]), seeds, i))[:, 0]
            tokens = np.column_stack((tokens, new))
            drafts.append((logits, probs, which))
            target.append(self.p.after(tokens))

        def rows(side, field):
            return torch.from_numpy(np.stack([x[field][x[2]] for x in side], 1)).float()

        q = rows(drafts, 0), rows(drafts, 1)
        return Step(rows(target, 0), rows(target, 1), torch.from_numpy(tokens), *q, seeds, self.one_hot)


def generator(seeds: torch.Tensor, stream: str) -> np.random.Generator:
    """Return a random generator for a batch and a purpose (``stream``). It is independent of the verifier's numbers."""
    return np.random.default_rng([int(seeds[0]) & (1 << 63) - 1, *stream.encode()])


def check_verifier(
    verify: Callable,
    case: Case,
    draws: int = 100_000,
    *,
    expected: str | Law = "target",
    draft: Callable | None = None,
    batch: int = 50_000,
    seed: int = 0,
    alpha: float = ALPHA,
    fewest: float = FEWEST,
) -> Report:
    """Compare a verifier's output with its exact joint distribution: accepted length and tokens together.

    The rows of a case are known for every prefix, so the distribution is enumerated. Drafts are drawn from the draft's
    rows, the target's rows are those after each draft, and one step is verified.

    Args:
        verify: a function of a ``Step`` that returns the emitted tokens (the accepted drafts, then one final token):
            [n, G+1] integers padded with -1 (a tensor or an array), or a list of n token lists. Request i must use
            seed[i], or random numbers that no other request and no draft uses.
        case: one of ``cases()``, or one of your own.
        draws: how many requests are verified.
        expected: the distribution to compare with. "target", for any lossless rule: the emitted tokens, continued to
            G+1 tokens by draws from the target's rows, must have the target's distribution. "token" (each draft by
            itself: Leviathan et al. 2023, Chen et al. 2023) or "block" (Sun et al. 2024): the emitted tokens must have
            the distribution of this rule, so that the accepted length is tested too. Or your own distribution of
            emitted tokens.
        draft: a function of (draft logits [n, Vq] float32, seed [n], position) that draws the draft tokens [n], to
            test an engine's own drafter with its verifier; by default they are drawn here.
        batch: the most requests of one call.
        seed: the first seed; the others follow it.
        alpha, fewest: as for ``check_counts``.

    Returns:
        Report

    Raises:
        ValueError: ``expected`` is none of these; as ``check_law``.

    Example:
        >>> import specdec_kernels as sk
        >>> def verify(step):
        ...     return sk.verify_chain(step.target_logits, step.draft_tokens, step.draft_logits,
        ...                            seed=step.seed, offset=step.seed * 0).tokens
        >>> check_verifier(verify, cases()[0], 20_000, expected="token").passed
        True

    Source: algorithms as named; the joint distribution is the one that ``specdec_kernels.reference.chain_law``
    enumerates.
    """
    if isinstance(expected, str) and expected not in EXPECTED:
        wanted = " or ".join(map(repr, EXPECTED))
        raise ValueError(f"check_verifier: expected must be {wanted} or a distribution, got {expected!r}")
    law = case.law(expected) if isinstance(expected, str) else expected

    def draw(seeds):
        tokens = token_rows("check_verifier", verify(case.step(seeds, draft)))
        if expected != "target":
            return tokens
        return complete_tokens(tokens, case.p.probabilities, case.length + 1, generator(seeds, "rest"))

    report = check_law(draw, law, draws, batch=batch, seed=seed, alpha=alpha, fewest=fewest, name=case.name)
    return replace(report, hint=case.finds)


def assert_verifier(verify: Callable, case: Case, draws: int = 100_000, **options) -> Report:
    """Raise AssertionError with the report's text unless a verifier's output has its exact joint distribution.

    Args:
        verify, case, draws: as for ``check_verifier``.
        options: ``expected``, ``draft``, ``batch``, ``seed``, ``alpha`` and ``fewest`` of ``check_verifier``.

    Returns:
        Report

    Raises:
        AssertionError: the tokens fail; the text ends with the errors that the case was made to find.
        ValueError: as ``check_verifier``.

    Example:
        >>> [case] = [case for case in cases() if case.name == "one-hot draft"]
        >>> def always_accept(step):
        ...     return step.draft_tokens
        >>> assert_verifier(always_accept, case, 1000)
        Traceback (most recent call last):
        ...
        AssertionError: one-hot draft: FAIL, ...
    """
    return passed(check_verifier(verify, case, draws, **options))
