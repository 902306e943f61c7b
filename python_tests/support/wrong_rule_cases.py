# SPDX-License-Identifier: Apache-2.0
"""The rules of docs/wrong_rules.md, each with a small model and the right rule.

The right rule is given twice: as the reference's distribution, and as a verifier that calls our op.
"""

from collections import defaultdict
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import torch
from support import wild_rules as wild
from support import wrong_rules as wrong
from support.tree_laws import constant

import specdec_kernels as sk
from specdec_kernels import testing
from specdec_kernels.reference.chain_law import chain_law
from specdec_kernels.reference.tree_law import mixed, plain_tree, separate_trees, tree_law

# ---- the right rules -------------------------------------------------------------------------------------------------


def rng(step):
    return dict(seed=step.seed, offset=torch.zeros_like(step.seed))


def i_i_d_siblings(step):
    drafts = sk.sample(step.draft_logits[:, 0], k=2, **rng(step)).tokens[..., None]
    rows = (step.target_logits[:, :1].expand(-1, 3, -1), step.draft_logits[:, :1].expand(-1, 3, -1))
    return sk.verify_tree(sk.build_tree(drafts), *rows, method="recursive", **rng(step)).tokens


def law_of_siblings(p, q):
    return mixed(separate_trees(q, 2, 1), p, q, "recursive")


def star(children):
    return [-1] + [0] * children, [-1, *range(children)]


def one_hot_siblings(children, step):
    parents, tokens = (torch.tensor(x).expand(len(step.seed), -1) for x in star(children))
    rows = step.target_logits[:, :1].expand(-1, children + 1, -1)
    return sk.verify_tree((parents, tokens), rows, method="target_only", **rng(step)).tokens


def law_of_star(children, p, q):
    return tree_law(plain_tree(*star(children)), p, None, "target_only")


def one_coin(step):
    """Verify with our op, with one random bit per position, which decides whether the filter masks the row."""
    masks = torch.tensor([[0b1111], [0b1100]], dtype=torch.int32)  # of ROWS[0]
    on = torch.from_numpy(np.random.default_rng(int(step.seed[0])).integers(2, size=(len(step.seed), 2)))
    logits = torch.from_numpy(wrong.ROWS[0]).log().float().expand(len(on), 2, -1)
    rows = sk.Rows(logits, allowed=sk.Allowed(masks, on))
    return sk.verify_chain(rows, step.draft_tokens, step.draft_logits, **rng(step)).tokens


def law_of_one_coin(p, q):
    law = defaultdict(float)
    for row in wrong.ROWS:
        for tokens, mass in chain_law(constant(row), q, 1).items():
            law[tokens[:1]] += mass / 2
    return law


def penalised(step):
    """Verify with our op, which itself counts the drafts before each position for the penalties."""
    ids, counts = (torch.full((1, 1), x, dtype=torch.int32) for x in (-1, 0))
    history = sk.Penalties(presence=1.5, ids=ids, counts=counts, row=torch.zeros(len(step.seed), dtype=torch.int64))
    rows = sk.Rows(step.target_logits, penalties=history)
    return sk.verify_chain(rows, step.draft_tokens, None, **rng(step)).tokens


# ---- the rules of the page -------------------------------------------------------------------------------------------


def alone(rule):
    """Return a rule of rows p and q as a rule of p and q as functions of a prefix."""
    return lambda draw, p, q: (rule(draw, p(()), q(())),)


class Wrong(NamedTuple):
    p: list
    q: list | int  # an id: a one-hot draft
    rules: dict[str, Callable]
    verify: Callable = wild.right  # the right rule, by our op
    right: Callable = partial(chain_law, gamma=1)
    length: int = 1  # number of drafts, and of tokens in the page's table
    transform: Callable = testing.softmax

    def sides(self):
        """Return p and q as functions of a prefix."""
        q = np.eye(len(self.p))[self.q] if isinstance(self.q, int) else np.array(self.q)
        with np.errstate(divide="ignore"):
            z = np.log(self.p)
        return cache(partial(self.transform, z)), constant(q)

    def step(self, seeds):
        """Return the input of a verifier, with drafts drawn from q."""
        with np.errstate(divide="ignore"):
            z = [x if isinstance(x, int) else np.log(x) for x in (self.p, self.q)]
        return testing.Case("", "", *map(constant, z), self.length).step(seeds)

    def laws(self):
        """Return {row of the table: distribution of the emitted tokens}."""
        p, q = self.sides()
        return {name: wrong.law_of(lambda draw: rule(draw, p, q)) for name, rule in self.rules.items()} | {
            "right": self.right(p, q)
        }


P, Q = [0.5, 0.3, 0.2], [0.2, 0.5, 0.3]
TAIL = [0.75] + [1 / 512] * 128
RULES = {
    "A rejected one-hot draft is drawn again": Wrong(P, 0, {"wrong": alone(wrong.drawn_again)}),
    "Siblings are tested against the same p": Wrong(
        [0.2, 0.8], [0.8, 0.2], {"wrong": alone(wrong.siblings_against_one_p)}, i_i_d_siblings, law_of_siblings
    ),
    "More siblings than the kernel records": Wrong(
        [1 / 40] * 40,
        0,
        {
            "wrong": alone(wrong.siblings_not_recorded),
            "wrong, total of the tests": alone(wrong.siblings_not_recorded_total_of_the_tests),
        },
        partial(one_hot_siblings, wrong.TRIED),
        partial(law_of_star, wrong.TRIED),
    ),
    "A coin of 0 accepts an impossible token": Wrong(
        [0.0, 0.6, 0.4], 0, {"wrong": alone(wrong.zero_accepted)}, partial(one_hot_siblings, 1), partial(law_of_star, 1)
    ),
    "A block is tested by an uncapped ratio": Wrong(
        [1 / 3, 2 / 3],
        [2 / 3, 1 / 3],
        {"wrong, greedy": wrong.greedy_block, "wrong, last test": wrong.uncapped_last_test},
        wild.block,
        partial(chain_law, gamma=2, method="block"),
        2,
    ),
    "The draft was not drawn from the q that is reported": Wrong(
        P,
        Q,
        {
            "wrong, drawn at half the temperature": alone(wrong.drawn_at_half_temperature),
            "wrong, drawn as the argmax": alone(wrong.drawn_as_argmax),
        },
    ),
    "A draft is drawn in bfloat16": Wrong(TAIL, TAIL, {"wrong": alone(wrong.drawn_in_bfloat16)}),
    "The residual is computed from a rounded ratio": Wrong(
        [0.5, 0.3, 0.199, 0.001],
        [0.001, 0.002, 0.003, 0.994],
        {
            "wrong, bfloat16": alone(wrong.rounded_rest(torch.bfloat16)),
            "wrong, float32": alone(wrong.rounded_rest(torch.float32)),
        },
    ),
    "Unlikely drafts are dropped": Wrong(P, Q, {"wrong": alone(wrong.dropped_if_unlikely)}),
    "Forbidden drafts are dropped": Wrong(
        [0.5, 0.5, 0.0], [0.4, 0.1, 0.5], {"wrong": alone(wrong.dropped_if_forbidden)}
    ),
    "A random filter is drawn again for the residual": Wrong(
        wrong.ROWS.mean(0).tolist(),
        [0.2, 0.3, 0.3, 0.2],
        {"wrong": alone(wrong.coin_tossed_again)},
        one_coin,
        law_of_one_coin,
    ),
    "Near ties are accepted by the ratio of logits": Wrong(
        testing.softmax(wrong.TIED).tolist(),
        Q,
        {
            "wrong, logits as they are": alone(wrong.near_ties_accepted(0)),
            "wrong, logits + 10": alone(wrong.near_ties_accepted(10)),
        },
    ),
    "Every row has the penalties of the first": Wrong(
        P,
        0,
        {"wrong": wrong.committed_counts},
        penalised,
        partial(chain_law, gamma=2),
        2,
        lambda row, tokens: testing.softmax(wrong.presence(row, tokens)),
    ),
}
