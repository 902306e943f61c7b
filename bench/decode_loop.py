# SPDX-License-Identifier: Apache-2.0
"""``python -m bench.decode_loop``: check and time the decode loop on a GPU.

In float32 every drafter's greedy tokens are compared with those of plain decoding. In bfloat16 its tokens per second
are measured. In both, steps that wait for the device more than once are counted. Models are random, with SmolLM2's
shape; the draft is the target with noise added to its weights.

A difference fails if the target prefers plain decoding's token by more than rounding; otherwise it is a tie.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from copy import deepcopy

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from bench import devices, rehearsal
from specdec_kernels import decode

DRAFTERS = {
    "plain": lambda draft: None,
    "prompt lookup": lambda draft: decode.PromptLookupDrafter(4),
    "model": lambda draft: decode.ModelDrafter(draft, 4),
    "tree": lambda draft: decode.TreeDrafter(draft, "recursive_without_replacement", 4, 4),
    "merged drafts": lambda draft: decode.TreeDrafter(draft, "kseq", 4, 4),
    "top tokens": lambda draft: decode.TreeDrafter(draft, "target_only", 4, 4),
}
ROUNDING = 1e-3  # rounding error of a logit, in float32


def models(layers: int, width: int, vocabulary: int, noise: float = 0.02):
    """Return a target and its draft, on the CPU, in float32."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=width * 8 // 3,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 192,
        max_position_embeddings=2048,
        initializer_range=0.05,
    )
    target = LlamaForCausalLM(config).eval().requires_grad_(False)
    draft = deepcopy(target)
    for weight in draft.parameters():
        weight.add_(noise * weight.std() * torch.randn_like(weight))
    return target, draft


@contextlib.contextmanager
def waits() -> Iterator[list[str]]:
    """List what waited for the device in a with block, by CUDA's own debug mode or by a rehearsal's watch."""
    found: list[str] = []
    if devices.watching is not None:
        before = len(devices.watching.synchronisations)
        yield found
        found += devices.watching.synchronisations[before:]
        return
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode("default")
    found += [str(w.message) for w in said if "synchroniz" in str(w.message)]


def decoded(target, drafter, prompts, tokens) -> tuple[decode.Output, int, int]:
    """Decode; return the output, the number of steps, and the number of steps that waited more than once."""
    session = decode.Session(target, drafter, max_batch=len(prompts), capacity=len(prompts[0]) + tokens)
    for prompt in prompts:
        session.submit(decode.Request(prompt, tokens))
    steps = often = 0
    while session.busy:
        with waits() as found:
            session.step()
        steps, often = steps + 1, often + (len(found) > 1)
    return decode.Output([*session.results.values()], session.stats).check(), steps, often


def no_tie(target, prompt, ours, plain) -> bool:
    """Return whether, at the first difference, the target clearly prefers the plain token."""
    at = next((i for i, (a, b) in enumerate(zip(ours, plain)) if a != b), None)
    if at is None:
        return False
    ids = torch.tensor([prompt + plain[:at]], device=target.device)
    row = target.forward(ids, [0], target.new_cache(1, ids.shape[1]), keep=[ids.shape[1] - 1])[0]
    return bool(row[plain[at]] - row[ours[at]] > ROUNDING)


def main() -> None:
    small = rehearsal.active()
    shape, tokens, batch = ((2, 192, 64), 12, 2) if small else ((30, 576, 49152), 64, 4)
    hf, prompts = models(*shape), [[(7 * i + b) % 50 for i in range(16)] * 2 for b in range(batch)]
    wrong, plain, speeds = [], [], {}
    for dtype in (torch.float32, torch.bfloat16):
        target, draft = (decode.adapt(deepcopy(model).to("cuda", dtype)) for model in hf)
        for name, make in DRAFTERS.items():
            decoded(target, make(draft), prompts, 4)  # warm-up of each shape
            output, steps, often = decoded(target, make(draft), prompts, tokens)
            found = [result.tokens for result in output.results]
            if name == "plain":
                plain = found
            if often:
                wrong.append(f"{name}: {often} of {steps} steps waited more than once")
            if dtype == torch.float32:
                unlike = sum(no_tie(target, *each) for each in zip(prompts, found, plain))
                wrong += [f"{name}: {unlike} of {batch} requests unlike plain decoding"] * (unlike > 0)
            else:
                speeds[name] = output.stats.tokens_per_second
            speed, gained = output.stats.tokens_per_second, output.stats.tokens_per_call
            print(f"{name:14} {str(dtype)[6:]:9} {speed:8.1f} tokens/s  {gained:.2f} a call")
    for line in wrong:
        print(line)
    best = max(speeds, key=speeds.__getitem__)
    print(
        f"{len(DRAFTERS)} drafters, {len(wrong)} wrong; {speeds['plain']:.0f} tokens/s plain, {speeds[best]:.0f} {best}"
    )
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
