# SPDX-License-Identifier: Apache-2.0
"""Requests and drafters from the options of the command line. `rehearse` makes them without a model, to find errors
before a model is loaded."""

from dataclasses import dataclass, field

import torch

from specdec_kernels import decode
from specdec_kernels.cli.checks import drafts_tree
from specdec_kernels.decode.grammar import check_grammar
from specdec_kernels.decode.limits import check_method, check_rule
from specdec_kernels.decode.sequence import Sequence
from specdec_kernels.registry import PENALTIES, SAMPLING

__all__ = ["beam_drafter", "drafter", "rehearse", "requests", "verify"]


def requests(args, prompts: list[list[int]], eos: tuple[int, ...], tokenizer=None) -> list[decode.Request]:
    """Return a request for each prompt, a list of ids. Without a tokenizer bad words and grammars are placeholders."""
    sampling_params = {name: getattr(args, name) for name in (*SAMPLING, *PENALTIES)}
    same = dict(max_new_tokens=args.max_new_tokens, eos=eos, stop=tuple(args.stop), rule=args.rule)
    same |= dict(alpha=args.alpha, logit_bias=dict(args.logit_bias), min_tokens=args.min_tokens, **sampling_params)
    same["bad_words"] = tuple(ids for word in args.bad_word for ids in _spellings(tokenizer, word))
    grammar = None
    if args.grammar and tokenizer is not None:
        kind, source = args.grammar
        grammar = decode.Grammar(kind, source, tokenizer, eos)
    elif args.grammar:
        check_grammar(*args.grammar)
        same["allowed"] = _anything
    return [
        decode.Request(prompt, seed=args.seed + i, **same | ({"allowed": grammar.matcher()} if grammar else {}))
        for i, prompt in enumerate(prompts)
    ]


def _anything(text: list[int]) -> None:
    """Stand in for a grammar: allow every token."""


def _spellings(tokenizer, word: str) -> list[list[int]]:
    """Return the ids of a bad word at the beginning of a text and, under vLLM's conditions, after a space."""
    if tokenizer is None:
        return [[0, 0]]
    first, spaced = (tokenizer.encode(space + word.lstrip(), add_special_tokens=False) for space in ("", " "))
    if not first:
        raise ValueError(f"--bad-word must have at least one token, got {word!r}")
    one_more = spaced and spaced[0] != first[0] and len(spaced) == len(first)
    return [first, spaced] if one_more else [first]


def verify(args) -> str:
    return "race" if args.method == "race" else "block" if args.block else "token"


def drafter(args, draft):
    """Return the drafter; None for plain decoding without a rule. draft: the draft model, or None for prompt lookup."""
    if args.plain:
        return None if args.rule == "exact" else decode.TokenCascade(draft, args.max_new_tokens)
    tree = drafts_tree(args)
    width = 4 if args.gamma == "auto" and tree else args.gamma
    lookup = decode.PromptLookupDrafter(width, min_ngram=3) if args.lookup_first else None
    if tree:
        return decode.TreeDrafter(draft, args.method, args.drafts, width, args.widths, lookup)
    if draft is None:
        return decode.PromptLookupDrafter(width)
    model: decode.ModelDrafter | decode.HierarchicalDrafter = decode.ModelDrafter(draft, width)
    if args.lookup_under:
        model = decode.HierarchicalDrafter(draft, decode.PromptLookupDrafter(4), width)
    return model if lookup is None else decode.LookupThenModel(lookup, model)


def beam_drafter(args, draft):
    if args.plain:
        return None
    return decode.BeamDrafter(draft, width=2 * args.beams, depth=4 if args.gamma == "auto" else args.gamma)


@dataclass
class _NoModel:
    """Stands in for a model: it has sizes, and raises if it is run."""

    vocab_size: int = 1 << 24
    max_positions: int = 1 << 62
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dtype: torch.dtype = torch.float32
    state_size: int | None = None
    reads_states: bool = False
    refuses: dict = field(default_factory=dict)

    def new_cache(self, slots, capacity):
        raise NotImplementedError

    def forward(self, *args, **kwargs):
        raise NotImplementedError


class _NoTokenizer:
    def decode(self, ids, **_):
        return ""


def rehearse(args) -> None:
    """Raise the errors that the library would raise for these options, before a model is loaded."""
    model = _NoModel()
    todo = requests(args, [[0]] * len(args.prompt), eos=(0,))
    if args.beams:
        beam_drafter(args, model)
        return
    how = drafter(args, None if args.draft == "lookup" else model)
    if how is None:
        return
    check_method("generate", how, verify(args))
    for i, request in enumerate(todo):
        sequence = Sequence(i, request, _NoTokenizer())
        check_rule("generate", how, sequence, verify(args))
        how.check(model, [sequence])
