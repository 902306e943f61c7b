# SPDX-License-Identifier: Apache-2.0
"""The rules of specdec_kernels/registry.py as compile-time constants.

EXACT, CHOW and so on are the codes of the rules. A set of rules is an integer with a bit for each code. A number that
depends on the rule is a flat tuple: the tuple's length, a base, then pairs of another number and the set of rules that
have it. All other rules have the base.
"""

from collections import Counter

import triton.language as tl

from specdec_kernels.registry import FLT_MAX, RULES


def rules_where(has):
    return tl.constexpr(sum(1 << rule.code for rule in RULES.values() if has(rule)))


def numbers(of, base):
    """Return the tuple of a number that depends on the rule. of(rule): the number; None: any number will do."""
    more = dict.fromkeys(x for x in map(of, RULES.values()) if x not in (base, None))
    pairs = ((x, rules_where(lambda rule: of(rule) == x).value) for x in more)
    return tl.constexpr((2 + 2 * len(more), base, *(x for pair in pairs for x in pair)))


def parameter(which):
    """Return the least, largest and default value of a parameter by rule. which: 0 for the first parameter, 1 for the
    second.

    Two more results are the sets of rules whose range excludes its lower end, and its upper end.
    """

    def of(field):
        return lambda rule: getattr(rule.parameters[which], field) if len(rule.parameters) > which else None

    def ends(rule):
        high = of("high")(rule)
        return high if high is None else min(high, FLT_MAX)

    def commonest(of):
        return Counter(x for x in map(of, RULES.values()) if x is not None).most_common(1)[0][0]

    values = (numbers(x, commonest(x)) for x in (of("low"), ends, of("default")))
    below = rules_where(lambda rule: of("opening")(rule) == "(")
    return *values, below, rules_where(lambda rule: of("closing")(rule) == ")" and ends(rule) < FLT_MAX)


globals().update({name.upper(): tl.constexpr(rule.code) for name, rule in RULES.items()})
COUNT = tl.constexpr(len(RULES))
