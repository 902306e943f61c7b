# SPDX-License-Identifier: Apache-2.0
"""Batches of requests with vLLM's parameters that change rows, and the rows that are expected: computed entry by entry
in float32, from the definition of each parameter."""

from types import SimpleNamespace

import numpy as np
import torch
from support import vllm_stub

K = 3
KINDS = ("bias", "bad words", "min tokens", "penalties", "allow-list", "grammar", "thinking")


class Budget:
    """A stand-in for vLLM's ThinkingBudgetStateHolder. It forces tokens in given rows.

    bonus, others: row -> token, for rows after the last draft and for rows of drafts.
    """

    def __init__(self, bonus, others):
        self.forced, self.steps, self.in_spec_mode = {True: bonus, False: others}, 0, True

    def has_tracked_requests(self):
        return bool(self.forced[True] or self.forced[False])

    def update_state(self, output_token_ids, spec_token_ids, **_):
        self.steps += 1

    def apply_to_logits(self, logits, predict_bonus_token, spec_token_ids):
        assert self.steps == 1  # update_state has run, once in this step
        at = self.forced[predict_bonus_token]
        assert all(row < logits.shape[0] for row in at)
        if at:
            places = (torch.tensor(list(at)), torch.tensor(list(at.values())))
            logits.index_put_(places, logits.new_full((len(at),), 1e9))
        return logits


class Batch:
    """A step of B requests with random drafts. About half of them have each kind of parameter in `kinds`.

    rows [R, V] are the model's, in vLLM's layout. grammar: request -> the ids that its grammar allows at each position.
    """

    def __init__(self, kinds, B=60, V=37, seed=1, dtype=torch.bfloat16, **sampling):
        g = np.random.default_rng(seed)
        self.B, self.V, self.kinds = B, V, kinds
        self.counts = g.integers(0, K + 1, B)
        self.drafts = [g.integers(0, V, n).tolist() for n in self.counts]
        self.prompt = [g.integers(0, V, n).tolist() for n in g.integers(1, 6, B)]
        self.output = [g.integers(0, V, n).tolist() for n in g.integers(0, 9, B)]
        R = int(self.counts.sum()) + B
        self.rows = (torch.randn(R, V, generator=torch.Generator().manual_seed(seed)) * 2).to(dtype)
        asks = lambda kind: [kind in kinds and bool(g.integers(2)) for _ in range(B)]
        some = lambda n: g.choice(V, n, replace=False).tolist()
        self.bias = {
            b: dict(zip(some(3), g.normal(0, 3, 3).tolist(), strict=True)) for b in np.nonzero(asks("bias"))[0]
        }
        self.bad_words = {b: self.words(g, b) for b in np.nonzero(asks("bad words"))[0]}
        self.ends = {b: (int(g.integers(1, 12)), set(some(6))) for b in np.nonzero(asks("min tokens"))[0]}
        self.ends = {b: x for b, x in self.ends.items() if len(self.output[b]) < x[0]}
        self.penalties = g.uniform([0.6, -1, -1], [1.8, 1, 2], (B, 3)).astype(np.float32)
        self.penalties[~np.array(asks("penalties"))] = [1, 0, 0]
        self.lists = {b: set(some(V // 2)) for b in np.nonzero(asks("allow-list"))[0]}
        self.grammar = {b: g.random((self.counts[b] + 1, V)) < 0.7 for b in np.nonzero(asks("grammar"))[0]}
        for b in self.grammar.keys() & self.ends.keys():
            end = list(self.ends[b][1])[:1]
            self.grammar[b][0] = np.isin(np.arange(V), end)
            self.lists.get(b, set()).update(end)
        self.forced = {}
        for b in np.nonzero(asks("thinking"))[0]:
            self.forced[b] = (int(g.integers(0, self.counts[b] + 1)), int(g.integers(V)))
        self.sampling = self.metadata_of(sampling)

    def words(self, g, b):
        """Return bad words. Some occur in the request's output or draft except for their last token; others do not."""
        text, made = self.output[b] + self.drafts[b], [[int(g.integers(self.V))]]
        for n in (1, 2):
            end = len(self.output[b]) + int(g.integers(0, self.counts[b] + 1))
            made.append([*text[max(end - n, 0) : end], int(g.integers(self.V))])
            made.append([*g.integers(0, self.V, n).tolist(), int(g.integers(self.V))])
        return made

    def metadata_of(self, given):
        B, V, R = self.B, self.V, len(self.rows)
        made = vllm_stub.sampling(B, **given)
        made.output_token_ids, made.spec_token_ids = self.output, self.drafts
        made.logitsprocs.non_argmax_invariant[0].min_toks = {
            b: (n, self.output[b], ends, b in self.grammar) for b, (n, ends) in self.ends.items()
        }
        made.logitsprocs.non_argmax_invariant[1].biases = self.bias
        made.bad_words_token_ids = self.bad_words
        if "penalties" in self.kinds:
            made.no_penalties = False
            longest = max(map(len, self.prompt))
            made.prompt_token_ids = torch.tensor([x + [V] * (longest - len(x)) for x in self.prompt])
            columns = torch.from_numpy(self.penalties).unbind(1)
            for name, column in zip(("repetition", "frequency", "presence"), columns, strict=True):
                setattr(made, f"{name}_penalties", column)
        if self.lists:
            made.allowed_token_ids_mask = torch.zeros(B, V, dtype=torch.bool)
            for b, ids in self.lists.items():
                made.allowed_token_ids_mask[b] = ~torch.isin(torch.arange(V), torch.tensor(sorted(ids)))
        if self.forced:
            bonus = {int(b): ids for b, (i, ids) in self.forced.items() if i == self.counts[b]}
            before = self.counts.cumsum() - self.counts
            others = {int(before[b] + i): ids for b, (i, ids) in self.forced.items() if i < self.counts[b]}
            made.thinking_budget_state_holder = Budget(bonus, others)
        assert R == sum(self.counts) + B
        return made

    def grammar_output(self):
        """Return SchedulerOutput, and GrammarOutput with requests in another order than the batch's."""
        names = [f"request {b}" for b in reversed(self.grammar)]
        masks = np.concatenate([self.grammar[b] for b in reversed(self.grammar)])
        bits = np.packbits(masks, axis=1, bitorder="little")
        bits = np.pad(bits, ((0, 0), (0, -bits.shape[1] % 4))).view(np.int32)
        drafts = {f"request {b}": x for b, x in enumerate(self.drafts) if x}
        return (
            SimpleNamespace(scheduled_spec_decode_tokens=drafts),
            SimpleNamespace(structured_output_request_ids=names, grammar_bitmask=bits),
        )

    def row(self, b, i):
        """Return the row [V] of request b after i drafts, float32, by definition."""
        f = np.float32
        first = int(self.counts[:b].sum()) + b
        z, text = self.rows[first + i].float().numpy().copy(), self.output[b] + self.drafts[b][:i]
        r, frequency, presence = self.penalties[b]
        for v in range(self.V):
            z[v] += f(self.bias.get(b, {}).get(v, 0))
            n = text.count(v)
            if n or v in self.prompt[b]:
                z[v] = z[v] / r if z[v] > 0 else z[v] * r
            z[v] -= f(frequency * f(n))
            z[v] -= presence if n else f(0)
        for word in self.bad_words.get(b, []):
            if text[len(text) - len(word) + 1 :] == word[:-1] and len(text) >= len(word) - 1:
                z[word[-1]] = -np.inf
        if b in self.lists:
            z[[v for v in range(self.V) if v not in self.lists[b]]] = -np.inf
        if b in self.grammar:
            z[~self.grammar[b][i]] = -np.inf
        until, ends = self.ends.get(b, (0, set()))
        if len(text) < until:
            without = z.copy()
            z[list(ends)] = -np.inf
            if b in self.grammar and not np.isfinite(z).any():
                z = without
        if self.forced.get(b, (-1,))[0] == i:
            z[:] = -np.inf
            z[self.forced[b][1]] = 1
        return z

    def written_out(self):
        return torch.from_numpy(np.stack([self.row(b, i) for b in range(self.B) for i in range(self.counts[b] + 1)]))
