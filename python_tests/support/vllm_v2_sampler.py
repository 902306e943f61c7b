# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the sampler of vLLM's V2 model runner, whose tensors are indexed by request slot.

A request is a dict of arguments of SamplingParams, with "prompt", "output" and "drafts" (tokens) and "grammar" (whether
it has one). `sampler` makes the stand-in. `written` applies a request's parameters to one row, by loops.
"""

import math
from collections import defaultdict
from itertools import accumulate, chain
from types import SimpleNamespace

import numpy as np
import torch

from specdec_kernels.integrations.vllm import verify_v2, views_v2

START, END, NATURAL_END = [3, 4], [5, 6, 7], [6, 7]  # tokens that begin and end a thought
OFF = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "logit_bias": {},
    "allowed_token_ids": [],
    "min_tokens": 0,
    "stop_token_ids": [],
    "bad_words": [],
    "thinking_token_budget": None,
    "grammar": False,
    "drafts": [],
    "output": [],
    "seed": 0,
}

# A batch in which every request has other parameters, and the sizes of its step
V, K = 70, 3

MIXED = [
    {"prompt": [1, 2, 65]},
    {"prompt": [1, 2, 65], "temperature": 0.0, "drafts": [7]},
    {"prompt": [11, 2], "temperature": 0.7, "top_k": 9, "drafts": [1, 2, 3]},
    {"prompt": [11, 2], "top_p": 0.6, "min_p": 0.02, "drafts": [5, 5]},
    {"prompt": [8, 69], "output": [3, 3, 4], "presence_penalty": 1.5, "repetition_penalty": 1.1, "drafts": [3, 6, 6]},
    {"prompt": [8, 69], "output": [3, 68], "frequency_penalty": 0.3, "repetition_penalty": 0.8, "drafts": [69, 0]},
    {"prompt": [4, 4], "logit_bias": {0: 2.0, 69: -3.5, 31: 0.25}, "drafts": [69]},
    {"prompt": [4], "output": [1], "min_tokens": 3, "stop_token_ids": [2, 64], "drafts": [9, 9, 9]},
    {"prompt": [4], "logit_bias": {2: 4.0}, "min_tokens": 1, "stop_token_ids": [2], "drafts": [9]},
    {"prompt": [5, 6], "bad_words": [[7], [5, 6], [9, 10, 11], [12, 13]], "output": [9, 10], "drafts": [12, 13, 10]},
    {"prompt": [9, 10], "bad_words": [[9, 10, 11], [3, 3]], "output": [3], "drafts": [3]},
    {"prompt": [1], "allowed_token_ids": [31, 32, 33, 63, 64, 31], "drafts": [64, 31]},
    {"prompt": [1], "allowed_token_ids": [0, 69], "logit_bias": {69: 1, 5: 9}, "presence_penalty": 0.5, "drafts": [0]},
    {"prompt": [2, *START, 9], "thinking_token_budget": 3, "output": [8], "drafts": [1, 2, 2]},
    {"prompt": [2, *START, 9], "thinking_token_budget": 0, "output": END[:1], "bad_words": [[6]], "drafts": END[1:]},
    {"prompt": [2], "thinking_token_budget": 1, "output": START[:1], "drafts": [START[1], 9, 5]},
    {"prompt": [2, *START, 9, 9], "thinking_token_budget": 2, "output": [6], "drafts": [7, 1], "logit_bias": {1: 2.0}},
    {"prompt": [2, *START], "thinking_token_budget": 0, "allowed_token_ids": [1, 2], "logit_bias": {5: -9.0}},
    {"prompt": [9, 10], "bad_words": [[9, 10, 11], [10, 5]], "drafts": [10, 5]},
]  # fmt: skip

LogitBiasState = type("LogitBiasState", (SimpleNamespace,), {})
PenaltiesState = type("PenaltiesState", (SimpleNamespace,), {})
BadWordsState = type("BadWordsState", (SimpleNamespace,), {})
ThinkingBudgetState = type("ThinkingBudgetState", (SimpleNamespace,), {"__module__": __name__})
Sampler = type("Sampler", (SimpleNamespace,), {})


def apply_thinking_budget(
    logits, req_ids, expanded, budget, texts, total_len, ids, local, last_start, last_end, scan_pos, start, natural, end
):
    """Stand in for vLLM's function on no rows, which finds where markers last begin in the committed text."""
    assert len(logits) == len(expanded) == len(ids) == len(local) == 0 and len(scan_pos) == len(texts)
    for slot in req_ids.tolist():
        text = texts[slot, : total_len[slot]].tolist()
        for found, marker in ((last_start, start.tolist()), (last_end, natural.tolist())):
            found[slot] = last_place(text, marker)


def last_place(text, marker):
    """Return where the marker last begins in the text, -1 if it does not."""
    begins = [i for i in range(len(text) - len(marker) + 1) if text[i : i + len(marker)] == marker]
    return max(begins, default=-1)


def full(requests):
    return [OFF | request for request in requests]


def by_slot(values, slots, S, dtype, fill):
    """Return a tensor by slot, on the host and on the device. Slots without a request hold `fill`."""
    x = torch.full((S,), fill, dtype=dtype)
    x[slots] = torch.tensor(values, dtype=dtype)
    return SimpleNamespace(np=x.numpy().copy(), gpu=x)


def lists_by_slot(lists, slots, S, width, dtype=torch.int32, stale=9):
    """Return lists by slot, and how many entries each has. The entries after a list are stale."""
    x = torch.full((S, width), stale, dtype=dtype)
    most = max(map(len, lists))
    x[slots, :most] = torch.tensor([[*values, *[stale] * (most - len(values))] for values in lists], dtype=dtype)
    return SimpleNamespace(gpu=x), by_slot([len(v) for v in lists], slots, S, torch.int32, 5)


def sampler(requests, slots, S, V):
    """Return a stand-in for vLLM's Sampler with these requests in these slots of S."""
    requests = full(requests)
    of = lambda name: [request[name] for request in requests]
    here = lambda values, dtype, fill=3: by_slot(values, slots, S, dtype, fill)
    states = SimpleNamespace(
        vocab_size=V,
        temperature=here(of("temperature"), torch.float32, math.nan),
        top_k=here([k if 0 < k < V else V for k in of("top_k")], torch.int32),
        top_p=here(of("top_p"), torch.float32, 0.1),
        min_p=here(of("min_p"), torch.float32, 0.9),
        seeds=here(of("seed"), torch.int64),
        num_logprobs=np.full(S, -1, dtype=np.int32),
    )
    allowed, num_allowed = lists_by_slot(of("allowed_token_ids"), slots, S, 16)
    bias_ids, num_bias = lists_by_slot([list(x) for x in of("logit_bias")], slots, S, 16)
    bias, _ = lists_by_slot([list(x.values()) for x in of("logit_bias")], slots, S, 16, torch.float32)
    stops = [r["stop_token_ids"] if r["min_tokens"] else [] for r in requests]
    stop_ids, num_stop = lists_by_slot(stops, slots, S, 8)
    biased = LogitBiasState(
        num_allowed_token_ids=num_allowed,
        allowed_token_ids=allowed,
        num_logit_bias=num_bias,
        logit_bias_token_ids=bias_ids,
        logit_bias=bias,
        min_lens=here([len(r["prompt"]) + r["min_tokens"] for r in requests], torch.int32),
        num_stop_token_ids=num_stop,
        restore_when_all_masked=here([int(bool(s) and r["grammar"]) for s, r in zip(stops, requests)], torch.int32, 0),
        stop_token_ids=stop_ids,
    )
    counts, bits = torch.full((S, V), 7, dtype=torch.int32), torch.full((S, -(-V // 32)), -1, dtype=torch.int32)
    texts = torch.full((S, 64), 2, dtype=torch.int32)
    of_text = defaultdict(list)  # the slots of requests with the same text
    for slot, request in zip(slots.tolist(), requests):
        of_text[tuple(request["prompt"]), tuple(request["output"])].append(slot)
    for (prompt, output), same in of_text.items():
        counts[same] = torch.bincount(torch.tensor(output, dtype=torch.int64), minlength=V).int()
        words = np.zeros(bits.size(1), dtype=np.uint32)
        for v in prompt:
            words[v // 32] |= np.uint32(1 << v % 32)
        bits[same] = torch.from_numpy(words.view(np.int32))
        texts[same, : len(prompt + output)] = torch.tensor(prompt + output, dtype=torch.int32)
    penalties = [f"{name}_penalty" for name in ("repetition", "frequency", "presence")]
    used = [any(r[name] != OFF[name] for name in penalties) for r in requests]
    penalised = PenaltiesState(
        **{name: here(of(name), torch.float32) for name in penalties},
        use_penalty=here(used, torch.bool, True).np,
        output_bin_counts=counts,
        prompt_bin_mask=bits,
    )
    budgets = [-1 if x is None else x for x in of("thinking_token_budget")]
    ids = lambda x: torch.tensor(x, dtype=torch.int32)
    thinking = ThinkingBudgetState(
        enabled=True,
        use_thinking_budget=here([x >= 0 for x in budgets], torch.bool, True).np,
        thinking_token_budget=here(budgets, torch.int32),
        cached_last_start=torch.full((S,), -1, dtype=torch.int32),
        cached_last_end=torch.full((S,), -1, dtype=torch.int32),
        cached_scan_pos=torch.zeros(S, dtype=torch.int32),
        reasoning_start_token_ids=ids(START),
        natural_reasoning_end_token_ids=ids(NATURAL_END),
        reasoning_end_token_ids=ids(END),
    )
    lengths = [len(r["prompt"]) for r in requests]
    req_states = SimpleNamespace(
        all_token_ids=SimpleNamespace(gpu=texts),
        prompt_len=here(lengths, torch.int32),
        prefill_len=here(lengths, torch.int32),
        total_len=here([len(r["prompt"]) + len(r["output"]) for r in requests], torch.int32),
        draft_tokens=torch.full((S, 8), -7),
        req_id_to_index={f"request {b}": slot for b, slot in enumerate(slots.tolist())},
    )
    return Sampler(
        sampling_states=states,
        logits_processors=[biased, penalised, bad_words_state(requests, slots, S)],
        penalties_state=penalised,
        thinking_budget_state=thinking,
        req_states=req_states,
        needs_logits_processing=np.ones(S, dtype=bool),
        logprobs_mode="raw_logprobs",
        return_sampling_mask=False,
    )


def bad_words_state(requests, slots, S):
    """Return a stand-in for vLLM's BadWordsState, to which each request was added by the plugin."""
    asked = [request["bad_words"] for request in requests]
    words, _ = lists_by_slot([sum(x, []) for x in asked], slots, S, 24)
    ends = [[0, *accumulate(map(len, x))] for x in asked]
    offsets, _ = lists_by_slot(ends, slots, S, 8, stale=1)
    number = by_slot([len(x) for x in asked], slots, S, torch.int32, 3)
    state = BadWordsState(bad_word_token_ids=words, bad_word_offsets=offsets, num_bad_words=number)
    for slot, x in zip(slots.tolist(), asked):
        views_v2.bad_words_added(lambda *_: bool(x), state, slot, SimpleNamespace(bad_words_token_ids=x or None))
    return state


def idle_sampler(S, V, temperature, seeds, requests=None):
    """Return a stand-in for vLLM's Sampler whose requests have a temperature and a seed [S] and nothing else."""
    of = sampler([{"prompt": [0]}], torch.tensor([0]), 1, V)
    zeros = lambda: by_slot([0] * S, torch.arange(S), S, torch.int32, 0)
    states, (biased, penalised, words) = of.sampling_states, of.logits_processors
    for name, off in (("top_k", V), ("top_p", 1), ("min_p", 0)):
        setattr(states, name, by_slot([off] * S, torch.arange(S), S, torch.float32, 0))
    for name in ("num_allowed_token_ids", "num_logit_bias", "num_stop_token_ids"):
        setattr(biased, name, zeros())
    words.num_bad_words, of.thinking_budget_state.enabled = zeros(), False
    penalised.use_penalty = np.zeros(S, dtype=bool)
    states.temperature, states.seeds = SimpleNamespace(gpu=temperature), SimpleNamespace(gpu=seeds)
    of.req_states = requests or of.req_states
    return of


def batch(requests, slots, logits, draft_logits=None):
    """Return the arguments of ``_verify`` for rows [R, V], by name."""
    requests = full(requests)
    lengths = torch.tensor([len(r["drafts"]) for r in requests])
    cu = torch.cat([torch.zeros(1, dtype=torch.int32), (lengths + 1).cumsum(0).to(torch.int32)])
    text = [r["prompt"] + r["output"] for r in requests]
    ids = [[t[-1], *r["drafts"]] for t, r in zip(text, requests)]
    local = torch.tensor([i for n in lengths.tolist() for i in range(n + 1)], dtype=torch.int32)
    ids = torch.tensor(list(chain.from_iterable(ids)), dtype=torch.int32)
    first = torch.tensor([len(t) - 1 for t in text])
    return {
        "logits": logits,
        "draft_logits": draft_logits,
        "draft_sampled": ids,
        "pos": first.repeat_interleave(lengths + 1) + local,
        "cu_num_logits": cu,
        "idx_mapping": slots.to(torch.int32),
        "idx_mapping_np": slots.numpy(),
        "expanded_idx_mapping": slots.to(torch.int32).repeat_interleave(lengths + 1),
        "expanded_local_pos": local,
        "seq_lens_upper_bound_np": (first + 1 + lengths).numpy(),
        "verify_draft_sampled": ids,
    }


def rejection_sampler(of, K, method="standard", rates=None):
    """Return a stand-in for vLLM's RejectionSampler, whose method ``_verify`` the plugin replaces."""
    return SimpleNamespace(
        sampler=of,
        num_speculative_steps=K,
        watermark_key=None,
        synthetic_conditional_rates=rates,
        use_block_verification=method == "block",
    )


def in_runner(run, grammars=()):
    """Return what `run` returns in the plugin's runner, for a step in which these requests have a grammar."""
    runner = SimpleNamespace(speculator=None, rejection_sampler=None)
    output = SimpleNamespace(structured_output_request_ids=grammars)
    return verify_v2.runner_sample(lambda *_: run(), runner, None, None, output)


def verify(of, upstream=None, **args):
    """Return what the plugin's ``_verify`` returns in its runner."""
    return in_runner(lambda: verify_v2.verify(upstream, of, **args))


def written(request, drafts, row):
    """Return a row [V], float32, with the request's changes after these drafts, before temperature and filters.

    They are applied as vLLM defines them, one id at a time. Positive logits are divided by the repetition penalty, not
    multiplied by its inverse.
    """
    request = OFF | request
    f, z = np.float32, row.to(torch.float32).numpy().copy()
    prompt, output = request["prompt"], request["output"] + drafts
    text = prompt + output
    if request["allowed_token_ids"]:
        z[[v not in request["allowed_token_ids"] for v in range(len(z))]] = -np.inf
    for v, x in request["logit_bias"].items():
        z[v] += f(x)
    stops = request["stop_token_ids"]
    if stops and len(output) < request["min_tokens"]:
        masked = z.copy()
        masked[stops] = -np.inf
        if not (request["grammar"] and masked.max() == -np.inf):
            z = masked
    for v in range(len(z)):
        count = output.count(v)
        if v in text:
            r = f(request["repetition_penalty"])
            z[v] = z[v] / r if z[v] > 0 else z[v] * r
        z[v] = z[v] - f(request["frequency_penalty"]) * f(count)
        if count:
            z[v] = z[v] - f(request["presence_penalty"])
    for word in request["bad_words"]:
        n = len(word) - 1
        if n <= len(output) and output[len(output) - n :] == word[:-1]:
            z[word[-1]] = -np.inf
    budget, begun = request["thinking_token_budget"], last_place(text, START)
    if budget is not None and begun > last_place(text, NATURAL_END) and len(text) - begun - len(START) >= budget:
        written = max(n for n in range(len(END)) if text[len(text) - n :] == END[:n])
        z[:] = -np.inf
        z[END[written]] = 0
    return torch.from_numpy(z)


def mixed(seed=1):
    """Return the sampler, slots and step arguments of MIXED. Slots without a request hold other values."""
    generator = torch.Generator().manual_seed(seed)
    slots = torch.randperm(len(MIXED) + 9, generator=generator)[: len(MIXED)]
    rows = sum(len(r.get("drafts", [])) + 1 for r in MIXED)
    logits = torch.randn(rows, V, generator=generator) * 2
    return sampler(MIXED, slots, len(MIXED) + 9, V), slots, batch(MIXED, slots, logits)
