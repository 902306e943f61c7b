# SPDX-License-Identifier: Apache-2.0
"""Measure the share of draft tokens that the decode loop accepts, by their position in a draft.

A draft token is tested if all before it in its draft were accepted. All draft models are measured on the same prompts,
seeds and lengths. The texts still differ, since draft models draw different tokens.
"""

from demo.draft.recipe.evaluate import humaneval_prompts, mean_and_error
from specdec_kernels import decode


class Counting(decode.ModelDrafter):
    """A ModelDrafter that records whether each tested draft token was accepted: found[request][position], 0 or 1."""

    def __init__(self, model, gamma, requests):
        super().__init__(model, gamma)
        self.found = [[[] for _ in range(gamma)] for _ in range(requests)]

    def propose(self, batch):
        self.indices = [s.index for s in batch]
        return super().propose(batch)

    def observe(self, outcome):
        for index, tested, accepted in zip(self.indices, outcome.tested, outcome.accepted):
            for position in range(tested):
                self.found[index][position].append(int(position < accepted))
        super().observe(outcome)


def measure(target, draft, prompts, tokens=64, gamma=4, temperature=1.0, batch=8, seed=0):
    """Return (mean, standard error) over all positions, then of each. prompts: token ids. No text ends early."""
    requests = [decode.Request(p, tokens, temperature=temperature, seed=1000 * seed + i) for i, p in enumerate(prompts)]
    drafter = Counting(draft, gamma, len(requests))
    decode.generate(target, requests, drafter, max_batch=batch).check()
    whole = [sum(own, []) for own in drafter.found]
    return [mean_and_error(x) for x in (whole, *zip(*drafter.found))]


def code_prompts(tokenizer, every=3):
    """Return every third HumanEval prompt (55). None of them is in the training text."""
    return [tokenizer(text)["input_ids"] for text in humaneval_prompts()[::every]]


def report(folders, found):
    lines = ["| accepted / tested | all | " + " | ".join(f"position {k}" for k in range(1, len(found[0]))) + " |"]
    lines.append("|---" * (1 + len(found[0])) + "|")
    for folder, row in zip(folders, found):
        lines.append(f"| {folder} | " + " | ".join(f"{mean:.3f} ± {error:.3f}" for mean, error in row) + " |")
    return "\n".join(lines)
