# SPDX-License-Identifier: Apache-2.0
"""Checks for options of `generate` that exclude each other or have no effect, before anything is loaded."""

import argparse
from collections.abc import Iterator

from specdec_kernels.cli import options
from specdec_kernels.registry import (
    CHAIN_METHODS,
    INF,
    LAWS,
    NO_PENALTIES,
    ONE_HOT_RULES,
    REJECT_FORBIDDEN,
    RULES,
    SAMPLING,
    TREE_METHODS,
)

__all__ = ["CASCADES", "check", "drafts_tree"]

CASCADES = "chow", "chow_log", "diff", "diff_log", "opt", "opt_log"  # rules for --plain: those of decode.TokenCascade
_LOOKUPS = "lookup_first", "lookup_under"
_FILTERS = tuple(name for name in SAMPLING if name != "temperature")
# Tree methods whose drafts may have a given number of children per level (--widths)
BRANCHING = tuple(name for name, method in TREE_METHODS.items() if method.children != "independent")


def _defaults() -> dict:
    parser = argparse.ArgumentParser()
    options.add(parser)
    return vars(parser.parse_args([]))


_DEFAULTS = _defaults()


def check(args) -> None:
    """Raise ValueError for the first option that does not go with the others."""
    rule = args.rule
    if not args.prompt:
        raise ValueError("--prompt or --prompt-file must be given")
    if args.threads and args.device != "cpu":
        raise ValueError(f"--threads is of the CPU, got --device {args.device}")
    _check_alpha(rule, args.alpha)
    _check_forbidden(args)
    if args.graphs and args.device == "cpu":
        raise ValueError("--graphs needs a GPU, got --device cpu")
    if args.method == "race":
        _check_race(args, rule)
    if args.beams:
        _check_beams(args)
    elif args.plain:
        if rule != "exact":
            _one_of("--rule", rule, CASCADES, "--plain")
            _needs_model(f"--plain --rule {rule}", args)
            _no_views(args, f"--plain --rule {rule}")
    elif not drafts_tree(args):
        _check_chain(args, rule)
    else:
        _check_tree(args, rule)
    for name, with_ in _without_effect(args):
        if getattr(args, name) != _DEFAULTS[name]:
            raise ValueError(f"--{name.replace('_', '-')} has no effect with {with_}")


def drafts_tree(args) -> bool:
    """Return whether the method's drafts are trees. Those of the race are trees if --widths gives their shape."""
    return bool(args.widths) if args.method == "race" else args.method != "chain"


def _without_effect(args) -> Iterator[tuple[str, str]]:
    """Yield each option that has no effect, by its name in `args`, and the options that are the reason."""
    method, tree = f"--method {args.method}", drafts_tree(args)
    drawn = TREE_METHODS[args.method].children != "any" if tree else False
    if args.beams:
        yield from ((name, "--beams") for name in ("block", "drafts", "widths", *_LOOKUPS, *_FILTERS, "seed"))
    elif args.temperature == 0:  # the filters keep the best token, which is the one that is drawn
        yield from ((name, "--temperature 0") for name in _FILTERS)
        if args.rule == "exact":  # some rules accept at random even then
            yield "seed", "--temperature 0 --rule exact"
    if args.plain:
        if args.method != "race":  # which also defines the noise of plain decoding
            yield "method", "--plain"
        yield from ((name, "--plain") for name in ("block", "gamma", "drafts", "widths", *_LOOKUPS))
        if args.beams or args.rule == "exact":
            yield from ((name, "--plain") for name in ("draft", "match_tokens"))
    elif args.draft == "lookup":
        yield "match_tokens", "--draft lookup"
    if not tree:
        yield "drafts", f"{method} without --widths" if args.method == "race" else method
    elif args.temperature == 0 and drawn and not args.widths:  # all drafts would be the same
        yield "drafts", f"{method} --temperature 0"
    if isinstance(args.widths, list):  # the shape; without a lookup nothing else has a length
        yield "drafts", "--widths"
        if not args.lookup_first:
            yield "gamma", "--widths"


def _one_of(option: str, value: str, wanted, with_: str) -> None:
    if value not in wanted:
        raise ValueError(f"{option} must be one of {', '.join(wanted)} with {with_}, got {value}")


def _needs_model(option: str, args) -> None:
    if args.draft == "lookup":
        raise ValueError(f"{option} needs a draft model, got --draft lookup")


def _no_views(args, with_: str) -> None:
    """Raise ValueError if an option changes rows: penalties, biases, minimum length, bad words or a grammar."""
    for name, off in (NO_PENALTIES | {"min_tokens": 0}).items():
        flag, value = "--" + name.replace("_", "-"), getattr(args, name)
        if value != off:
            raise ValueError(f"{with_} needs {flag} {off:g}, got {flag} {value:g}")
    for token, value in args.logit_bias:
        raise ValueError(f"{with_} takes no bias, got --logit-bias {token}={value:g}")
    for word in args.bad_word:
        raise ValueError(f"{with_} takes no bad words, got --bad-word {word}")
    if args.grammar:
        raise ValueError(f"{with_} takes no --grammar, got a {args.grammar[0]}")


def _check_forbidden(args) -> None:
    """Check the options that forbid ids, also against the rule."""
    if args.min_tokens > args.max_new_tokens:
        raise ValueError(f"--min-tokens must be <= --max-new-tokens {args.max_new_tokens}, got {args.min_tokens}")
    ids = [token for token, _ in args.logit_bias]
    for token in ids:
        if ids.count(token) > 1:
            raise ValueError(f"--logit-bias must be given once for each id, got {token} {ids.count(token)} times")
    forbids = [f"--logit-bias {token}={value:g}" for token, value in args.logit_bias if value == -INF]
    forbids += [f"--min-tokens {args.min_tokens}"] * bool(args.min_tokens)
    forbids += [f"--bad-word {word}" for word in args.bad_word] + ["--grammar"] * bool(args.grammar)
    if args.rule == "synthetic" and forbids:
        raise ValueError(f"--rule must be one of {', '.join(REJECT_FORBIDDEN)} with {forbids[0]}, got synthetic")


def _check_alpha(rule, alpha) -> None:
    given = () if alpha is None else alpha if isinstance(alpha, tuple) else (alpha,)
    parameters = RULES[rule].parameters
    if len(given) > len(parameters):
        takes = f"at most {len(parameters)} numbers" if parameters else "no number"
        raise ValueError(f"--alpha: --rule {rule} takes {takes}, got {','.join(f'{x:g}' for x in given)}")
    for x, parameter in zip(given, parameters):
        if x not in parameter:
            which = "" if parameter.name == "alpha" else f": {parameter.name}"
            raise ValueError(f"--alpha{which} of --rule {rule} must be in {parameter.range}, got {x:g}")


def _check_beams(args) -> None:
    if args.method != "chain":
        raise ValueError(f"--beams takes no other method, got --method {args.method}")
    if not args.plain and args.draft == "lookup":
        raise ValueError("--beams needs --plain or a draft model, got --draft lookup")
    for option, value, wanted in (("temperature", args.temperature, 0), ("rule", args.rule, "exact")):
        if value != wanted:
            raise ValueError(f"--beams needs --{option} {wanted}, got --{option} {value}")
    _no_views(args, "--beams")
    if args.stop:
        raise ValueError(f"--beams takes no stop strings, got --stop {args.stop[0]!r}")


def _check_chain(args, rule) -> None:
    if args.widths:
        raise ValueError("--widths is the shape of a tree, got --method chain")
    for option, given in (("--lookup-under", args.lookup_under), ("--lookup-first", args.lookup_first)):
        if given:
            _needs_model(option, args)
    if args.draft == "lookup":
        _one_of("--rule", rule, ONE_HOT_RULES, "--draft lookup")
    elif args.lookup_first:
        _one_of("--rule", rule, ONE_HOT_RULES, "--lookup-first")
    if args.block:
        _one_of("--rule", rule, LAWS, "--block")


def _check_race(args, rule) -> None:
    _one_of("--rule", rule, CHAIN_METHODS["race"].rules, "--method race")
    if args.block:
        raise ValueError("--block verifies without the race, got --method race")


def _check_tree(args, rule) -> None:
    method = f"--method {args.method}" + " --widths" * (args.method == "race")
    if args.lookup_under:
        raise ValueError(f"--lookup-under drafts chains, got {method}")
    _needs_model(method, args)
    if args.block:
        raise ValueError(f"--block verifies chains, got {method}")
    if args.method not in BRANCHING:
        for option, value in (("--widths", args.widths), ("--lookup-first", args.lookup_first)):
            if value:
                raise ValueError(f"{option} needs --method {', '.join(BRANCHING)}, got {method}")
    if args.method == "greedy" and args.temperature > 0:
        raise ValueError(f"{method} needs --temperature 0, got --temperature {args.temperature:g}")
    _one_of("--rule", rule, TREE_METHODS[args.method].rules, method)
    if args.lookup_first:
        _one_of("--rule", rule, ONE_HOT_RULES, "--lookup-first")
