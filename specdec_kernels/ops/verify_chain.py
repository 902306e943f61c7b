# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import NamedTuple

import torch

from specdec_kernels.ops import _call, _check, _rows, _rules, _verify
from specdec_kernels.ops._fake import fake
from specdec_kernels.registry import CHAIN_METHODS
from specdec_kernels.rows import Rows

_verify_chain, _write = _call.op("verify_chain"), _call.op("verify_chain", "out")


class VerifyChainOutput(NamedTuple):
    tokens: torch.Tensor  # [B, G+1] int64: accepted drafts, one final token, then -1
    num_accepted: torch.Tensor  # [B] int32, 0..G
    logprobs: torch.Tensor  # [B, G+1] float32, ln of the target's probability of each emitted token, 0 at pads
    status: torch.Tensor  # [B] int32, 0 or STATUS_* bits


def verify_chain(
    target: Rows | torch.Tensor,
    draft_tokens: torch.Tensor,
    draft: Rows | torch.Tensor | None = None,
    *,
    cu_draft: torch.Tensor | None = None,
    max_draft: int | None = None,
    bonus_tokens: torch.Tensor | None = None,
    method: str = "token",
    rule: str | torch.Tensor = "exact",
    alpha: float | tuple[float, float] | torch.Tensor | None = None,
    seed: torch.Tensor | None = None,
    offset: torch.Tensor | None = None,
    uniforms: torch.Tensor | None = None,
    num_requests: torch.Tensor | None = None,
    out: VerifyChainOutput | None = None,
    require_exact: bool = False,
) -> VerifyChainOutput:
    """Verify one drafted path per request; by default the output is distributed exactly as the target's own samples.

    Drafted tokens are tested in order: token d is accepted with probability min(1, p(d) / q(d)). The first rejected
    token is replaced by a draw from norm((p - q)+), and the step ends there. If all are accepted, one more token is
    drawn from p. So ``num_accepted + 1`` tokens are emitted. The CPU reads no row after the first rejection; a GPU,
    which reads the rows of several positions at once, may. Neither distribution is written to memory.

    Block verification has the same output distribution and accepts at least as many tokens in expectation. It tests the
    draft as a whole, so later tokens may compensate for one that would be rejected by itself. It needs the target's
    rows up to the first drafted token with p = 0.

    The race draws each token from p with noise that depends only on the seed, the absolute position and the token id. A
    draft is accepted if it is this token. So the output is the same for all drafts, and without drafts.
    ``sample(race=True)`` drafts with the same noise, so that many drafts are accepted. The draft's rows are ignored.

    Args:
        target: ``Rows``, or a tensor: the rows as they are. Dense [B, G+1, V]: row i is the distribution after i
            drafted tokens. Ragged [R, V] with R = sum(g_b) + B, where g_b is the length of request b's draft: its rows
            begin at ``cu_draft[b] + b``. Parameters are numbers or [B], stats [B, G+1, 4] (ragged [R, 4]). ``row``
            [B, G+1] (ragged [R]): the index of each position's row in logits [N, V], or in logits by slot, [S, K, V] of
            any strides, where row n is [n // K, n % K]. Stats are then [N, 4] or [S, K, 4]. Positions may share a row.
            An index outside [0, N) counts as a row of NaN. Penalties: [B] or numbers, lists [S, H] with
            ``penalties.row`` [B]. The row of position i gets the penalties after the i drafts before it. Bias: lists
            [S, I] or [B, G+1, I]; ``bias.row`` [B] or [B, G+1] (ragged [R]). Masks: [S, W] or [B, G+1, W];
            ``allowed.row`` has the shapes of ``bias.row``.
        draft_tokens: [B, G], ragged [D]; int32 or int64. A request's draft ends at its first id that is below 0 or in
            neither vocabulary: pad short drafts with -1. With ``ids`` or ``vocab_map`` it ends only at an id below 0 or
            of 2^24 or more; any other id that is not listed has q = 0.
        draft: ``Rows`` or a tensor, [B, G, Vq] (ragged [D, Vq]): the rows that the tokens were drawn from, with the
            parameters they were drawn with. None: one-hot drafts (n-gram, prompt lookup). Pass ``sample``'s ``.rows``;
            join those of several steps by ``stack_rows``. Vq may differ from V: an id that a side does not have has
            probability 0 there. One more row per request is allowed, [B, G+1, Vq] (ragged [R, Vq]), for a rule's bonus
            token; the exact rule does not read it. ``row`` [B, G] or [B, G+1] (ragged [D] or [R]): as the target's.
            Index -1 is a one-hot draft. Any other index outside [0, N) has no q; a test that needs q then rejects. A
            greedy request needs no q under the exact rule, nor under rules that test against the target alone. Sparse
            rows: ``ids`` of the shape of the logits, [B, G, E] or [B, G+1, E] (ragged [D, E] or [R, E]; with ``row``
            [Nq, E] or [Sq, Kq, E]). Mapped rows: ``vocab_map``. Every rule uses q(v), the sum over all entries of
            target id v.
        cu_draft, max_draft: give both for a ragged call. cu_draft, [B+1] int32 or int64, ascends from 0 to D: request
            b's drafts are ``draft_tokens[cu_draft[b]:cu_draft[b+1]]``. max_draft is the G of the output.
        bonus_tokens: [B] or [B, 1] int32 or int64, sampled by the engine. The target then has no bonus rows (G or D
            rows). With method "race" draw them by ``sample(race=True)`` on the bonus rows, at ``offset`` plus the
            request's number of drafts; otherwise the text depends on the drafts.
        method: "token", "block" or "race".
        rule: "exact", or a lossy rule by name: ``specdec_kernels.rules.TABLE`` states the distribution or the guarantee
            of each. Or [B] int32 or int64, ``specdec_kernels.RULES[name]`` for each request. Method "race" takes
            "exact" only. Rules that define no distribution take method "token" only. Rules in a tensor on a GPU are
            not checked: "block" verifies such requests token by token, and "race" takes every rule as "exact". If a
            rule defines a distribution pi, everything above holds with pi in the place of p. The bonus token is drawn
            from pi if the draft has a row for its position, else from p.
        alpha: the rule's parameter: a number, a pair, or float32 [B] or [B, 2]; None for its default. On a GPU,
            out-of-range values in a tensor are clamped. Rule "synthetic" also takes a rate for each position, the
            probability of acceptance if the drafts before are accepted: a tuple of G rates, or float32 [B, G]. If
            ``rule`` is a tensor, rates are [B, G, 1] or [B, G, 2], and other rules read those of the first position.
        seed, offset: [B] int64; see ``uniforms``. Not needed by the exact rule if the target's temperature is the
            number 0. Method "race": ``offset`` is the absolute position of the first emitted token, so row i has the
            noise of position ``offset + i``. Without ``offset``, seed [B, G+1] (ragged [R]) holds a noise key for each
            position, also for that of a given bonus token: key K gives the noise of seed K at position 0.
        uniforms: [B, G+1] float64 in [0, 1), in place of seed and offset: accept tests, then the final draw. Values
            outside count as the nearer end, NaN as 0. Not for method "race".
        num_requests: [1] int32 or int64 on the device, for padded buffers: requests from this index on are absent, and
            none of their entries is read, nor any row after those of the last request that is present. In a ragged
            batch D may exceed the last entry of ``cu_draft``. Below 0 it counts as 0, above B as B. None: all are
            present.
        out: contiguous tensors of the result's shapes and dtypes (tokens int32 or int64): the result is written to them
            and they are returned. None of them may share memory with another argument.
        require_exact: raise unless the rule, at its parameters, gives the output the target's distribution for any
            draft (``specdec_kernels.rules.TABLE[name].keeps_target_at``). Rules in tensors must be on the CPU.

    Returns:
        VerifyChainOutput ``(tokens, num_accepted, logprobs, status)``. The logprob of a caller's bonus token, and of a
        token from an invalid target row, is NaN. Bits of ``status``: 1: a needed row held NaN, +inf or no finite value;
        if it is the target's, the token is its largest finite entry. 2: the residual was empty, and the token was drawn
        from p. 4: a q that was needed was not in (0, 1 + 1e-3], or its row index was invalid; the draft was rejected.
        8: the caller's bonus token was not an id below V; it is emitted as given, or as 0 if negative. Every emitted
        token other than such a bonus token is in [0, V), and bad data in one request changes no other. If status is 0,
        the logprob of a token that the op drew or accepted is not NaN; it is -inf for a token that a rule emits
        although the target forbids it. An absent request has tokens -1, and 0 everywhere else.

    Raises:
        TypeError, ValueError: naming the argument, what was wanted and what came. On the CPU some invalid values (a
        cu_draft that does not ascend, a negative temperature) raise ValueError too.

    Example:
        >>> p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.5, 0.3])
        >>> out = verify_chain(p.log().expand(1, 3, 3), torch.tensor([[1, 0]]), q.log().expand(1, 2, 3),
        ...                    uniforms=torch.tensor([[0.5, 0.9, 0.1]], dtype=torch.float64))
        >>> out.tokens, out.num_accepted
        (tensor([[1, 0, 0]]), tensor([2], dtype=torch.int32))

    Source: Leviathan et al. 2023, Algorithm 1; Chen et al. 2023, Algorithm 2; Sun et al. 2024 (block verification);
    Daliri et al. 2024 (race, there Gumbel coupling).
    """
    op = "verify_chain"
    _check.choice(op, "method", method, CHAIN_METHODS)
    target = _rows.of_either(op, "target", target)
    draft = None if draft is None else _rows.of_either(op, "draft", draft)
    if not CHAIN_METHODS[method].reads_draft:
        draft = None
    max_draft = _max_draft(op, max_draft, cu_draft)
    if bonus_tokens is not None and _check.tensor(op, "bonus_tokens", bonus_tokens).shape[1:] == (1,):
        bonus_tokens = bonus_tokens.squeeze(1)
    rules = _rules.arguments(op, method, rule, alpha, target.logits.device, (draft_tokens, max_draft))
    certain = _check.is_greedy(target.temperature) and not rules.given
    _check.randomness(op, seed, offset, uniforms, certain, method == "race")
    of_target = _verify.flat(op, "target", target, rules.given)
    of_draft = _verify.flat(op, "draft", draft, rules.given)
    by = (CHAIN_METHODS[method].code, *rules.as_taken(target.logits.device))
    randomness = (seed, offset, _check.contiguous(uniforms), num_requests)
    views = _verify.views(op, target, draft, lambda: _positions(draft_tokens, cu_draft))
    arguments = (*of_target, draft_tokens, *of_draft, cu_draft, max_draft, bonus_tokens, *by, *randomness, *views)
    if _check.flag(op, "require_exact", require_exact):
        rules.require_exact(op, arguments)
    if out is None:
        return VerifyChainOutput(*_verify_chain(*arguments))
    return _verify.write(op, VerifyChainOutput, _write, arguments, out)


def _positions(draft_tokens, cu_draft):
    """Return (B, G+1), the shape of the positions; None for ragged or invalid drafts."""
    if cu_draft is not None or not isinstance(draft_tokens, torch.Tensor) or draft_tokens.dim() != 2:
        return None
    return draft_tokens.size(0), draft_tokens.size(1) + 1


def _max_draft(op, max_draft, cu_draft):
    """Return max_draft after checks, or -1 if it is not given."""
    wanted = "the longest draft's length where cu_draft is given"
    if max_draft is not None:
        return _check.integer(op, "max_draft", max_draft, 0, (1 << 31) - 1, f"{wanted}, in [0, 2^31)", "an int or None")
    if cu_draft is not None:
        raise ValueError(f"{op}: max_draft must be {wanted}, got None")
    return -1


@fake("verify_chain")
def _(target_logits, draft_tokens, cu_draft, max_draft):
    B = draft_tokens.size(0) if cu_draft is None else cu_draft.size(0) - 1
    G = draft_tokens.size(1) if cu_draft is None else max_draft
    return (
        target_logits.new_empty((B, G + 1), dtype=torch.int64),
        target_logits.new_empty((B,), dtype=torch.int32),
        target_logits.new_empty((B, G + 1), dtype=torch.float32),
        target_logits.new_empty((B,), dtype=torch.int32),
    )
