# SPDX-License-Identifier: Apache-2.0
"""Each mutant is the right implementation with one wrong line. The checks listed for it in CAUGHT, which the ops pass,
must fail."""

import math

import pytest
import torch
from support import checks, tiers
from support.plain import Plain

from specdec_kernels.reference import uniforms as philox_uniforms

pytestmark = pytest.mark.slow


class SwappedPAndQ(Plain):
    def accept(self, u, q, p):
        return (q > 0) & (u * p < q)


class ResidualNotRenormalised(Plain):
    def draw(self, w, v):
        return super().draw(w, v / w.sum(-1).clamp(min=1e-300))


class ResidualIsP(Plain):
    def residual(self, p, q):
        return p


class ResidualIsAbsolute(Plain):
    def residual(self, p, q):
        return (p - q).abs()


class RowOffByOne(Plain):
    def final_row(self, n, gamma):
        return (n + 1).clamp(max=gamma)


class BonusFromWrongRow(Plain):
    def final_row(self, n, gamma):
        return n.clamp(max=max(gamma - 1, 0))


class NotStrict(Plain):
    def accept(self, u, q, p):
        return (q > 0) & (u * q <= p)


class OneUniformTwice(Plain):
    def final_uniform(self, uniforms, n):
        return uniforms.gather(1, n.clamp(max=uniforms.shape[1] - 1)[:, None])[:, 0]


class DraftMassLeaked(Plain):
    """Scales q by .99, in the test and in the residual."""

    def draft_laws(self, *args):
        return 0.99 * super().draft_laws(*args)


class Lenience(Plain):
    def accept(self, u, q, p):
        return super().accept(u, 0.9 * q, p)


class DraftTemperatureForgotten(Plain):
    def draft_laws(self, logits, temperature, *filters):
        return self.laws(logits, None, *filters)


class TiesDropped(Plain):
    def within_top_k(self, z, kth):
        above = z > kth
        room = (z >= kth).sum(-1, keepdim=True).clamp(max=2) - above.sum(-1, keepdim=True)
        tied = z == kth
        return above | (tied & (tied.long().cumsum(-1) <= room))


class LastTieWins(Plain):
    def argmax(self, z):
        return z.shape[-1] - 1 - z.flip(-1).argmax(-1)


class NoCumulativeAnd(Plain):
    """Counts acceptances after the first rejection too, so it stops too late."""

    def accepted_count(self, accepted):
        return accepted.long().sum(-1)


class SeedIgnoresOffset(Plain):
    def uniforms(self, seed, offset, gamma):
        return super().uniforms(seed, torch.zeros_like(offset), gamma)


class OffsetLosesItsHighWord(Plain):
    def uniforms(self, seed, offset, gamma):
        return super().uniforms(seed, offset & 0xFFFFFFFF, gamma)


class DomainSharedWithDraft(Plain):
    """Tests acceptance with the random numbers that the draft was drawn with."""

    def uniforms(self, seed, offset, gamma):
        return torch.cat([philox_uniforms(seed, offset, gamma, 2), philox_uniforms(seed, offset, 1, 1)], 1)


class ResidualAfterTheDraftEnds(Plain):
    def ended(self, drafts, n, vocab):
        return n == drafts.shape[1]


class DrawOneLate(Plain):
    """Draws the id after the right one."""

    def draw(self, w, v):
        return (super().draw(w, v) + 1).clamp(max=w.shape[-1] - 1)


class NucleusWithoutItsLastToken(Plain):
    """Top-p keeps the tokens below p, without the token that crosses it."""

    def cutoffs(self, z, temperature, top_k, top_p, *others):
        less = None if top_p is None else torch.as_tensor(top_p) * 0.93
        return super().cutoffs(z, temperature, top_k, less, *others)


class DeviationOfASample(Plain):
    """Divides the variance by n - 1."""

    def deviation(self, z):
        n = (z > -math.inf).sum(-1, keepdim=True)
        return super().deviation(z) * (n / (n - 1).clamp(min=1)).sqrt()


class DeviationOverForbiddenIds(Plain):
    """Divides by the number of all entries, where only the finite ones were summed."""

    def deviation(self, z):
        return super().deviation(z) * ((z > -math.inf).double().mean(-1, keepdim=True)).sqrt()


AGREEMENT = {"seed": 31, "B": 256, "G": 3, "V": 33}
FILTERED = AGREEMENT | {"filtered": True}
DRAWS = 250_000 if tiers.TIER == "all" else 100_000

CAUGHT = [
    (SwappedPAndQ, checks.check_golden, {}),
    (SwappedPAndQ, checks.check_joint_law, {"scenario": "golden"}),
    (ResidualNotRenormalised, checks.check_quadrature, {}),
    (ResidualNotRenormalised, checks.check_joint_law, {"scenario": "golden"}),
    (ResidualIsP, checks.check_quadrature, {}),
    (ResidualIsP, checks.check_joint_law, {"scenario": "adversarial draft"}),
    (ResidualIsAbsolute, checks.check_joint_law, {"scenario": "prefixes"}),
    (RowOffByOne, checks.check_joint_law, {"scenario": "positions"}),
    (RowOffByOne, checks.check_agreement, AGREEMENT),
    (BonusFromWrongRow, checks.check_quadrature, {}),
    (BonusFromWrongRow, checks.check_joint_law, {"scenario": "prefixes"}),
    (NotStrict, checks.check_strict, {}),
    (OneUniformTwice, checks.check_joint_law, {"scenario": "golden"}),
    (DraftMassLeaked, checks.check_quadrature, {}),
    (DraftMassLeaked, checks.check_agreement, AGREEMENT | {"B": 1500, "V": 9, "kinds": ["near"]}),
    (Lenience, checks.check_quadrature, {}),
    (Lenience, checks.check_joint_law, {"scenario": "adversarial draft"}),
    (DraftTemperatureForgotten, checks.check_joint_law, {"scenario": "filters"}),
    (DraftTemperatureForgotten, checks.check_agreement, FILTERED),
    (TiesDropped, checks.check_ties, {}),
    (LastTieWins, checks.check_ties, {}),
    (NoCumulativeAnd, checks.check_joint_law, {"scenario": "prefixes"}),
    (SeedIgnoresOffset, checks.check_streams, {}),
    (SeedIgnoresOffset, checks.check_joint_law, {"scenario": "golden"}),
    (OffsetLosesItsHighWord, checks.check_streams, {}),
    (DomainSharedWithDraft, checks.check_joint_law, {"scenario": "golden"}),
    (ResidualAfterTheDraftEnds, checks.check_quadrature, {}),
    (DrawOneLate, checks.check_quadrature, {}),
    (NucleusWithoutItsLastToken, checks.check_agreement, FILTERED),
    (DeviationOfASample, checks.check_agreement, FILTERED),
    (DeviationOverForbiddenIds, checks.check_agreement, FILTERED),
]


@pytest.mark.parametrize("mutant, check, case", CAUGHT, ids=[f"{m.__name__}-{c.__name__}" for m, c, _ in CAUGHT])
def test_mutant_is_caught(mutant, check, case):
    if check is checks.check_joint_law:
        case = case | {"n": DRAWS}
    with pytest.raises(AssertionError):
        check(mutant(), **case)


@pytest.mark.parametrize("check", sorted({check.__name__ for _, check, _ in CAUGHT}))
def test_the_body_of_the_mutants_is_right(check):
    """The unmutated implementation passes every check, so only the mutation is caught."""
    check = getattr(checks, check)
    cases = [case for _, c, case in CAUGHT if c is check]
    for case in [case for i, case in enumerate(cases) if case not in cases[:i]]:
        check(Plain(), **case, **({"n": DRAWS} if check is checks.check_joint_law else {}))
