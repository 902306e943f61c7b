# SPDX-License-Identifier: Apache-2.0
"""Plain decoding, token by token, of requests that change their rows (bias, bad words, penalties, masks).

The model reads the whole text again for each token. Each change is applied in float32, one id at a time.
"""

import numpy as np
import torch
from support import tiny

F = np.float32


def seen(z, request, output):
    """Return a row [V] of logits with the request's changes after `output`, float32."""
    z = np.array(z, dtype=F)
    for v, value in (request.logit_bias or {}).items():
        z[v] += F(value)
    for v in request.eos if len(output) < request.min_tokens else ():
        z[v] = -np.inf
    for word in request.bad_words:
        before = list(word[:-1])
        if len(before) <= len(output) and output[len(output) - len(before) :] == before:
            z[word[-1]] = -np.inf
    for v in range(len(z)):
        count = output.count(v)
        if v in request.prompt or count:
            z[v] = z[v] / F(request.repetition_penalty) if z[v] > 0 else z[v] * F(request.repetition_penalty)
        z[v] = z[v] - F(F(request.frequency_penalty) * F(count))
        z[v] = z[v] - F(request.presence_penalty) if count else z[v]
    if request.allowed is not None and (words := request.allowed(list(output))) is not None:
        for v in range(len(z)):
            z[v] = z[v] if v // 32 < len(words) and int(words[v // 32]) >> v % 32 & 1 else -np.inf
    return z


def raw(model, request, output):
    return tiny.logits(model, [*request.prompt, *output]).float().numpy()


def row(model, request, output):
    return seen(raw(model, request, output), request, output)


def greedy(model, request):
    """Return the request's greedy tokens."""
    output = []
    while len(output) < request.max_new_tokens and not (output and output[-1] in request.eos):
        output.append(int(row(model, request, output).argmax()))
    return output


def laws(model, request):
    """Return a cached function: prefix of the output -> the distribution of the next token [V], float64."""
    known = {}

    def law(prefix):
        if prefix not in known:
            z = torch.from_numpy(row(model, request, list(prefix))).double()
            known[prefix] = torch.softmax(z / request.temperature, -1).numpy()
        return known[prefix]

    return law


def texts(law, request):
    """Return {tokens: probability} of the request's outputs, which end at `eos` or at `max_new_tokens`."""
    found, open_texts = {}, {(): 1.0}
    while open_texts:
        longer = {(*t, v): m * x for t, m in open_texts.items() for v, x in enumerate(law(t).tolist()) if x > 0}
        over = [t for t in longer if t[-1] in request.eos or len(t) == request.max_new_tokens]
        found |= {t: longer.pop(t) for t in over}
        open_texts = longer
    return found
