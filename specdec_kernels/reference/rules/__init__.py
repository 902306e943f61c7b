# SPDX-License-Identifier: Apache-2.0
"""The acceptance rules. A rule replaces p by a distribution pi (laws.py), or uses another test (acceptance.py)."""

import torch

from ...registry import CHAIN_METHODS, RULES
from ..law import per_row
from .acceptance import TESTS
from .laws import LAWS, ROW_RULES, by_law, final, mix_of, pair_and_mix
from .pair import DEFER, KEEP, Mix, Pair

__all__ = [
    "DEFER",
    "KEEP",
    "LAWS",
    "ROW_RULES",
    "TESTS",
    "Mix",
    "Pair",
    "final",
    "mix_of",
    "pair_and_mix",
    "per_request",
    "resolved",
    "verify_draft",
]


def verify_draft(chain, i, d, p):
    """Test draft d at position i by the chain's rule -> (accepted, weights of the final draw after a rejection).

    The weights are a tuple of alternatives: the token is drawn from the first that has mass.
    """
    return by_law(chain, i, d, p) if chain.rule in LAWS else TESTS[chain.rule](chain, i, d, p, *chain.alpha)


def per_request(op, B, method, rule, alpha, positions=None):
    """Return [(name, alpha)] for B requests.

    rule: a name or [B] codes. alpha: None (the rule's default), a number, a pair, [B] or [B, 2]. A length of 1 is
    expanded to B. If a rule has two parameters and alpha gives one, the second has its default. Extra ones are ignored.

    "synthetic" may have a rate for each of a chain's `positions`: alpha is then a tuple, or [B, positions]. If rule is
    a tensor, alpha is [B, positions, 1 or 2], and other rules read only the first position.
    """
    if isinstance(rule, str):
        if rule not in RULES:
            raise ValueError(
                f"{op}: rule must be one of {', '.join(map(repr, RULES))} or a tensor of codes, got {rule!r}"
            )
        names = [rule] * B
        if rule == "exact" and alpha is not None:
            raise ValueError(f"{op}: rule 'exact' takes no alpha, got {alpha!r}")
    else:
        codes, known = rule.expand(B).tolist(), {rule.code: name for name, rule in RULES.items()}
        unknown = [code for code in codes if code not in known]
        if unknown:
            raise ValueError(f"{op}: rule codes must be 0 ... {len(known) - 1}, got {unknown[0]}")
        names = [known[code] for code in codes]
    if alpha is None:
        given = [()] * B
    elif torch.is_tensor(alpha) and alpha.dim():
        by_position = isinstance(rule, str) and rule == "synthetic" and alpha.shape[1:] == (positions,)
        shape = alpha.shape[1:] if alpha.dim() == 3 else (-1, 1) if by_position else (1, -1)
        each = alpha.float().reshape(len(alpha), *shape).expand(B, -1, -1).tolist()
        given = [[x[0] for x in of] if name == "synthetic" else (of or [()])[0] for name, of in zip(names, each)]
    else:
        given = [[per_row(x, 1, 0.0)[0] for x in (alpha if isinstance(alpha, (tuple, list)) else (alpha,))]] * B
    return [resolved(op, method, *each) for each in zip(names, given)]


def resolved(op, method, name, given=None):
    """Return (name, alpha), checked. A rule whose alpha makes it exact is returned as "exact".

    given: None, a number, or the rule's first parameters in order; for "synthetic" the rates of all positions.
    """
    if name not in RULES:
        raise ValueError(f"{op}: rule must be one of {', '.join(map(repr, RULES))}, got {name!r}")
    rule = RULES[name]
    if name not in CHAIN_METHODS[method].rules:
        why = (
            "defines no distribution, so method must be token, got"
            if method == "block"
            else "is not defined for method"
        )
        raise ValueError(f"{op}: rule {name} {why} {method}")
    given = () if given is None else tuple(given) if isinstance(given, (tuple, list)) else (given,)
    parameters = rule.parameters
    if name == "synthetic":
        parameters *= max(len(given), 1)  # one for each position
    given = given[: len(parameters)]
    alpha = given + tuple(parameter.default for parameter in parameters[len(given) :])
    for parameter, x in zip(parameters, alpha):
        if x not in parameter:
            which = "alpha" if parameter is rule.parameters[0] else "the second alpha"
            raise ValueError(f"{op}: {which} of rule {name} must be in {parameter.range}, got {x:g}")
    return ("exact", ()) if rule.exact_at is not None and alpha[0] == rule.exact_at else (name, alpha)
