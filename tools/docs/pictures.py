# SPDX-License-Identifier: Apache-2.0
"""The drawings of docs/: what verification does, a chain, a tree, tokens per call by method (from docs/numbers.md), and
speed beside other engines (from bench/results/).

    python -m tools.docs.pictures     # writes docs/pictures/

Each is 400 units wide, the width of a phone, and is drawn on a card of its own, so that it fits light and dark pages.
"""

import json
import re
from html import escape
from pathlib import Path

from tools.gpu_model.compare import read

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/pictures"
STYLE = """
text { font: 15px system-ui, sans-serif; fill: #1c2030 } .small { font-size: 13px } .mid { text-anchor: middle }
.bold { font-weight: 600 }
text.white { fill: #fff }
.card { fill: #fff } .line { stroke: #6b7280; stroke-width: 1.5; fill: none } .pale { fill: #e5e7eb }
.keep { fill: #2f9e63 } .new { fill: #3b6fd4 }
.drop { fill: #f3c4c4; stroke: #c03a3a; stroke-width: 1.5; stroke-dasharray: 4 3 }
.unread { fill: none; stroke: #6b7280; stroke-width: 1.5; stroke-dasharray: 3 4 }
@media (prefers-color-scheme: dark) {
text:not(.white) { fill: #e8eaf0 } .card { fill: #23262f } .line, .unread { stroke: #a3a9b5 } .pale { fill: #454a56 }
.keep { fill: #2b8a58 } .drop { fill: #5a2f33; stroke: #e08080 } }
""".strip()


def svg(height, title, *parts):
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 400 {height}" role="img" aria-label="{escape(title)}">\n'
        f"<title>{escape(title)}</title>\n<style>\n{STYLE}\n</style>\n"
        f'<rect class="card" width="400" height="{height}" rx="8"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def text(x, y, words, kind=""):
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(words)}</text>'


def box(x, y, width, height, kind):
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3"/>'


def node(x, y, word, kind):
    label = text(x, y + 5, word, "mid white" if kind in ("keep", "new") else "mid")
    return f'<circle class="{kind}" cx="{x:g}" cy="{y:g}" r="24"/>{label}'


def edge(x1, y1, x2, y2):
    return f'<path class="line" d="M{x1:g} {y1:g}L{x2:g} {y2:g}"/>'


def legend(y, *entries):
    """Return a legend: a line with a coloured square and its meaning for each entry."""
    return [
        box(16, y + 24 * i - 12, 14, 14, kind) + text(38, y + 24 * i, words) for i, (kind, words) in enumerate(entries)
    ]


def verification():
    """Draw p, q, and what happens to a draft, for three tokens, to scale."""
    p, q = (0.5, 0.3, 0.2), (0.2, 0.5, 0.3)
    parts = [text(16, 28, "One position, a vocabulary of three tokens", "bold")]
    for i, (a, b) in enumerate(zip(p, q)):
        x, base, scale = 40 + 120 * i, 250, 340
        for j, (name, mass) in enumerate((("p", a), ("q", b))):
            left, both = x + 44 * j, min(a, b)
            parts.append(box(left, base - scale * both, 36, scale * both, "keep"))
            if mass > both:
                rest = scale * (mass - both)
                parts.append(box(left, base - scale * mass, 36, rest, "new" if name == "p" else "drop"))
            parts.append(text(left + 18, base - scale * mass - 7, f"{mass:g}", "mid small"))
            parts.append(text(left + 18, base + 18, name, "mid small"))
        parts.append(text(x + 40, base + 40, f"token {i}", "mid"))
    parts += legend(
        322,
        ("keep", "min(p, q): drafts that are accepted"),
        ("drop", "q - p: drafts that are rejected"),
        ("new", "p - q: drawn after a rejection"),
    )
    parts += [text(16, 406, "Accepted and redrawn tokens together follow p, exactly.", "small")]
    return svg(422, "Verification: accepted drafts and tokens drawn after a rejection add up to the target's p", *parts)


def chain():
    """Draw a chain of four drafts, of which the third is rejected."""
    words, kinds = ("fib", "(", "n", "-"), ("keep", "keep", "drop", "unread")
    parts = [text(16, 28, "A chain: four drafts after \u201creturn\u201d", "bold"), node(44, 80, "return", "pale")]
    for i, (word, kind) in enumerate(zip(words, kinds)):
        x = 122 + 78 * i
        parts += [edge(x - 54, 80, x - 24, 80), node(x, 80, word, kind)]
    x = 122 + 78 * 2
    parts += [edge(x - 68, 98, x - 20, 140), node(x, 156, "x", "new")]
    parts += legend(
        226,
        ("keep", "tested in order, and accepted"),
        ("drop", "rejected: the step ends here"),
        ("new", "drawn from norm((p - q)+) in its place"),
        ("unread", "not looked at; its rows are not read"),
    )
    parts.append(text(16, 334, "Emitted: fib, (, x. Three tokens by one pass.", "small"))
    return svg(350, "A chain of four drafts: two accepted, the third rejected and replaced", *parts)


def tree():
    """Draw a tree of drafts with shared prefixes, of which one path is accepted."""
    top, left, middle, right = (200, 74), (70, 150), (200, 150), (330, 150)
    leaves = ((70, 226), (165, 226), (235, 226))
    below = lambda a, b: edge(a[0], a[1] + 24, b[0], b[1] - 24)
    parts = [text(16, 28, "A tree: all drafts scored by one pass", "bold")]
    parts += [below(top, x) for x in (left, middle, right)]
    parts += [below(left, leaves[0]), below(middle, leaves[1]), below(middle, leaves[2]), below(leaves[1], (165, 302))]
    parts += [node(*top, "return", "pale"), node(*left, "n", "drop"), node(*middle, "fib", "keep")]
    parts += [node(*right, "a", "unread"), node(*leaves[0], "+", "unread"), node(*leaves[1], "(", "keep")]
    parts += [node(*leaves[2], "[", "unread"), node(165, 302, "n", "new")]
    parts += legend(
        362,
        ("keep", "accepted: the path that is kept"),
        ("drop", "tested before, and rejected"),
        ("unread", "not needed once a sibling is accepted"),
        ("new", "drawn after the last accepted node"),
    )
    parts.append(text(16, 470, "Emitted: fib, (, n. The cache keeps this path.", "small"))
    return svg(486, "A tree of drafts: one path is accepted and a token is drawn after it", *parts)


def measured():
    """Return (method, tokens per target call, low, high, accepted at a node) from the page of numbers."""
    page = (ROOT / "docs/numbers.md").read_text().split("## Trees")[1]
    row = r"^\| `(\w+)` \| [^|]+ \| ([\d.]+) \(([\d.]+)-([\d.]+)\) \| [\d.]+ \| ([\d.]+) \|"
    return [(name, *map(float, values)) for name, *values in re.findall(row, page, re.M)]


def acceptance():
    parts = [
        text(16, 28, "Tokens per call of the target, by method", "bold"),
        text(16, 50, "four drafts of four tokens", "small"),
    ]
    for i, (name, tokens, low, high, accepted) in enumerate(measured()):
        y, x = 78 + 58 * i, lambda value: 16 + 116 * value
        parts += [text(16, y, name), box(16, y + 7, x(tokens) - 16, 20, "keep")]
        parts.append(
            f'<path class="line" d="M{x(low):g} {y + 17}H{x(high):g}M{x(low):g} {y + 12}v10M{x(high):g} {y + 12}v10"/>'
        )
        parts.append(text(x(high) + 8, y + 22, f"{tokens:.2f}"))
        parts.append(text(24, y + 22, f"accepted at a node: {accepted:.2f}", "small white"))
    height = 78 + 58 * len(measured())
    parts += [text(16, height + 2, "SmolLM2-135M, the demo's draft, T = 1; 95% intervals", "small")]
    return svg(height + 18, "Tokens per target call by method", *parts).replace(
        ".mid {", ".end { text-anchor: end } .mid {"
    )


def recorded(machine, op, case):
    """Return (date, first lines, cases) of the newest recorded benchmark on a machine.

    cases: [(the groups of the pattern `case`, peer -> its time divided by ours)] for each case of `op` that matches.
    """
    path = max((ROOT / "bench/results").glob(f"*-{machine}-*/bench.csv"))
    results = read(path)
    of_op = [row for row in results.rows if row["op"] == op]
    found = [(re.fullmatch(case, row["case"]), json.loads(row["times as long"])) for row in of_op]
    return path.parent.name[:10], results.about, [(match.groups(), ratios) for match, ratios in found if match]


def beside(y, label, bars, unit):
    """Draw a bar from x = 88 for each (colour, peer's time divided by ours). Numbers are right of the line at 1."""
    parts = [text(16, y + 7 * len(bars) + 4, label)]
    for i, (kind, times) in enumerate(bars):
        shown = f"{times:.1f}" if times >= 1 else f"{times:.2f}"
        parts.append(box(88, y + 14 * i, unit * times, 12, kind))
        parts.append(text(94 + unit * max(times, 1), y + 14 * i + 11, shown, "small"))
    return parts


def speed():
    """Draw the times of vLLM's and SGLang's kernels as multiples of verify_chain's, by vocabulary and batch."""
    date, told, cases = recorded("h200", "verify_chain", r"B=(\d+) V=(\d+) bf16 stats T=\.7")
    peers, unit, y = (("vllm", "new"), ("sglang", "keep")), 25, 106
    parts = [text(16, 28, "Times as long as verify_chain takes", "bold")]
    parts += legend(54, ("new", "vLLM 0.33's kernel"), ("keep", "SGLang 0.5.23's kernel"))
    for V in sorted({int(V) for (_, V), _ in cases}, reverse=True):
        of_V = sorted((int(B), ratios) for (B, width), ratios in cases if int(width) == V)
        parts.append(text(16, y + 8, f"{V:,} tokens in the vocabulary", "small"))
        bottom = y + 14 + 36 * len(of_V)
        parts.append(f'<path class="line" d="M{88 + unit} {y + 16}V{bottom}"/>')
        for i, (B, ratios) in enumerate(of_V):
            parts += beside(y + 18 + 36 * i, f"B = {B}", [(kind, ratios[peer]) for peer, kind in peers], unit)
        y = bottom + 22
    parts.append(text(16, y, "Short of the line they are faster. B requests of five", "small"))
    parts.append(text(16, y + 18, f"drafts, bfloat16, T = 0.7; {told['GPU'].split(',')[0]}, {date}.", "small"))
    return svg(y + 34, "How many times as long as verify_chain other engines' kernels take on a GPU", *parts)


PICTURES = {f.__name__: f for f in (verification, chain, tree, acceptance, speed)}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw())
