# SPDX-License-Identifier: Apache-2.0
"""The lists of used tokens that V1's penalties read, kept from step to step: equal to lists made anew."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from specdec_kernels.integrations.vllm import histories, views

V = 31


def anew(prompts, outputs, V=V):
    """Return the list of each request without pads, [(id, count), ...], made from its whole text."""
    width = lambda texts: max(map(len, texts))
    matrix = lambda texts: torch.tensor([[*map(int, x), *[-1] * (width(texts) - len(x))] for x in texts]).long()
    return entries(*views.history(matrix(prompts), matrix(outputs).view(len(outputs), -1), V))


def entries(ids, counts):
    """Return the lists [(id, count), ...] of ids and counts [B, H], after a check of their form."""
    found = []
    for of_ids, of_counts in zip(ids.tolist(), counts.tolist(), strict=True):
        n = sum(x >= 0 for x in of_ids)
        assert all(x == -1 for x in of_ids[n:]) and not any(of_counts[n:])
        assert all(a < b for a, b in zip(of_ids[:n], of_ids[1:n]))
        found.append(list(zip(of_ids[:n], of_counts[:n], strict=True)))
    return found


class Engine:
    """Requests that come, go, are preempted and resumed, change places, and whose output is cut."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.running, self.waiting, self.seen = [], [], dict.fromkeys(self.events(), 0)

    def events(self):
        return [x for x in dir(self) if x.startswith("on_")]

    def tokens(self, most):
        return self.rng.integers(0, V + 2, self.rng.integers(0, most)).tolist()  # those from V on are pads

    def on_come(self):
        prompt = np.array([1, *self.tokens(6)], dtype=np.int32)
        taken = {x.name for x in self.running + self.waiting}
        free = [name for i in range(40) if (name := f"request {i}") not in taken]  # the names of those that left
        self.running.append(SimpleNamespace(name=free[0], prompt=prompt, output=[]))

    def on_leave(self):
        self.running.pop(self.rng.integers(len(self.running)))

    def on_preempt(self):
        self.waiting.append(self.running.pop(self.rng.integers(len(self.running))))

    def on_resume(self):
        self.running.append(self.waiting.pop(0)) if self.waiting else None

    def on_reorder(self):
        self.rng.shuffle(self.running)

    def on_cut(self):
        """Cut an output. In half of the calls other tokens follow the cut, so that the length may not show it."""
        cut = self.running[self.rng.integers(len(self.running))].output
        kept = self.rng.integers(len(cut) + 1)
        cut[kept:] = self.tokens(4) if self.rng.integers(2) else []

    def on_wait(self):
        """Append placeholders, as async scheduling does. They are replaced by tokens before a later step."""
        self.running[self.rng.integers(len(self.running))].output += [-1, -1]

    def step(self):
        for x in self.running:
            while x.output and x.output[-1] < 0:
                x.output.pop()
            x.output += self.tokens(5)
        named = str(self.rng.choice(self.events()))
        getattr(self, named)()
        self.seen[named] += 1
        if not self.running:
            self.on_come()


@pytest.mark.parametrize("seed", range(6))
def test_kept_lists_are_those_made_anew(seed):
    engine, kept, made = Engine(seed), histories.Histories(), 0
    engine.on_come()
    for _ in range(400):
        engine.step()
        names, prompts, outputs = zip(*((x.name, x.prompt, x.output) for x in engine.running), strict=True)
        before = {name: id(x) for name, x in kept.kept.items()}
        assert entries(*kept.lists(names, prompts, outputs, V)) == anew(prompts, outputs)
        assert list(kept.kept) == list(names)
        made += sum(before.get(name) != id(x) for name, x in kept.kept.items())
        stays = sum(len(x.output) for x in engine.running)
    assert min(engine.seen.values()) > 20 and stays
    assert 50 < made < 400  # most are extended


def test_a_list_is_extended_and_not_made_anew(monkeypatch):
    kept, prompt, output = histories.Histories(), np.array([4, 2]), [3, 3]
    kept.lists(["a"], [prompt], [output], V)
    monkeypatch.setattr(histories.Histories, "_made", None)
    output += [2, 30]
    assert entries(*kept.lists(["a"], [prompt], [output], V)) == [[(2, 1), (3, 2), (4, 0), (30, 1)]]
    assert entries(*kept.lists(["a"], [prompt], [[*output, -1, -1]], V)) == [[(2, 1), (3, 2), (4, 0), (30, 1)]]


def test_another_vocabulary_or_prompt_makes_a_list_anew():
    kept = histories.Histories()
    assert entries(*kept.lists(["a"], [np.array([4, 2])], [[5]], 5)) == [[(2, 0), (4, 0)]]
    assert entries(*kept.lists(["a"], [np.array([4, 2])], [[5]], 6)) == [[(2, 0), (4, 0), (5, 1)]]
    assert entries(*kept.lists(["a"], [np.array([4, 1])], [[5]], 6)) == [[(1, 0), (4, 0), (5, 1)]]
    assert kept.lists([], [], [], 6)[0].shape == (0, 0) and not kept.kept


def test_the_batch_is_read_where_the_runner_keeps_it():
    """Prompts end at their own lengths, and lists are dropped when no request has a penalty."""
    sampling = SimpleNamespace(no_penalties=False)
    batch = SimpleNamespace(sampling_metadata=sampling, req_ids=["a", "b"], num_prompt_tokens=[1, 2])
    batch.token_ids_cpu = np.array([[7, 8, 9], [7, 8, 9], [1, 1, 1]], dtype=np.int32)
    runner = SimpleNamespace(input_batch=batch)
    texts = histories.of_runner(runner)
    assert entries(*texts.lists([[8], []], V)) == [[(7, 0), (8, 1)], [(7, 0), (8, 0)]]
    batch.token_ids_cpu[0, 1:] = 5  # later tokens of the row
    kept = dict(runner.specdec_histories.kept)
    again = histories.of_runner(runner)
    again.lists([[8], []], V)
    assert runner.specdec_histories.kept["a"] is kept["a"]
    sampling.no_penalties = True
    assert histories.of_runner(runner) is None and runner.specdec_histories is None
