# SPDX-License-Identifier: Apache-2.0
"""The first part of the demo: a few answers, decoded speculatively and plainly at temperature 0."""

import torch
from rich.console import Console

from demo.greedy_check import differences
from specdec_kernels import decode
from specdec_kernels.cli.console import stream_text

__all__ = ["QUESTIONS", "show"]

# SmolLM2-135M answers these sensibly, in float32 and in bfloat16. At every token of its answers the two best logits
# differ by .06 or more. Rounding in float32 does not change their order; rounding in bfloat16 may.
QUESTIONS = (
    "What is a prime number?",
    "Write a Python function that returns the factorial of n.",
    "List the four seasons.",
    "Write a Python function that returns the square of a number.",
)
ROUNDING = (
    "In bfloat16 a pass over a draft rounds otherwise than a pass over one token. Where two tokens all but tie, the "
    "texts may part for that reason; a line after them would say where."
)


def show(console: Console, pair, name: str, drafter, tokens: int, step: float) -> float:
    """Stream every answer twice, print whether the texts are equal, and return the mean seconds per token.

    step: seconds of a pass over one token, for the estimates.
    """
    questions = [f"{question}\n\n" for question in QUESTIONS]
    requests = [decode.Request(_encoded(pair.tokenizer, q), tokens, eos=pair.eos) for q in QUESTIONS]
    if pair.target.dtype != torch.float32:
        console.print(ROUNDING, style="dim", highlight=False)
    outputs = []
    for title, of, cost in ((f"speculative ({name})", drafter, 0.7), ("plain", None, 1.0)):
        expected = len(questions) * tokens * step * cost
        console.rule(f"{title}, temperature 0, at most about {expected:.0f} s", align="left")
        outputs.append(output := decode.Output())
        events = decode.stream(pair.target, requests, of, max_batch=1, tokenizer=pair.tokenizer, output=output)
        stream_text(console, questions, events)
        stats = output.stats
        console.print(
            f"{stats.new_tokens} tokens, {stats.tokens_per_second:.1f} a second", style="dim", highlight=False
        )
    speculative, plain = (output.results for output in outputs)
    parted = differences(pair.target, requests, plain, speculative)
    for i, at, gap in parted:
        line = f"request {i}: the texts part at token {at}, where the two best logits lie {gap:.3g} apart"
        console.print(line, style="dim", highlight=False)
    if not parted:
        console.print(f"Both texts of all {len(questions)} answers are equal, token for token.", highlight=False)
    return sum(o.stats.seconds for o in outputs) / max(1, sum(o.stats.new_tokens for o in outputs))


def _encoded(tokenizer, question: str) -> list[int]:
    turn = [{"role": "user", "content": question}]
    text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    return tokenizer.encode(text, add_special_tokens=False)
