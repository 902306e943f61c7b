# SPDX-License-Identifier: Apache-2.0
"""``python -m specdec_kernels generate``: check the options, load the models, write the text to stdout and the rest to
stderr."""

import sys
from dataclasses import replace

import torch
from rich.console import Console

from specdec_kernels import decode
from specdec_kernels.cli import plan
from specdec_kernels.cli.app import INTERRUPTED
from specdec_kernels.cli.console import loading, stats_table, stream_text
from specdec_kernels.cli.presence import check_there
from specdec_kernels.cli.threads import pick_threads
from specdec_kernels.decode.models.load import find_device


def run(args) -> int:
    """Run the command and return its exit status, which is 1 if a request ended in an error."""
    plan.rehearse(args)
    _check_device(args.device)
    # stdout is for the text only. sys.stderr is bound before models are loaded, since unpacking one redirects it.
    says = Console(file=sys.stderr)
    pair = _load(args, says)
    prompts = [_encode(pair.tokenizer, text, args.chat) for text in args.prompt]
    return (_print_beams if args.beams else _print_texts)(Console(), says, pair, args, prompts)


def _check_device(name) -> None:
    try:
        find_device(name)
    except ValueError as error:
        raise ValueError("--" + str(error).removeprefix("load_pair: ")) from None


def _load(args, says):
    drafts = not args.plain or (args.rule != "exact" and not args.beams)
    model = args.draft if drafts and args.draft != "lookup" else None
    check_there("--target", args.target)
    if model is not None:
        check_there("--draft", model)
    if args.threads:
        torch.set_num_threads(args.threads)
    choose = args.device == "cpu" and not args.threads and torch.get_num_threads() > 1
    with loading(says, 3 + (model is not None) + choose) as on_step:
        dtype = None if args.dtype == "auto" else getattr(torch, args.dtype)
        how = dict(on_step=on_step, device=args.device, match_tokens=args.match_tokens)
        pair = decode.load_pair(args.target, model, dtype, **how)
        if choose:
            most = torch.get_num_threads()
            on_step(f"one thread or {most}")
            torch.set_num_threads(pick_threads(pair.target, (1, most))[0])
    if args.graphs:
        pair = replace(pair, target=decode.Graphed(pair.target), draft=pair.draft and decode.Graphed(pair.draft))
    return pair


def _print_texts(console, says, pair, args, prompts) -> int:
    output, status = decode.Output(), 0
    todo, drafter = plan.requests(args, prompts, pair.eos, pair.tokenizer), plan.drafter(args, pair.draft)
    events = decode.stream(
        pair.target, todo, drafter, verify=plan.verify(args), tokenizer=pair.tokenizer, output=output
    )
    try:
        stream_text(console, [text + "\n\n" for text in args.prompt] if args.chat else args.prompt, events)
    except KeyboardInterrupt:
        console.print()
        status = INTERRUPTED
    for i, result in enumerate(output.results):
        if result.finished == "error":
            status = status or 1
            _say_error(says, f"request {i} ended in an error after {len(result.tokens)} tokens", result)
    says.print(stats_table(output.stats, None if args.plain else args.method))
    return status


def _say_error(says, what, result) -> None:
    reason = getattr(result, "error", None)
    text = f"error: {what}: {reason}" if reason else f"error: {what}"
    says.print(text, style="red", markup=False, highlight=False, soft_wrap=True)


def _print_beams(console, says, pair, args, prompts) -> int:
    todo, drafter = plan.requests(args, prompts, pair.eos, pair.tokenizer), plan.beam_drafter(args, pair.draft)
    output, status = decode.beam_search(pair.target, todo, args.beams, drafter), 0
    for prompt, found in zip(args.prompt, output.results):
        console.print(prompt, style="dim", markup=False, highlight=False, soft_wrap=True)
        for beam in found:
            text = pair.tokenizer.decode(beam.tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            ending = f"{beam.score:9.4f} {beam.finished:6} {text!r}"
            console.print(ending, markup=False, highlight=False, soft_wrap=True)
    for i, error in enumerate(getattr(output, "errors", ())):
        if error is not None:
            status = 1
            says.print(f"error: request {i} ended in an error: {error}", style="red", markup=False, soft_wrap=True)
    says.print(stats_table(output.stats, None if args.plain else "beam search"))
    return status


def _encode(tokenizer, text, chat):
    if chat:
        turn = [{"role": "user", "content": text}]
        text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    return tokenizer.encode(text, add_special_tokens=not chat)
