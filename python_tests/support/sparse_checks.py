# SPDX-License-Identifier: Apache-2.0
"""Comparisons of random calls on sparse and mapped draft rows with the reference."""

import math

import numpy as np
import torch
from support import answers as reference
from support import backends, kseq_rho_laws, races, sparse_cases
from support.checks import assert_same_tokens
from support.viewed import differ

import specdec_kernels as sk
from specdec_kernels.reference.banded.band import EPS
from specdec_kernels.reference.banded.walks import filters_margin
from specdec_kernels.reference.entries import listed
from specdec_kernels.reference.kseq_rho import laws
from specdec_kernels.reference.law import clean_q, positive
from specdec_kernels.reference.row_stats import params_of_rows
from specdec_kernels.reference.rows import first_sampling
from specdec_kernels.reference.views import seen_rows
from specdec_kernels.rows import Rows


def assert_logs(got, want, V):
    """Check logprobs up to the rounding of exp's argument and of the normaliser (reference.banded.band.rounding)."""
    finite = want.isfinite()
    assert torch.equal(got.isfinite(), finite) and torch.equal(got.isnan(), want.isnan())
    bound = EPS * (32 + 6 * math.log(V) + 4 * want[finite].abs())
    assert ((got.double() - want)[finite].abs() <= bound).all()


def verification_agrees(op, backend, calls):
    """Compare verification with the reference: all forms of rows, methods, rules, filters, views, dtypes and layouts.

    Some drafted tokens are not among the ids of their row.
    """
    accepted = rejected = same = 0
    for seed in range(calls):
        call = (sparse_cases.chain if op == "verify_chain" else sparse_cases.tree)(seed)
        if not backends.serves(backend, op, call):
            continue
        out, want = backends.run(op, backend, **call), getattr(reference, op)(**call)
        equal = assert_same_tokens(out, want, f"{op} {seed}")
        assert_logs(out.logprobs[equal], want.logprobs[equal], call["target"].logits.shape[-1])
        same += len(equal)
        accepted += int(want.num_accepted.sum())
        rejected += int((want.status == sk.STATUS_INVALID_DRAFT).sum())
    assert accepted > same / 10 and rejected > 0


def margins(rows):
    """Return how far each row's filters are from other cutoffs, in units of the error bound."""
    n = len(rows.logits)
    rows = seen_rows(listed(rows), n)
    params = params_of_rows(n, *first_sampling(rows, n))
    return torch.tensor([filters_margin(z, *each) for z, each in zip(rows.logits.double().numpy(), params)])


def rows_agree(backend, calls):
    """Compare stats and draws with the reference."""
    for seed in range(calls):
        rows, rng = sparse_cases.rows(seed)
        got, want, sure = backends.run("row_stats", backend, rows), reference.row_stats(rows), margins(rows) > 1
        assert torch.equal(got[sure, 0].double(), want[sure, 0]) and torch.equal(got[sure, 3].double(), want[sure, 3])
        assert_logs(got[sure, 2], want[sure, 2], rows.logits.shape[-1])
        k, how = int(rng.integers(1, 5)), ({"replacement": True}, {"replacement": False}, {"race": True})[seed % 3]
        uniforms = torch.tensor(rng.random((len(rows.logits), k)))
        given = rows
        if rng.random() < 0.4:
            given = rows._replace(**dict.fromkeys(sk.registry.SAMPLING), stats=got)
        call = races.raced({"rows": given, "k": k, "uniforms": uniforms} | how)
        if not backends.serves(backend, "sample", call):
            continue
        out, want = backends.run("sample", backend, **call), reference.sample(**call)
        sure &= want.margin > 1
        assert torch.equal(out.tokens[sure], want.tokens[sure]), seed
        assert_logs(out.logprobs[sure], want.logprobs[sure], rows.logits.shape[-1])
        assert out.rows.vocab_map is None or torch.equal(out.rows.vocab_map.packed, rows.vocab_map.packed)


def pairs_agree(backend, calls):
    """Compare row_gap and kseq_rho with the reference."""
    for seed in range(calls):
        call = sparse_cases.pair(seed)
        p, q = call["p"], call["q"]
        if p.kind == "logits" and min(margins(p).min(), margins(q).min()) <= 1:
            continue
        found = [*zip(*laws("", p, q))]
        wide = max(max(len(a.p), len(b.p)) for a, b in found)
        got, want = backends.run("row_gap", backend, **call), reference.row_gap(**call)
        most = math.log(wide) + 1
        bound = (64 + 8 * math.log(wide)) * EPS * torch.tensor([1, 1, most, most, 1, 1], dtype=torch.float64)
        assert torch.equal(got.isnan(), want.isnan()), seed
        assert ((got - want).nan_to_num(0.0).abs() <= bound).all(), seed
        k = torch.tensor([1 + (seed + i) % 8 for i in range(len(found))])
        out, bad = backends.run("kseq_rho", backend, **call, k=k), want[:, 0].isnan()
        assert torch.equal(out.rho[bad], k[bad].double()) and out.beta[bad].isnan().all()
        rows = [[np.pad(x, (0, wide - len(x))) for x in (positive(a.p), clean_q(b.p))] for a, b in found]
        a, b = (torch.tensor(np.array(x)) for x in zip(*rows))
        a, b, of = (a / a.sum(1, True))[~bad], (b / b.sum(1, True))[~bad], [x[~bad] for x in out]
        if len(a):
            kseq_rho_laws.judge(a, b, k[~bad].double(), sk.KSeqRhoOutput(*of), (64 + 8 * math.log(wide)) * EPS)


def dense(rows, V):
    """Return sparse or mapped rows [..., k] without repeats as rows [..., V] of logits."""
    given = listed(rows)
    wide = torch.full((*given.logits.shape[:-1], V + 1), -math.inf, dtype=rows.logits.dtype)
    wide.scatter_(-1, given.ids.where(given.ids >= 0, V), given.logits)  # pads go to the last column
    return rows._replace(logits=wide[..., :V].contiguous(), ids=None, vocab_map=None)


def same_as_dense(backend, method, mapped):
    """Check that chains with sparse drafts give the same bits as with the same drafts as dense rows, of some chunks.

    The stats are given, since those of a sparse row add up its entries in their own order. All else is computed by id,
    in the order of the dense row.
    """
    rng = np.random.default_rng(5)
    B, G, V, k = 24, 3, 2500, 1100
    near = 2 * rng.standard_normal((B, G + 1, V))
    target = torch.tensor(near, dtype=torch.float32)
    if mapped:
        table = np.full(k, -1)
        table[rng.permutation(k)[: k - 50]] = rng.permutation(V)[: k - 50]
        ids, made = None, sk.vocab_map(torch.tensor(table), V)
    else:
        ids, made = torch.tensor(np.array([rng.permutation(V)[:k] for _ in range(B * G)]).reshape(B, G, k)), None
        ids[..., 7] = -1
    draft = Rows(torch.tensor(rng.standard_normal((B, G, k))), ids=ids, vocab_map=made)
    of = listed(draft).ids
    z = target[:, :G].gather(-1, of.clamp(min=0)).double() + 0.3 * draft.logits
    draft = draft._replace(logits=z.float())
    flat = Rows(draft.logits.flatten(0, 1), top_p=0.9, ids=ids if ids is None else ids.flatten(0, 1), vocab_map=made)
    drawn = sk.sample(flat, uniforms=torch.tensor(rng.random((B * G, 1))))
    draft = draft._replace(stats=drawn.rows.stats.view(B, G, 4))
    call = {"draft_tokens": drawn.tokens.view(B, G), "method": method, "uniforms": torch.tensor(rng.random((B, G + 1)))}
    own, wide = (backends.run("verify_chain", backend, target, draft=x, **call) for x in (draft, dense(draft, V)))
    assert not differ(own, wide)
    assert 0.1 < own.num_accepted.double().mean() / G < 0.95
