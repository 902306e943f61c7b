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

    Drafted tokens are tested in order, d accepted with probability min(1, p(d) / q(d)); the first rejection is replaced
    by a draw from norm((p - q)+) and ends the step; if all are accepted one more token is drawn from p. Emitted:
    ``num_accepted + 1`` tokens. Rows after the stop are not read, and neither distribution is written to memory.

    Block verification has the same output distribution and accepts at least as many tokens in expectation: the whole
    draft is weighed, and a longer prefix may make good for a token that alone would have been rejected. It reads the
    target's rows up to the first draft that p forbids.

    The race draws each token from p by noise that depends on the seed, the absolute position and the token id only, and
    accepts a draft that is this token. So the output is the same, token by token, whatever was drafted, and without
    drafts. ``sample(race=True)`` guesses the tokens by the same noise. The draft's rows are ignored.

    Args:
        target: ``Rows``, or a tensor: the rows as they are. Dense [B, G+1, V]: row i is the distribution after i
            drafted tokens. Ragged [R, V] with R = sum(g_b) + B, request b's rows from ``cu_draft[b] + b``. Parameters
            are numbers or [B], stats [B, G+1, 4] (ragged [R, 4]). ``row`` [B, G+1] (ragged [R]): the number of each
            position's row in logits [N, V], or kept by slot, [S, K, V] of any strides, where row n is [n // K, n % K];
            stats are then [N, 4] or [S, K, 4]. Positions may share a row. A number outside [0, N) is as a row of NaN.
            Penalties: [B] or numbers, lists [S, H] with ``penalties.row`` [B]. Row i is seen after the i drafts before
            it, whatever row that is. Bias: lists [S, I] or [B, G+1, I]; ``bias.row`` [B] or [B, G+1] (ragged [R]).
            Masks: [S, W] or [B, G+1, W]; ``allowed.row`` has the shapes of ``bias.row``.
        draft_tokens: [B, G], ragged [D]; int32 or int64. A request's draft ends at its first id that is below 0 or in
            neither vocabulary: pad short drafts with -1. With ``ids`` or ``vocab_map`` only an id below 0, or of 2^24
            or more, ends it: another one that is not listed has q = 0.
        draft: ``Rows`` or a tensor, [B, G, Vq] (ragged [D, Vq]): what the tokens were drawn from, with the parameters
            they were drawn with; or None for one-hot drafts (n-gram, prompt lookup). Hand over ``sample``'s ``.rows``,
            of several steps through ``stack_rows``. Vq may differ from V: ids outside the other side have probability 0
            there. One more row per request ([B, G+1, Vq], ragged [R, Vq]) is allowed: of a rule's bonus token; the
            exact rule does not read it. ``row`` [B, G] or [B, G+1] (ragged [D] or [R]) as the target's; -1 is a one-hot
            draft, and another number outside [0, N) has no q, which status says where q is needed. A greedy request
            needs no q by the exact rule, nor by another one that asks the target alone: there a draft is accepted if it
            is the argmax. Sparse rows: ``ids`` of the shape of the logits, [B, G, E] or [B, G+1, E] (ragged [D, E] or
            [R, E]; with ``row`` [Nq, E] or [Sq, Kq, E]). Mapped rows: ``vocab_map``. Every rule uses q(v), the sum over
            all entries of target id v.
        cu_draft, max_draft: [B+1] int32 or int64, ascending from 0 to D, makes the call ragged; max_draft is then the
            output's G.
        bonus_tokens: [B] or [B, 1] int32 or int64, sampled by the engine; the target then comes without its bonus row
            (G or D rows). With method "race" draw it by ``sample(race=True)`` on the bonus row, at ``offset`` plus the
            request's number of drafts; otherwise the text depends on the drafts.
        method: "token", "block" or "race".
        rule: "exact", or a lossy one by name: ``specdec_kernels.rules.TABLE`` states the distribution or the guarantee
            of each. Or [B] int32 or int64, ``specdec_kernels.RULES[name]`` of each request. Method "race" takes
            "exact" only. Rules that define no distribution take method "token" only. In a tensor on a GPU rules are
            not checked: "block" verifies such requests token by token, and "race" takes every rule as "exact". If a
            rule defines a distribution pi, everything above holds with pi in the place of p; the bonus token is drawn
            from pi if the draft scored its position too, else from p.
        alpha: the rule's parameter: a number, a pair, or float32 [B] or [B, 2]; None for its default. Out of range in a
            tensor on a GPU: the nearest value inside. Rule "synthetic" also takes a rate for each position, given that
            the drafts before were accepted: a tuple of G, or float32 [B, G] (where ``rule`` is a tensor [B, G, 1] or
            [B, G, 2], of which the other rules read the first position's).
        seed, offset: [B] int64; see ``uniforms``. Not needed by the exact rule where the target's temperature is the
            number 0. Method "race": ``offset`` is the absolute position of the first emitted token, so row i has the
            noise of position ``offset + i``. Without ``offset``, seed [B, G+1] (ragged [R]) holds a noise key for each
            position, also that of a given bonus token: key K is seed K at position 0.
        uniforms: [B, G+1] float64 in [0, 1), in place of seed and offset: accept tests, then the final draw. What lies
            outside counts as the nearer end, NaN as 0. Not for method "race".
        num_requests: [1] int32 or int64 on the device, for padded buffers: requests from this index on are absent.
            Nothing of them is read, nor any row after those of the last request present. In a ragged batch D may
            exceed the last entry of ``cu_draft``. Below 0 it counts as 0, above B as B. None: all are present.
        out: contiguous tensors of the result's shapes and dtypes (tokens int32 or int64): the result is written to them
            and they are returned. None of them may share memory with another argument.
        require_exact: raise unless the rule, at its parameters, leaves the output distributed as the target whatever
            the draft is (``specdec_kernels.rules.TABLE[name].keeps_target_at``). Rules in tensors must be on the CPU.

    Returns:
        VerifyChainOutput ``(tokens, num_accepted, logprobs, status)``. The logprob of a caller's bonus token, and of a
        token from an invalid row, is NaN. Status 1: a needed row held NaN, +inf or no finite value (the token is the
        row's largest finite entry); 2: empty residual, drawn from p; 4: q of a draft that was needed was not in
        (0, 1 + 1e-3], or its row number names no row, draft rejected; 8: the caller's bonus token was no id below V: it
        is emitted as given, a negative one as 0. But for such a token every emitted one lies in [0, V), and bad data in
        one request changes no other. Under status 0 no logprob is NaN; -inf is that of a token which a rule emits
        though the target forbids it. A request that is absent has tokens -1, and 0 everywhere else.

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
    """[B, G+1]; None where drafts are ragged, or no tensor of two dimensions, which the op refuses."""
    if cu_draft is not None or not isinstance(draft_tokens, torch.Tensor) or draft_tokens.dim() != 2:
        return None
    return draft_tokens.size(0), draft_tokens.size(1) + 1


def _max_draft(op, max_draft, cu_draft):
    """-1 where it is not given."""
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
