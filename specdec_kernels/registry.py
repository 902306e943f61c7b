# SPDX-License-Identifier: Apache-2.0
"""Names and numbers of ops, methods, rules, row kinds, mask formats, status bits and random domains.

Python code takes them from this file. csrc repeats the numbers, since its headers are used without Python;
python_tests/package/test_registry.py compares the two. This module does not import torch.

p is the target's distribution and q the draft's, both as sampled (temperature, filters). p1 and q1 are the plain
softmax of the same rows (T = 1, no filters). TV = sum (p - q)+. A comparison with NaN
never keeps a draft.
"""

from typing import Any, NamedTuple

from specdec_kernels.arguments import ROW_DTYPES as ROW_DTYPES
from specdec_kernels.arguments import TABLE

# ---- ops: torch.ops.specdec.<name>, specdec_kernels.<name>, csrc/ops/<name>/, bench/<name>.py ... --------------------

OPS = tuple(TABLE)
FUNCTIONS = (*OPS, "tree_mask_mod")  # public functions; the last one is not an op

# ---- rows, random numbers, statuses ---------------------------------------------------------------------------------

ROW_KINDS = {"logits": 0, "probs": 1}
MAX_VOCABULARY = 1 << 24  # ids must be exact in float32, since a greedy row's stats hold one
CHUNK = 1024  # entries of a row that are summed together, in one fixed order

# Each use of random numbers has a domain of its own. Only the noise of a race is used for both draft and target.
DOMAIN_ACCEPT = 0  # acceptance tests; slot = the test's column in `uniforms`
DOMAIN_FINAL = 1  # the final draw (residual or bonus); slot 0
DOMAIN_DRAFT = 2  # draft sampling
DOMAIN_NOISE = 3  # noise of a race; slot = token id, offset = absolute position
SLOTS = 1 << 33  # of one (seed, offset, domain): 2 per Philox block, whose index has 32 bits

# Bits of the `status` of verify_chain, verify_tree and count_tokens_
STATUS_INVALID_ROW = 1  # a row that was needed held NaN, +inf or no finite value; in count_tokens_: an invalid list
STATUS_EMPTY_RESIDUAL = 2  # (p - q)+ had no mass, so q was not subtracted
STATUS_INVALID_DRAFT = 4  # q of a drafted token was not in (0, 1 + 1e-3], so it was rejected; or a tree was malformed
STATUS_INVALID_BONUS = 8  # the caller's bonus token was not an id below V; it was emitted as given, or as 0 if negative
STATUS_HISTORY_FULL = 16  # of count_tokens_: a list had no room for every token

MAX_COUNTED = 1024  # tokens of a request in one call of count_tokens_

# ---- trees ----------------------------------------------------------------------------------------------------------

MAX_DRAFTS = 1024  # of a request in build_tree
MAX_NODES = 1024  # of a tree of grow_tree, with its root
MASK_FORMATS = {  # of tree_mask, by dtype: floats are additive masks, unsigned integers hold packed bits
    "bool": 0,
    "float32": 1,
    "float64": 2,
    "bfloat16": 3,
    "float16": 4,
    "uint8": 5,
    "uint32": 6,
    "uint64": 7,
}
STATUS_INVALID_PARENT = 1  # of tree_mask: a parent outside [-1, its node): the node counts as padding
STATUS_INVALID_PREFIX = 2  # of tree_mask: a prefix_len or tree_start outside [0, 2^62): it counts as 0

# ---- sampling parameters, in their order ----------------------------------------------------------------------------

FLT_MAX = (2 - 2.0**-23) * 2.0**127
NOT_GIVEN = -(2 - 2.0**-52) * 2.0**1023  # a missing number in an op's list; finite, as AOTInductor packages hold no NaN
INF = float("inf")


class Range(NamedTuple):
    low: float  # both ends are included
    high: float
    says: str

    def __contains__(self, x: Any) -> bool:
        return self.low <= x <= self.high


SAMPLING = {
    "temperature": Range(0, FLT_MAX, "finite in float32 and >= 0"),
    "top_k": Range(-1, (1 << 63) - 1, ">= 1 and below 2^63, or 0 or -1 for off"),
    "top_p": Range((1 + 2.0**-52) * 2.0**-150, 1, "in (0, 1]"),  # the smallest that rounds to a positive float32
    "min_p": Range(0, 1, "in [0, 1]"),
    "top_n_sigma": Range(0, FLT_MAX, "finite in float32 and >= 0"),
}
PENALTIES = {  # keys: the fields of a request of the decode loop
    "repetition_penalty": Range((1 + 2.0**-52) * 2.0**-150, FLT_MAX, "finite in float32 and > 0"),
    "frequency_penalty": Range(-FLT_MAX, FLT_MAX, "finite in float32"),
    "presence_penalty": Range(-FLT_MAX, FLT_MAX, "finite in float32"),
}
NO_PENALTIES = {"repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}

# ---- rules: how a draft is accepted, and the distribution or guarantee of the output --------------------------------


class Parameter(NamedTuple):
    name: str
    opening: str  # "[" or "("
    low: float
    high: float
    closing: str
    default: float  # the strictest value; for "typical" Medusa's default

    @property
    def range(self):
        return f"{self.opening}{self.low:g}, {self.high:g}{self.closing}"

    def __contains__(self, x: Any) -> bool:
        above = self.low <= x if self.opening == "[" else self.low < x
        return above and (x <= self.high if self.closing == "]" else x < self.high)


class Rule(NamedTuple):
    code: int
    parameters: tuple[Parameter, ...]  # the entries of alpha
    defines_distribution: bool  # the output at each position follows pi = T(q, p), by every method
    says: str
    exact_at: float | None = None  # the alpha at which the rule is "exact", bit for bit
    keeps_target_at: tuple[float, ...] | None = None  # parameters at which the output follows p for any q
    tests_draft: bool = False  # defines no distribution, but reads q to accept a draft
    reads_entropy: bool = False

    @property
    def reads_draft(self) -> bool:
        """Return whether the rule reads the draft's row."""
        return self.defines_distribution or self.tests_draft


def _unit(name="alpha", default=0.0):
    return Parameter(name, "[", 0, 1, "]", default)


def _open(name="alpha", default=0.0):
    return Parameter(name, "[", 0, INF, ")", default)


def _positive(name):
    return Parameter(name, "(", 0, 1, "]", 1.0)


RULES = {
    "exact": Rule(0, (), True, "pi = p", keeps_target_at=()),
    # Speculative cascades (Narasimhan et al. 2024): pi = p where the rule defers, else q. If the draft's vocabulary is
    # wider, pi keeps q inside the target's vocabulary and gives the rest of q's mass to p.
    "chow": Rule(1, (_unit(),), True, "defers iff max q1 < 1 - alpha"),
    "chow_log": Rule(2, (_open(),), True, "defers iff H(q1) > alpha", reads_entropy=True),
    "diff": Rule(3, (_unit(),), True, "defers iff max q1 < max p1 - alpha"),
    "diff_log": Rule(4, (_open(),), True, "defers iff H(q1) > H(p1) + alpha", reads_entropy=True),
    "opt": Rule(5, (_open(),), True, "defers iff max q1 < max p1 - alpha TV"),
    "opt_log": Rule(6, (_open(),), True, "defers iff H(q1) > H(p1) + alpha TV", reads_entropy=True),
    # Token by token: pi(v) = q(v) [v kept] + eta p(v), eta = the mass of q that is not kept.
    "token_v1": Rule(7, (_unit(),), True, "keeps v iff q1(v) >= max p1 - alpha"),
    "token_v2": Rule(8, (_unit(),), True, "keeps v iff p1(v) >= max p1 - alpha"),
    "token_v3": Rule(9, (_unit(),), True, "keeps v iff p1(v) >= (1 - alpha) max p1"),
    "lenience": Rule(
        10,
        (_positive("l"),),
        False,
        "accepts with min(1, p / (l q)), else norm((p - q)+): emitted(x) <= p(x) / l; greedy: p1(x) >= l max p1",
        1.0,
        (1.0,),
        tests_draft=True,
    ),
    "lossy": Rule(
        11,
        (Parameter("alpha", "[", 0, 1, ")", 0.0),),
        True,
        "accepts with min(1, p / ((1 - alpha) q)): "
        "pi = max(min(q, p / (1 - alpha)), p / beta), beta solved so that sum pi = 1",
        0.0,
        (0.0,),
    ),
    "ensemble": Rule(12, (_unit("w", 1.0),), True, "pi = w p + (1 - w) q", 1.0, (1.0,)),
    "typical": Rule(
        13,
        (_unit("eps", 0.09), _open("delta", 0.3)),
        False,
        "accepts A = {x: p(x) > min(eps, delta exp(-H(p)))}, else draws from p: emitted = q [A] + p q(not A)",
        reads_entropy=True,
    ),
    "relaxed": Rule(
        14,
        (Parameter("n", "[", 1, INF, ")", 1.0), _unit("delta")),
        False,
        "accepts A = {x among the n largest of p1, p1(x) >= max p1 - delta, p1(x) > 0}, else draws from p: "
        "emitted = q [A] + p q(not A)",
    ),
    "synthetic": Rule(
        15,
        (_unit("rate"),),
        False,
        "accepts with chance rate, else draws from p: emitted = rate q + (1 - rate) p",
        keeps_target_at=(0.0,),
    ),
    "thresholds": Rule(
        16,
        (_positive("threshold_single"), _positive("threshold_acc")),
        False,
        "accepts d with chance A = 1 if p(d) >= threshold_single else min(1, p(d) / threshold_acc), "
        "else draws from p without d; (1, 1): the target's distribution, however d was drafted",
        keeps_target_at=(1.0, 1.0),
    ),
}
# Rules that define a distribution pi
LAWS = tuple(name for name, rule in RULES.items() if rule.defines_distribution)
# Rules that never accept a draft whose logit in the target's row is -inf. Under the others it may be emitted.
REJECT_FORBIDDEN = ("exact", "lenience", "lossy", "typical", "relaxed", "thresholds")
# Rules for one-hot drafts. A rule that mixes the distributions of both models makes no sense for them.
ONE_HOT_RULES = tuple(name for name, rule in RULES.items() if name == "exact" or not rule.defines_distribution)


def keeps_target(rule: str, *alpha: float) -> bool:
    """Return whether a rule's output follows the target's distribution for any draft.

    Parameters that are not given have their defaults.
    """
    defaults = tuple(parameter.default for parameter in RULES[rule].parameters)
    return RULES[rule].keeps_target_at == (*alpha, *defaults[len(alpha) :])


# ---- methods --------------------------------------------------------------------------------------------------------


class ChainMethod(NamedTuple):
    code: int
    rules: tuple[str, ...]  # rules that it supports
    reads_draft: bool = True  # reads q


class TreeMethod(NamedTuple):
    code: int
    children: str  # how a node's children are drawn: "independent"; "distinct", without replacement; or "any"
    rules: tuple[str, ...]
    tests_drafts: bool = False  # tests a merged node as often as it was drafted; others test it once
    reads_draft: bool = True  # reads q


CHAIN_METHODS = {
    "token": ChainMethod(0, tuple(RULES)),
    "block": ChainMethod(1, LAWS),
    "race": ChainMethod(2, ("exact",), reads_draft=False),
}
TREE_METHODS = {
    "kseq": TreeMethod(0, "independent", LAWS, tests_drafts=True),
    "recursive": TreeMethod(1, "independent", LAWS, tests_drafts=True),
    "recursive_without_replacement": TreeMethod(2, "distinct", LAWS),
    "target_only": TreeMethod(3, "any", ("exact", "thresholds"), reads_draft=False),
    "greedy": TreeMethod(4, "any", ("exact",), reads_draft=False),
    "traversal": TreeMethod(5, "distinct", LAWS),
    "race": TreeMethod(6, "any", ("exact",), reads_draft=False),
}
# Tree methods that take every rule of LAWS
BY_LAW = tuple(name for name, method in TREE_METHODS.items() if method.rules == LAWS)
