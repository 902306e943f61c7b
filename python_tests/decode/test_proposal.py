# SPDX-License-Identifier: Apache-2.0
"""The protocol between drafters and the loop. The loop knows no drafter by name, and serves proposals of any class."""

import ast
from pathlib import Path

import pytest
import torch
from support import tiny

import specdec_kernels as sk
from specdec_kernels import decode
from specdec_kernels.decode.drafters.token_cascade import KeptDraft

pytestmark = pytest.mark.usefixtures("one_thread")
HERE = Path(decode.__file__).parent


@pytest.mark.parametrize("name", ["loop.py", "session.py", "sequence.py", "proposal.py"])
def test_the_loop_knows_no_drafter_by_name(name):
    imported = [
        node.module or "" for node in ast.walk(ast.parse((HERE / name).read_text())) if isinstance(node, ast.ImportFrom)
    ]
    assert imported and not any("drafters" in module for module in imported)


def test_a_proposal_has_three_implementations():
    assert all(decode.Proposal in kind.__mro__ for kind in (decode.Draft, decode.TreeDraft, KeptDraft))


class Recited:
    """A proposal that inherits nothing: a chain scored as a tree of one branch, and verified token by token."""

    def __init__(self, tokens):
        n, G = tokens.shape
        self.tokens, self.needs_target = tokens, [True] * n
        parents = torch.where(tokens >= 0, torch.arange(G), -1).int()
        parents = torch.cat((torch.full((n, 1), -1, dtype=torch.int32), parents), 1)
        self.branches, self.committed = decode.Branches(parents, [0] * n), []

    def verify(self, logits, batch, method, row):
        target = sk.Rows(logits, **batch.sampling, row=row)
        return sk.verify_chain(target, self.tokens, method=method, **batch.randomness)

    def commit_kv(self, cache, start, verified, slot):
        self.committed.append(start)

    def tested(self, verified):
        return verified.num_accepted


class Recital(decode.Drafter):
    """Drafts each request's known continuation, with every fifth token wrong."""

    num_lookahead, rules, verifies = 4, ("exact",), ("token",)

    def __init__(self, texts):
        self.texts, self.proposals, self.slots = texts, [], []

    def propose(self, batch):
        rows = []
        for s in batch:
            done = len(s.result.tokens)
            text = self.texts[s.index][done : done + min(3, s.remaining - 1)]
            text = [(t + 1) % 32 if (done + i) % 5 == 4 else t for i, t in enumerate(text)]
            rows.append(text + [-1] * (3 - len(text)))
        self.proposals.append(Recited(torch.tensor(rows)))
        return self.proposals[-1]


def test_a_proposal_of_ones_own():
    hf, target, _ = tiny.served()["lean"]
    todo = tiny.requests()
    texts = [tiny.greedy(hf, r.prompt, r.max_new_tokens) for r in todo]
    drafter = Recital(texts)
    output = decode.generate(target, todo, drafter, max_batch=3)
    assert [r.tokens for r in output.results] == texts
    assert output.stats.tokens_per_call > 2 and output.stats.accepted < output.stats.drafted
    assert all(len(p.committed) == 1 for p in drafter.proposals)


def test_what_a_drafter_refuses_is_refused_before_anything_is_decoded():
    """The first request is not begun either, although the one that cannot be served only waits for a slot."""
    _, target, draft = tiny.served()["lean"]
    seen = []
    todo = [decode.Request([1, 2], 9), decode.Request([1, 2], 9, temperature=1.0)]
    drafter = decode.TreeDrafter(draft, "greedy", 2, 2)
    with pytest.raises(ValueError, match="needs temperature 0, request 1 has 1.0"):
        decode.generate(target, todo, drafter, max_batch=1, on_event=seen.append)
    assert not seen
