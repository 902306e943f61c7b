# SPDX-License-Identifier: Apache-2.0
"""python -m specdec_kernels info | generate | selfcheck. Heavy imports wait until a command needs them."""

from enum import Enum
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from specdec_kernels.registry import TREE_METHODS

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Exact verification for speculative decoding.")
console = Console()


def main():
    app(prog_name="python -m specdec_kernels")


Method = Enum("Method", {name: name for name in ("chain", *TREE_METHODS)}, type=str)


class Precision(str, Enum):
    auto = "auto"
    bfloat16 = "bfloat16"
    float32 = "float32"


@app.command()
def info():
    """Version, backends found, instruction set picked, torch and CUDA versions, architectures built."""
    from specdec_kernels.cli.info import collect

    table = Table(show_header=False, box=None)
    for name, value in collect().items():
        table.add_row(name, ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value))
    console.print(table)


@app.command()
def selfcheck():
    """A statistical check of the installed ops, in under a minute."""
    from specdec_kernels import selfcheck as check

    raise typer.Exit(0 if check.run(console) else 1)


@app.command()
def generate(
    prompt: Annotated[list[str], typer.Option(help="Text to continue; repeat for a batch.")],
    target: Annotated[str, typer.Option(help='Hub name, folder, .gguf file, or "smollm2".')] = "smollm2",
    draft: Annotated[
        str, typer.Option(help='A model as for --target, a layer-draft folder, or "lookup" (the prompt itself).')
    ] = "lookup",
    lookup_first: Annotated[
        bool,
        typer.Option(
            help="Look the draft up in the text first, the draft model where nothing is found; in a tree: beside the model's."
        ),
    ] = False,
    method: Annotated[
        Method, typer.Option(help="One drafted chain, or a tree verified by this method of verify_tree.")
    ] = Method.chain,
    drafts: Annotated[int, typer.Option(help="Of a tree: its chains.")] = 4,
    widths: Annotated[
        str,
        typer.Option(help="Of a tree, in place of --drafts and --gamma: children per node, level by level, as 4,2,1."),
    ] = "",
    rule: Annotated[
        str, typer.Option(help="How drafts are accepted: chow, diff, typical ... (all: specdec_kernels.rules).")
    ] = "exact",
    alpha: Annotated[str, typer.Option(help="Of the rule: a number, or two with a comma between them.")] = "",
    block: Annotated[bool, typer.Option(help="Verify a chain as a block.")] = False,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="0: off.")] = 0,
    top_p: Annotated[float, typer.Option(help="1: off.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="0: off.")] = 0.0,
    gamma: Annotated[
        str, typer.Option(help='Tokens drafted at a time, of a tree its depth; "auto": what pays, of a tree 4.')
    ] = "auto",
    max_new_tokens: Annotated[int, typer.Option()] = 128,
    seed: Annotated[int, typer.Option(help="Request i uses seed + i.")] = 0,
    stop: Annotated[list[str], typer.Option(help="A string that ends the text; may be repeated.")] = [],  # noqa: B006
    chat: Annotated[bool, typer.Option(help="Wrap the prompt in the model's chat template.")] = False,
    plain: Annotated[
        bool, typer.Option(help="No speculation: plain decoding through the same loop, with --rule a plain cascade.")
    ] = False,
    dtype: Annotated[Precision, typer.Option(help="auto: bfloat16 where the CPU has it.")] = Precision.auto,
):
    """Continue text with a target and a draft, streaming, and say what it cost."""
    from specdec_kernels.cli.console import loading, stats_table, stream_text

    try:
        from specdec_kernels import decode

        cascade = plain and rule != "exact"
        width = gamma if gamma == "auto" else _number("gamma", gamma)
        with loading(console) as on_step:
            model = None if draft == "lookup" or (plain and not cascade) else draft
            pair = decode.load_pair(target, model, _dtype(dtype), on_step=on_step)
        if cascade:
            drafter = _cascade(decode, pair, rule, max_new_tokens)
        else:
            drafter = None if plain else _drafter(decode, pair, method, width, drafts, widths, lookup_first)
        law = max_new_tokens, temperature, top_k, top_p, min_p
        requests = [
            decode.Request(
                _encode(pair.tokenizer, text, chat), *law, seed + i, pair.eos, tuple(stop), rule, _alpha(alpha)
            )
            for i, text in enumerate(prompt)
        ]
        output = decode.Output()
        options = dict(verify="block" if block else "token", tokenizer=pair.tokenizer, output=output)
        heads = [text + "\n\n" for text in prompt] if chat else prompt
        stream_text(console, heads, decode.stream(pair.target, requests, drafter, **options))
    except (ValueError, ImportError, OSError) as error:
        Console(stderr=True).print(f"[red]error:[/red] {error}", highlight=False)
        raise typer.Exit(2) from None
    console.print(stats_table(output.stats, None if plain else method.value))


def _drafter(decode, pair, method, width, drafts, widths, lookup_first):
    if width == "auto" and method is not Method.chain:
        width = 4
    lookup = decode.PromptLookupDrafter(width, min_ngram=3) if lookup_first else None
    if method is not Method.chain:
        if pair.draft is None:
            raise ValueError(f"--method {method.value} needs a draft model, got --draft lookup")
        shape = [_number("widths", w) for w in widths.split(",")] if widths else None
        return decode.TreeDrafter(pair.draft, method.value, drafts, width, shape, lookup)
    if pair.draft is None:
        return decode.PromptLookupDrafter(width)
    model = decode.ModelDrafter(pair.draft, width)
    return model if lookup is None else decode.LookupThenModel(lookup, model)


def _cascade(decode, pair, rule, longest):
    if pair.draft is None:
        raise ValueError(f"--plain --rule {rule} needs a draft model, got --draft lookup")
    return decode.TokenCascade(pair.draft, longest)


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


def _dtype(precision):
    import torch

    return None if precision is Precision.auto else getattr(torch, precision.value)


def _encode(tokenizer, text, chat):
    if chat:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
        )
    return tokenizer.encode(text, add_special_tokens=not chat)
