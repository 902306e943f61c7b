# SPDX-License-Identifier: Apache-2.0
"""The rules' code with one error, in CUDA and in Triton.

name -> (file, its text, the mutant's text, the check that fails)
"""

import importlib
import sys

from support import flat, interpreter, rule_checks
from support import rule_decisions as decisions
from support.mutant_packages import PACKAGE

FIVE, GROUPS = ((decisions.decide, {"ids": ids}) for ids in decisions.AT)
BLOCKS = decisions.check_block_decisions, {}
OPT_LOG = decisions.check_opt_log_at_temperature_1, {"ids": "two groups of chunks"}
FORBIDDEN = decisions.check_a_block_ends_before_a_draft_that_q_forbids, {}
TIES, TOP_TIES = (rule_checks.thresholds_at_the_edge, {}), (rule_checks.top_n_keeps_ties, {})
GREEDY_ROW = rule_checks.block_through_a_greedy_row, {}
NOTHING_LACKING = rule_checks.block_where_nothing_is_lacking, {}
DEFAULTS = rule_checks.defaults_of_typical, {}
BONUS = rule_checks.without_a_row_at_the_end_the_bonus_is_of_p, {}
LOSSY_BONUS = decisions.check_lossy_bonus_of_a_greedy_draft, {"alpha": 0.5, "edge": 1.0}
LOSSY_TENTH, LOSSY_HALF = ((decisions.check_lossy_beta_of_broad_rows, {"alpha": alpha}) for alpha in (0.1, 0.5))


def agrees(name, method):
    return rule_checks.agrees_with_the_reference, {"name": name, "method": method}


def probabilities(method):
    return rule_checks.agrees_on_probability_rows, {"method": method}


def ragged(method):
    return rule_checks.ragged_equals_dense, {"method": method}


def bad_rows(method):
    return rule_checks.bad_rows_among_good_ones, {"method": method}


def greedy(method):
    return rule_checks.greedy, {"method": method}


def behind(method):
    return rule_checks.a_greedy_draft_behind_the_vocabulary, {"method": method}


def nan(name):
    return rule_checks.nan_probabilities_defer, {"name": name}


CASCADE, CONFIDENCE, LAW, LOSSY = "rules/cascade.h", "rules/confidence.h", "rules/make_rule_dist.h", "rules/lossy.h"
ACCEPTANCE, RULES, PI, TEAM = "rules/acceptance.h", "rules/rule.h", "rules/rule_dist.h", "cuda/mixture_executor.cuh"
WEIGHT, BLEND, TOKEN, PLACE, BLOCK = (
    "core/weight.h",
    "core/mixture.h",
    "ops/verify_chain/token.h",
    "ops/verify_chain/position.h",
    "ops/verify_chain/block_verification.h",
)
CHAIN_ROWS = "ops/verify_chain/chain_rows.cuh"
LAUNCHES, REQUESTS = "ops/verify_chain/verify_chain_cuda.cu", "ops/verify_chain/requests_cuda.cu"

CUDA = {
    # Cascades by row
    "a tie defers": (CASCADE, "return confidence_gap <= alpha;", "return confidence_gap < alpha;", TIES),
    "NaN keeps": (CASCADE, "return confidence_gap <= alpha;", "return !(confidence_gap > alpha);", nan("chow")),
    "q as sampled": (
        CASCADE,
        "const Dist q1 = unscaled(executor, q);",
        "const Dist q1 = q;",
        agrees("filters", "token"),
    ),
    "p as sampled": (
        CASCADE,
        "kChowLog) {\n    const Dist p1 = unscaled(executor, p);",
        "kChowLog) {\n    const Dist p1 = p;",
        agrees("filters", "token"),
    ),
    "maxima for entropies": (
        CASCADE,
        "double confidence_gap = of_log ? executor.entropy(q1) : ",
        "double confidence_gap = ",
        agrees("tiny", "token"),
    ),
    "chow_log beside the target": (
        CASCADE,
        "rule != Rule::kChow && rule != Rule::kChowLog",
        "rule != Rule::kChow",
        agrees("tiny", "token"),
    ),
    "TV without alpha": (
        CASCADE,
        "confidence_gap <= alpha * (p.kind",
        "confidence_gap <= (p.kind",
        agrees("wide draft, chunks", "token"),
    ),
    "overlap for TV": (CASCADE, "executor.tv(p, q));", "1 - executor.tv(p, q));", agrees("tiny", "token")),
    "TV of a greedy target": (
        CASCADE,
        "1 - draft_prob(q.prob(p.hot))",
        "draft_prob(q.prob(p.hot))",
        agrees("filters", "token"),
    ),
    "kept ids behind p's vocabulary": (
        LAW,
        "pi.mixed = pi.open = q.beyond(p.row.V);",
        "pi.mixed = pi.open = false;",
        agrees("wide draft", "token"),
    ),
    # Cascades by token
    "token_v1 by q as sampled": (
        CASCADE,
        "rule == Rule::kTokenV1 ? unscaled(executor, q) : p1",
        "rule == Rule::kTokenV1 ? q : p1",
        agrees("filters", "token"),
    ),
    "token_v2, v3 by p as sampled": (
        CASCADE,
        "RuleDist& pi) {\n  const Dist p1 = unscaled(executor, p);",
        "RuleDist& pi) {\n  const Dist p1 = p;",
        agrees("filters", "token"),
    ),
    "token_v1 from q's own largest": (
        CASCADE,
        "(most - alpha) / top)",
        "(top - alpha) / top)",
        agrees("tiny", "token"),
    ),
    "token_v3 absolute": (
        CASCADE,
        "rule == Rule::kTokenV3 ? 1 - alpha : (most - alpha) / top",
        "(most - alpha) / top",
        agrees("tiny", "token"),
    ),
    "token rules believe a bad q": (
        CASCADE,
        "if (!(most > 0) || !(largest(executor, q) > 0)) return;",
        "if (!(most > 0)) return;",
        nan("token_v2"),
    ),
    "cut without a logarithm": (
        CONFIDENCE,
        "d.stats.max + above + log(share)",
        "d.stats.max + share - 1",
        agrees("draft scores the end", "token"),
    ),
    "filters stay in a confidence": (
        CONFIDENCE,
        "d.stats.scale == 1 && d.stats.cutoff == -FLT_MAX",
        "d.stats.scale == 1",
        agrees("filters", "token"),
    ),
    "temperature stays in a confidence": (
        CONFIDENCE,
        "d.stats.scale == 1 && d.stats.cutoff",
        "d.stats.cutoff",
        ragged("token"),
    ),
    "eta omitted": (
        LAW,
        " + pi.mixture.of_q * executor.deferred(pi.mixture, pi.dist.row.V);",
        ";",
        agrees("tiny", "token"),
    ),
    "eta of what is kept": (
        TEAM,
        "w[r] = kept >> r & 1 ? 0.0f : w[r];",
        "w[r] = kept >> r & 1 ? w[r] : 0.0f;",
        agrees("tiny", "token"),
    ),
    "eta without ids behind p's vocabulary": (
        TEAM,
        "(row ? z[r] : y[r]) >= threshold && at.id(r) < V",
        "(row ? z[r] : y[r]) >= threshold",
        agrees("wide draft", "token"),
    ),
    "eta of a one-hot behind p's vocabulary": (
        TEAM,
        "q.hot < V && mixture.keeps(q.hot) ? 0 : 1",
        "mixture.keeps(q.hot) ? 0 : 1",
        agrees("wide draft", "block"),
    ),
    "an entry at the cut is not kept, in a sum": (
        TEAM,
        "(row ? z[r] : y[r]) >= threshold",
        "(row ? z[r] : y[r]) > threshold",
        agrees("filters", "block"),
    ),
    "an entry at the cut is not kept, in a test": (
        BLEND,
        "score_row.row.entry(v) >= threshold",
        "score_row.row.entry(v) > threshold",
        agrees("chunk and one, bf16", "token"),
    ),
    "all ids kept": (BLEND, "keeps(v) ? kept() : -minus", "kept()", agrees("tiny", "token")),
    # Lossy
    "cap at 1": (LAW, "pi.mixture.of_q = float(1 / (1 - alpha));", "pi.mixture.of_q = 1;", agrees("tiny", "token")),
    "R without c": (LOSSY, "subtraction.s = float(c);", "subtraction.s = 1;", agrees("long chain", "block")),
    "R of a one-hot without c": (LOSSY, "1 - c * p.prob(q.hot)", "1 - p.prob(q.hot)", LOSSY_BONUS),
    "bracket without beta": (LOSSY, "at.under[m] <= at.t[m] * R", "at.under[m] <= R", agrees("wide draft", "token")),
    "bracket closed early": (LOSSY, "kClose = 0x1p-21", "kClose = 0x1p-5", LOSSY_TENTH),
    "bracket takes the wrong side": (
        LOSSY,
        "at.under[m] <= at.t[m] * R",
        "at.under[m] > at.t[m] * R",
        agrees("near", "token"),
    ),
    "beta for 1 / beta": (LOSSY, "return 1 / most;", "return most;", agrees("long chain", "token")),
    "R = 0 defers": (LOSSY, "if (!(R > FLT_MIN)) return 0;", "if (!(R > FLT_MIN)) return 1;", probabilities("block")),
    "cap omitted": (WEIGHT, "smaller(y, x * of_q)", "smaller(y, x)", LOSSY_TENTH),
    "not lifted to p / beta": (
        WEIGHT,
        "C::larger(C::smaller(y, x * of_q), x * of_p)",
        "C::smaller(y, x * of_q)",
        BLOCKS,
    ),
    # Ensemble, and reads of distributions
    "weights swapped": (
        LAW,
        "float(alpha), pi.mixture.of_q = float(1 - alpha);",
        "float(1 - alpha), pi.mixture.of_q = float(alpha);",
        agrees("tiny", "token"),
    ),
    "what is open is never summed": (LAW, "if (!pi.open) return false;", "return false;", behind("token")),
    "a blend taken for p's token": (
        PI,
        "return !mixed && dist.kind == Kind::kOneHot;",
        "return dist.kind == Kind::kOneHot;",
        agrees("wide draft", "token"),
    ),
    "parameters swapped": (RULES, "r.first.nearest(alpha_of(b))", "r.first.nearest(second_of(b))", LOSSY_TENTH),
    "entropy not normalised": (
        TEAM,
        "stats.log_norm + surprises * exp(-double(stats.log_norm))",
        "stats.log_norm + surprises",
        FIVE,
    ),
    "entropies of a pair change places": (
        "cuda/gap_executor.cuh",
        "row.id() == held.p) return held.gap.entropy_p;",
        "row.id() == held.p) return held.gap.entropy_q;",
        OPT_LOG,
    ),
    "entropy at T = 1": (
        TEAM,
        "fmaxf(scaled(z, stats.max, stats.scale), -100.0f)",
        "fmaxf(z - stats.max, -100.0f)",
        FIVE,
    ),
    "a bad probability is not seen": (TEAM, ", bad |= !(z[r] < HUGE_VALF);", ";", nan("chow")),
    # Rules that define no distribution
    "lenience without l": (TOKEN, "alpha.first * u)", "u)", FIVE),
    "greedy lenience matches the argmax": (
        TOKEN,
        "lenient_argmax(x.p, d, alpha.first)",
        "lenient_argmax(x.p, d, 1)",
        greedy("token"),
    ),
    "greedy lenience without a logarithm": (ACCEPTANCE, ">= log(l);", ">= l - 1;", greedy("token")),
    "typical: both bounds": (ACCEPTANCE, "if (p_d > eps) return true;", "if (!(p_d > eps)) return false;", FIVE),
    "typical: delta omitted": (ACCEPTANCE, "delta * exp(-executor.entropy(p))", "exp(-executor.entropy(p))", FIVE),
    "typical: the shortcut by eps": (
        ACCEPTANCE,
        "p_d > delta * exp(-double(p.stats.log_norm))",
        "p_d > eps * exp(-double(p.stats.log_norm))",
        FIVE,
    ),
    "relaxed as sampled": (ACCEPTANCE, "const Dist p1 = unscaled(executor, p);", "const Dist p1 = p;", FIVE),
    "relaxed: one more": (ACCEPTANCE, "p1.row.entry(d))) < n", "p1.row.entry(d))) <= n", FIVE),
    "relaxed: ties go": (TEAM, "w[r] = w[r] > least;", "w[r] = w[r] >= least;", agrees("tiny", "token")),
    "relaxed: delta relative": (
        ACCEPTANCE,
        "largest(executor, p1) - delta",
        "largest(executor, p1) * (1 - delta)",
        FIVE,
    ),
    "synthetic: 1 - rate": (
        TOKEN,
        "return u < a.rules.synthetic_rate(b, i);",
        "return u >= a.rules.synthetic_rate(b, i);",
        FIVE,
    ),
    "thresholds: acc omitted": (ACCEPTANCE, "u * alpha.second < p.prob(d)", "u < p.prob(d)", FIVE),
    "thresholds: single omitted": (ACCEPTANCE, "p.prob(d) >= alpha.first || ", "", FIVE),
    "thresholds: d stays": (PLACE, "if (rule == Rule::kThresholds) x.q = one_hot(d);", "", FIVE),
    "tested behind p's vocabulary": (
        PLACE,
        "x.tested = d < p.row.V;",
        "x.tested = drafted;",
        agrees("wide draft", "token"),
    ),
    # Places
    "the bonus of p": (
        PLACE,
        "rule != Rule::kExact && replaces_target(rule) && scores_end(a) &&",
        "false &&",
        LOSSY_TENTH,
    ),
    "the residual of p": (
        PLACE,
        "x.rest = Residual{x.pi.dist, ",
        "x.rest = Residual{x.p, ",
        agrees("draft scores the end", "token"),
    ),
    "r omitted of a residual": (
        PLACE,
        "x.subtraction.m = float(r);",
        "x.subtraction.m = 1;",
        agrees("wide draft, chunks", "block"),
    ),
    "r omitted of a blend": (
        PLACE,
        "x.pi.mixture.m = residual ? float(r) : 1, ",
        "x.pi.mixture.m = 1, ",
        agrees("tiny", "block"),
    ),
    "r omitted where q is kept": (BLEND, "return m * of_q - minus;", "return of_q - minus;", agrees("tiny", "block")),
    "r omitted where p is": (
        TEAM,
        "of_p = mixture.m * mixture.of_p, ",
        "of_p = mixture.of_p, ",
        agrees("tiny", "block"),
    ),
    "an empty residual is drawn from p": (PLACE, "at.from = C::From(at.from + 1);", "at.from = C::kTarget;", FORBIDDEN),
    "logprob of pi": (
        PLACE,
        "final_token(executor, x.p, PositionCandidates",
        "final_token(executor, x.pi.dist, PositionCandidates",
        agrees("filters", "token"),
    ),
    "a greedy target never reads q": (
        PLACE,
        "p.kind == Kind::kOneHot && (rule == Rule::kExact || rule == Rule::kLossy || rule == Rule::kLenience)",
        "p.kind == Kind::kOneHot",
        agrees("filters", "token"),
    ),
    "a bad q_d is not told": (
        PLACE,
        "    if (!is_draft_prob(q_d)) x.status |= kInvalidDraft;\n",
        "",
        bad_rows("token"),
    ),
    # Block
    "r not capped": (BLOCK, "return pi_d >= enough ? 1 : pi_d > 0", "return pi_d > 0", agrees("long chain", "block")),
    "r not carried": (BLOCK, "x.r * pi_d / q_d", "pi_d / q_d", agrees("tiny", "block")),
    "h = r": (BLOCK, "s == s ? s / (s + 1 - x.r) : x.r;", "x.r;", agrees("tiny", "block")),
    "h without what p lacks": (BLOCK, "s / (s + 1 - x.r)", "s", agrees("draft scores the end", "block")),
    "0 / 0 where r = 1": (
        BLOCK,
        "if (!x.tested || x.r == 1) return x.r;",
        "if (!x.tested) return x.r;",
        NOTHING_LACKING,
    ),
    "the next test's uniform": (BLOCK, "a.accept_uniform(b, i - 1)", "a.accept_uniform(b, i)", agrees("tiny", "block")),
    "h of an open pi": (
        BLOCK,
        "  complete(executor, a.rules.parameters(b).first, x.pi, x.subtraction);\n  double s;",
        "  double s;",
        FORBIDDEN,
    ),
    "r of an open pi": (
        BLOCK,
        "  if (!(x.pi.prob(d) >= enough)) complete(executor, a.rules.parameters(b).first, x.pi, x.subtraction);\n",
        "",
        agrees("draft scores the end", "block"),
    ),
    "the final draw of an open pi": (
        BLOCK,
        "  complete(executor, a.rules.parameters(b).first, positions[i].pi, positions[i].subtraction);\n  finish",
        "  finish",
        FORBIDDEN,
    ),
    "s of a greedy row without r": (BLOCK, "s = x.r - draft_prob", "s = 1 - draft_prob", GREEDY_ROW),
    # Launches
    "no law of the draft's last row": (
        CHAIN_ROWS,
        ": reads_draft(a, b, i)) &&",
        ": a.has_draft(b, i)) &&",
        agrees("draft scores the end", "token"),
    ),
    "judged as well": (LAUNCHES, "  if (!part.tests) return;\n", "", agrees("long chain", "token")),
    "finished twice": (LAUNCHES, "a.present.has(b) && !a.by_rule(b);", "a.present.has(b);", FIVE),
    "not walked": (REQUESTS, "|| !s.a.by_rule(b)) return;", "|| s.a.by_rule(b)) return;", FIVE),
}

T_PI, T_PLACE, T_RULES = "rules/rule_dist.py", "chain/position.py", "rules/rule.py"
T_REQUEST = "chain/by_rule.py"
T_DRAFT_TEST = "chain/draft_test.py"

TRITON = {
    # Cascades by row
    "a tie defers": (T_PI, "tl.where(by_tv, gap <= 0, gap <= alpha)", "tl.where(by_tv, gap <= 0, gap < alpha)", TIES),
    "NaN keeps": (
        T_PI,
        "tl.where(by_tv, gap <= 0, gap <= alpha)",
        "tl.where(by_tv, gap <= 0, ~(gap > alpha))",
        nan("chow"),
    ),
    "maxima for entropies": (
        T_PI,
        "gap = tl.where(log, of_q.entropy, 1 - of_q.largest)",
        "gap = 1 - of_q.largest",
        agrees("chunk and one, bf16", "token"),
    ),
    "chow_log beside the target": (
        T_PI,
        "alone = (rule == CHOW) | (rule == CHOW_LOG)",
        "alone = rule == CHOW",
        agrees("tiny", "token"),
    ),
    "TV without alpha": (T_PI, "pi.confidence_gap <= alpha * found", "pi.confidence_gap <= found", GROUPS),
    "overlap for TV": (T_PI, "tl.maximum(x - t_c * y, 0.0)", "tl.minimum(x, t_c * y)", GROUPS),
    "opt_log by maxima": (
        T_RULES,
        "is_in(rule, READS_ENTROPY)",
        "is_in(rule, READS_ENTROPY) & (rule != OPT_LOG)",
        GROUPS,
    ),
    # Confidences
    "temperature stays in a confidence": (
        T_PLACE,
        "scale = tl.where(sampled, d.stats.scale, 1.0)",
        "scale = d.stats.scale",
        GROUPS,
    ),
    "filters stay in a confidence": (
        T_PLACE,
        "cutoff = tl.where(sampled, d.stats.cutoff, -FLT_MAX)",
        "cutoff = d.stats.cutoff",
        agrees("chunk and one, bf16", "token"),
    ),
    "as sampled where the temperature is 1": (
        T_PLACE,
        "(d.stats.scale == 1) & (d.stats.cutoff == -FLT_MAX)",
        "(d.stats.scale == 1)",
        agrees("filters", "block"),
    ),
    "entropy of an earlier maximum": (T_PLACE, "(parts - total * moved) * shrink", "parts * shrink", GROUPS),
    "total of an earlier maximum": (T_PLACE, "total = total * shrink + ", "total = total + ", GROUPS),
    "entropy not normalised": (T_PLACE, "log_norm + parts / total", "log_norm + parts", GROUPS),
    "entropy of probabilities without them": (T_PLACE, "x * tl.log(x)", "tl.log(x)", probabilities("token")),
    "a bad probability is not seen": (T_PLACE, "fine = (bad == 0) & (top > 0)", "fine = top > 0", nan("chow")),
    # Cascades by token
    "token_v1 from q's own largest": (
        T_PI,
        "(of_p.largest - alpha) / ",
        "(tl.where(by_draft, of_q.largest, of_p.largest) - alpha) / ",
        GROUPS,
    ),
    "token_v3 absolute": (
        T_PI,
        "share = tl.where(rule == TOKEN_V3, 1 - alpha, ",
        "share = tl.where(rule < 0, 1 - alpha, ",
        GROUPS,
    ),
    "token rules believe a bad q": (
        T_PI,
        "(of_p.largest > 0) & (of_q.largest > 0)",
        "(of_p.largest > 0)",
        nan("token_v2"),
    ),
    "cut without a logarithm": (T_PI, "tl.log(share_or_least)", "(share - 1)", GROUPS),
    "eta of what is kept": (
        T_PI,
        "tl.where(inside_target(target, c, S) & keeps(pi_c, z, z_q), 0.0, y)",
        "tl.where(inside_target(target, c, S) & keeps(pi_c, z, z_q), y, 0.0)",
        behind("token"),
    ),
    "eta without ids behind p's vocabulary": (
        T_PI,
        "tl.where(inside_target(target, c, S) & keeps(pi_c, z, z_q), 0.0, y)",
        "tl.where(keeps(pi_c, z, z_q), 0.0, y)",
        behind("token"),
    ),
    "an entry at the cut is not kept": (T_PI, "(score >= pi.threshold)", "(score > pi.threshold)", TIES),
    "all ids kept in a draw": (
        T_PI,
        "tl.where(keeps(pi, z, z_q), m * pi.of_q - minus, -minus)",
        "(m * pi.of_q - minus)",
        agrees("draft scores the end", "token"),
    ),
    "all ids kept in a test": (T_PI, "tl.where(kept, of_q, 0.0) * y", "of_q * y", GROUPS),
    # Lossy
    "cap at 1": (T_PI, "tl.where(lossy, 1 / (1 - alpha), ", "tl.where(lossy, 1.0, ", LOSSY_TENTH),
    "R without c": (T_PI, "tl.maximum(y - of_q_c * x, 0.0)", "tl.maximum(y - x, 0.0)", LOSSY_TENTH),
    "steps too long": (T_PI, "s - excess / slope", "s - 2 * excess / slope", LOSSY_TENTH),
    "one step is enough": (T_PI, "(excess > CLOSE * R)", "(excess > R)", LOSSY_HALF),
    "R = 0 defers": (T_PI, "tl.where(R > 0, step, 0.0)", "tl.where(R > 0, step, 1.0)", LOSSY_BONUS),
    "cap omitted in a draw": (T_PI, "tl.minimum(y, pi.of_q * x)", "tl.minimum(y, x)", LOSSY_TENTH),
    "cap omitted in a test": (T_PI, "capped = tl.where(y < most, y, most)", "capped = tl.where(y < p, y, p)", FIVE),
    "not lifted to p / beta": (T_PI, "capped = tl.where(capped < of_p, of_p, capped)", "capped = capped + 0", BLOCKS),
    # Ensemble, and reads of distributions
    "q's weight is w": (T_PI, "tl.where(ensemble, 1 - alpha, ", "tl.where(ensemble, alpha, ", GROUPS),
    "p's weight is 1 - w": (T_PI, "tl.where(ensemble, alpha, 1.0)", "tl.where(ensemble, 1 - alpha, 1.0)", GROUPS),
    "what is open is never summed": (
        T_REQUEST,
        "needed = drawn & of_law & (position.pi.open > 0) & ~taken",
        "needed = drawn & (q_d < 0)",
        GROUPS,
    ),
    "ensemble is no law": (
        T_RULES,
        "is_in(rule, REPLACES_TARGET)",
        "is_in(rule, REPLACES_TARGET) & (rule != 12)",
        GROUPS,
    ),
    "the first parameter twice": (T_RULES, "get_value(at + 1, ", "get_value(at, ", GROUPS),
    "defaults of typical": (T_RULES, "first, second = number_of", "first, second = 10 * number_of", DEFAULTS),
    # Rules that define no distribution
    "lenience without l": (T_REQUEST, "accept_test(p_d, q_d, alpha.first * u)", "accept_test(p_d, q_d, u)", GROUPS),
    "greedy lenience without a logarithm": (T_RULES, ">= tl.log(alpha.first))", ">= alpha.first - 1)", greedy("token")),
    "typical: both bounds": (T_RULES, "typical = (p_d > alpha.first) | (", "typical = (p_d > alpha.first) & (", GROUPS),
    "typical: delta omitted": (T_RULES, "(p_d > alpha.second * tl.exp(-tl.where(", "(p_d > tl.exp(-tl.where(", GROUPS),
    "typical: the shortcut by eps": (
        T_RULES,
        "p_d > alpha.second * tl.exp(-p.stats.log_norm",
        "p_d > alpha.first * tl.exp(-p.stats.log_norm",
        GROUPS,
    ),
    "typical: entropy at T = 1": (
        T_PLACE,
        "confidence(target, p, typical, z_p",
        "confidence(target, p, False, z_p",
        GROUPS,
    ),
    "relaxed: one more": (
        T_RULES,
        "(of_p.above.to(tl.float64) < alpha.first)",
        "(of_p.above.to(tl.float64) <= alpha.first)",
        GROUPS,
    ),
    "relaxed: ties go": (T_PLACE, "(z > each(least, S)[:, None])", "(z >= each(least, S)[:, None])", TOP_TIES),
    "relaxed: delta relative": (T_RULES, "of_p.largest - alpha.second", "of_p.largest * (1 - alpha.second)", FIVE),
    "relaxed: counted only where the law is not known": (
        T_PLACE,
        "whole | typical | relaxed",
        "whole | typical",
        TOP_TIES,
    ),
    "synthetic: 1 - rate": (T_REQUEST, "synthetic & (u < synthetic_rate(", "synthetic & (u >= synthetic_rate(", FIVE),
    "thresholds: acc omitted": (T_RULES, "(u * alpha.second < p_d)", "(u < p_d)", FIVE),
    "thresholds: single omitted": (T_RULES, "(p_d >= alpha.first) | (u", "(p_d > 2) | (u", FIVE),
    "thresholds: d stays": (
        T_PLACE,
        "(reads & ~has_row) | (fine & drafted & (rule == THRESHOLDS))",
        "(reads & ~has_row)",
        FIVE,
    ),
    "tested behind p's vocabulary": (
        T_PLACE,
        "tl.where(reads, q_law, d < target.V)",
        "tl.where(reads, q_law, drafted)",
        behind("token"),
    ),
    # Places
    "the bonus of p": (
        T_PLACE,
        "return drafted | (replaces_target(rule) & (rule != EXACT))",
        "return drafted | (replaces_target(rule) & False)",
        BONUS,
    ),
    "a greedy target never reads q": (
        T_PLACE,
        "(p.hot >= 0) & ((rule == EXACT) | (rule == LOSSY) | (rule == LENIENCE))",
        "(p.hot >= 0)",
        greedy("token"),
    ),
    "r omitted of a residual": (
        T_REQUEST,
        "m = tl.where(takes, position.r, 1.0).to",
        "m = tl.where(takes, 1.0, 1.0).to",
        BLOCKS,
    ),
    "r omitted where q is kept": (T_PI, "m * pi.of_q - minus, -minus", "pi.of_q - minus, -minus", BLOCKS),
    "r omitted where p is": (T_PI, "mixed = m * pi.of_p * x", "mixed = pi.of_p * x", BLOCKS),
    "r omitted of a capped law": (T_PI, "capped = m * tl.maximum(", "capped = tl.maximum(", BLOCKS),
    "an empty residual is drawn from p": (T_REQUEST, "tl.where(takes, WHOLE, PLAIN)", "PLAIN", FORBIDDEN),
    "a bad q_d is not told": (
        T_DRAFT_TEST,
        "tl.where(is_draft_prob(q_d), 0, INVALID_DRAFT)",
        "tl.where(is_draft_prob(q_d), 0, 0)",
        FORBIDDEN,
    ),
    # Block
    "r not capped": (T_REQUEST, "tl.where(pi_d >= enough, 1.0, tl.where(", "tl.where(pi_d > 2, 1.0, tl.where(", BLOCKS),
    "r not carried": (T_REQUEST, "r * pi_d / draft_prob(q_d)", "pi_d / draft_prob(q_d)", BLOCKS),
    "h = r": (T_REQUEST, "s / (s + 1 - r), r)", "r, r)", BLOCKS),
    "h without what p lacks": (T_REQUEST, "s / (s + 1 - r), r)", "s, r)", BLOCKS),
    "the next test's uniform": (
        T_REQUEST,
        "uniform_of(random, x.b, before, columns, DOMAIN_ACCEPT, before, x.b >= 0)",
        "uniform_of(random, x.b, i, columns, DOMAIN_ACCEPT, i, x.b >= 0)",
        BLOCKS,
    ),
    "0 / 0 where r = 1": (T_REQUEST, "position.tested & (r < 1) & (s == s)", "position.tested", NOTHING_LACKING),
    "s of a greedy row without r": (
        T_REQUEST,
        "tl.maximum(r - draft_prob(q_hot), 0.0)",
        "tl.maximum(1 - draft_prob(q_hot), 0.0)",
        GREEDY_ROW,
    ),
    "hopeless too soon": (T_REQUEST, "testing & (u > 1.01 * position.r)", "testing & (u > 0.5 * position.r)", BLOCKS),
}


def with_kernels_of(csrc, *args, **kwargs):
    """Call verify_chain with the kernels in `csrc`, which then stay in this process."""
    import specdec_kernels
    from tools.cuda_on_cpu.build import load

    load("fast", csrc, ("verify_chain",))
    return flat.call(specdec_kernels.verify_chain, *args, **kwargs)


def with_triton_of(folder, *args, **kwargs):
    """Call verify_chain with the interpreted Triton sources under `folder`, which then stay in this process."""
    import specdec_kernels

    path = [str(folder / PACKAGE.name)]
    if specdec_kernels.__path__ != path:
        for name in [name for name in sys.modules if f"{name}.".startswith("specdec_kernels.triton.")]:
            del sys.modules[name]
        specdec_kernels.__path__ = path
        importlib.import_module("specdec_kernels.triton").register("CPU")
        interpreter.fewer_rows()
    return flat.call(specdec_kernels.verify_chain, *args, **kwargs)
