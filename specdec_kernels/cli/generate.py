# SPDX-License-Identifier: Apache-2.0
"""``python -m specdec_kernels generate``: from what was asked for to the loop's arguments."""

from dataclasses import replace

import torch
from rich.console import Console

from specdec_kernels import decode
from specdec_kernels.cli.console import loading, stats_table, stream_text


def run(args) -> None:
    console = Console()
    cascade = args.plain and args.rule != "exact"
    drafts = not args.plain or cascade
    width = args.gamma if args.gamma == "auto" else _number("gamma", args.gamma)
    with loading(Console(stderr=True)) as on_step:  # what goes to stdout is the text
        model = args.draft if drafts and args.draft != "lookup" else None
        dtype = None if args.dtype == "auto" else getattr(torch, args.dtype)
        pair = decode.load_pair(args.target, model, dtype, on_step=on_step, device=args.device)
    if args.graphs:
        pair = _graphed(pair)
    if args.beams:
        return _print_beams(console, pair, args)
    drafter = _cascade(pair, args) if cascade else _drafter(pair, args, width) if drafts else None
    output, verify = decode.Output(), "block" if args.block else "token"
    events = decode.stream(
        pair.target, _requests(pair, args), drafter, verify=verify, tokenizer=pair.tokenizer, output=output
    )
    stream_text(console, [text + "\n\n" for text in args.prompt] if args.chat else args.prompt, events)
    console.print(stats_table(output.stats, None if args.plain else args.method))


def _graphed(pair):
    if pair.target.device.type != "cuda":
        raise ValueError(f"--graphs needs a GPU, got --device {pair.target.device}")
    return replace(pair, target=decode.Graphed(pair.target), draft=pair.draft and decode.Graphed(pair.draft))


def _print_beams(console, pair, args) -> None:
    drafter = None
    if args.method != "chain":
        raise ValueError(f"--beams takes no other method, got --method {args.method}")
    if not args.plain:
        if pair.draft is None:
            raise ValueError("--beams needs --plain or a draft model, got --draft lookup")
        depth = 4 if args.gamma == "auto" else _number("gamma", args.gamma)
        drafter = decode.BeamDrafter(pair.draft, width=2 * max(args.beams, 1), depth=depth)
    output = decode.beam_search(pair.target, _requests(pair, args), args.beams, drafter)
    for prompt, found in zip(args.prompt, output.results):
        console.print(prompt, style="dim", markup=False, highlight=False, soft_wrap=True)
        for beam in found:
            text = pair.tokenizer.decode(beam.tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            ending = f"{beam.score:9.4f} {beam.finished:6} {text!r}"
            console.print(ending, markup=False, highlight=False, soft_wrap=True)
    console.print(stats_table(output.stats, None if args.plain else "beam search"))


def _requests(pair, args) -> list[decode.Request]:
    sampling_params = {name: getattr(args, name) for name in ("temperature", "top_k", "top_p", "min_p")}
    same = dict(max_new_tokens=args.max_new_tokens, eos=pair.eos, stop=tuple(args.stop), rule=args.rule)
    same |= dict(alpha=_alpha(args.alpha), **sampling_params)
    prompts = [_encode(pair.tokenizer, text, args.chat) for text in args.prompt]
    return [decode.Request(prompt, seed=args.seed + i, **same) for i, prompt in enumerate(prompts)]


def _drafter(pair, args, width):
    tree = args.method != "chain"
    if tree and args.lookup_under:
        raise ValueError(f"--lookup-under drafts chains, got --method {args.method}")
    if width == "auto" and tree:
        width = 4
    lookup = decode.PromptLookupDrafter(width, min_ngram=3) if args.lookup_first else None
    if tree:
        if pair.draft is None:
            raise ValueError(f"--method {args.method} needs a draft model, got --draft lookup")
        shape = _widths(args.widths)
        return decode.TreeDrafter(pair.draft, args.method, args.drafts, width, shape, lookup)
    if pair.draft is None:
        if args.lookup_under:
            raise ValueError("--lookup-under needs a draft model, got --draft lookup")
        return decode.PromptLookupDrafter(width)
    model: decode.ModelDrafter | decode.HierarchicalDrafter = decode.ModelDrafter(pair.draft, width)
    if args.lookup_under:
        model = decode.HierarchicalDrafter(pair.draft, decode.PromptLookupDrafter(4), width)
    return model if lookup is None else decode.LookupThenModel(lookup, model)


def _cascade(pair, args):
    if pair.draft is None:
        raise ValueError(f"--plain --rule {args.rule} needs a draft model, got --draft lookup")
    return decode.TokenCascade(pair.draft, args.max_new_tokens)


def _widths(text):
    return text if text == "auto" else [_number("widths", w) for w in text.split(",")] if text else None


def _number(name, text):
    if not text.isdigit():
        wanted = 'an integer >= 1 or "auto"' if name == "gamma" else "integers >= 1 with commas between them"
        raise ValueError(f"--{name} must be {wanted}, got {text}")
    return int(text)


def _alpha(text):
    try:
        given = tuple(float(x) for x in text.split(",")) if text else (None,)
    except ValueError:
        raise ValueError(f"--alpha must be a number, or two with a comma between them, got {text}") from None
    return given[0] if len(given) == 1 else given


def _encode(tokenizer, text, chat):
    if chat:
        turn = [{"role": "user", "content": text}]
        text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    return tokenizer.encode(text, add_special_tokens=not chat)
