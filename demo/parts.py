# SPDX-License-Identifier: Apache-2.0
"""Measurements on the demo's models in parts. Each part's result is written to a JSON file as soon as it is done."""

import argparse
import json
from hashlib import sha256
from pathlib import Path
from time import perf_counter

import torch
from rich.console import Console

from specdec_kernels import decode

HERE = Path(__file__).parent


def arguments(doc, out, options):
    """Parse the command line.

    doc: the description. out: the default name of the JSON file. options: {name: (default, help)} of integer options.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin nothing new after this long")
    for name, (default, text) in options.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=text)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE / out)
    return parser.parse_args()


def measure(args, data, parts, prepare, console):
    """Measure the parts, and write `data` to the file after each.

    parts: (dict in `data`, key in it, function of prepare(pair) that measures the value). The pair is loaded only if
    there is a part.
    """
    began, ready = perf_counter(), None
    for where, name, part in parts:
        if perf_counter() - began > args.seconds:
            return
        if ready is None:
            pair = decode.load_pair("smollm2", str(HERE / "draft"))
            precision = str(pair.target.dtype).removeprefix("torch.")
            data["draft"] = weights()
            data["of"] = f"{precision}, {args.tokens} tokens, batch {args.batch}, torch {torch.__version__}"
            ready = prepare(pair)
        began_one = perf_counter()
        where[name] = part(ready)
        console.print(f"{name}: {perf_counter() - began_one:.0f} s", style="dim", highlight=False)
        args.out.write_text(json.dumps(data, separators=(",", ":")).replace(',"', ',\n"') + "\n")


def weights() -> str:
    """Return the beginning of the hash of the draft's file, which identifies its weights."""
    return sha256((HERE / "draft" / "draft.safetensors").read_bytes()).hexdigest()[:12]


def read(args, empty, console):
    """Load the earlier measurements.

    If they were made with other weights of the draft and there is time to measure, return `empty`: everything is
    measured again.
    """
    data = json.loads(args.out.read_text()) if args.out.exists() else empty
    if data == empty or data.get("draft") == weights():
        return data
    text, again = f"{args.out.name} was measured with other weights of the draft", args.seconds > 0
    console.print(f"{text}; all of it is measured again" if again else text, style="dim", highlight=False)
    return empty if again else data


def run(args, empty, parts, prepare, show, draw):
    """Load the earlier measurements, measure the parts(data) that are missing, print the table and draw the picture."""
    console = Console()
    console.width = max(console.width, 110)
    torch.set_num_threads(args.threads)
    data = read(args, empty, console)
    measure(args, data, parts(data), prepare, console)
    show(console, data)
    try:
        draw(data, args.out.with_suffix(".png"))
    except ModuleNotFoundError as error:
        console.print(f"no picture: {error.name} is missing", style="dim")
