# SPDX-License-Identifier: Apache-2.0
"""The plugin in vLLM itself, on the CPU: the tests of `make test-vllm`, in the environment that vllm_cpu.sh makes.

SPECDEC_TEST_VLLM names that environment's folder. Without the plugin vLLM 0.32 accepts 16 of 708 drafts of the target
itself on the CPU, and its text is garbage: it expands the sampling parameters into memory that nothing writes
(docs/vllm.md).
"""

import ast
import json
import os
from collections import Counter

import pytest
import torch
from support.vllm_engine import FOLDER, NGRAM, PROMPTS, SEEDS, call, checked, draft, engine, law_of, near, projected
from transformers import AutoTokenizer

from specdec_kernels import testing
from specdec_kernels.integrations.vllm import known

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif("SPECDEC_TEST_VLLM" not in os.environ, reason="SPECDEC_TEST_VLLM names no environment"),
]


def test_a_draft_with_the_targets_law_is_kept():
    """Drafts of the target itself have p = q: all are accepted except where rounding differs, also with top-k and top-p
    and with block verification. A request with a seed repeats, alone and among others."""
    calls = [
        call(temperature=1.0),
        call(temperature=1.0),
        call(temperature=0.8, top_k=50, top_p=0.9),
        call(prompts=PROMPTS[2:3], seeds=SEEDS[2:3], temperature=1.0),
        call(seeds=None, temperature=1.0, logprobs=2),
    ]
    (token, block), log = engine(
        (draft("target"), calls), (draft("target", rejection_sample_method="block"), calls[:3])
    )
    assert "verifies for vLLM: RejectionSampler.__init__, RejectionSampler.forward" in log
    for answer in (token, block):
        assert answer["accepted"] > 0.98 * answer["drafted"] > 200
        assert answer["tokens"][0] == answer["tokens"][1]
    assert near(token["tokens"][3] + [[]], [token["tokens"][0][2], []])
    assert all(len(ranks) == 48 and min(ranks) == 1 for ranks in token["ranks"][4])


def test_greedy_text_is_that_of_no_drafts():
    calls = [call(seeds=None, temperature=0.0)]
    (plain, ngram, small), _ = engine((None, calls), (NGRAM, calls), (draft("draft"), calls))
    assert near(ngram["tokens"][0], plain["tokens"][0]) and near(small["tokens"][0], plain["tokens"][0])
    assert ngram["accepted"] > 0 and small["drafted"] > 0


def test_min_p_and_bias_under_speculation():
    """vLLM refuses min-p and a bias with speculation; the plugin serves them. Drafts of the target itself are accepted
    under min-p, and a bias gives the text of plain decoding."""
    biased = call(seeds=None, temperature=0.0, logit_bias={"198": -100.0, "28": 3.0})
    calls = [biased, call(seeds=None, temperature=0.0)]
    sampled = [call(temperature=1.0, min_p=0.1, logprobs=2)]
    (plain, greedy, drafted), _ = engine((None, calls), (draft("target"), calls), (draft("target"), sampled))
    assert near(greedy["tokens"][0], plain["tokens"][0]) and not near(plain["tokens"][0], plain["tokens"][1])
    assert drafted["accepted"] > 0.98 * drafted["drafted"] > 100
    assert all(len(ranks) == 48 and min(ranks) == 1 for ranks in drafted["ranks"][0])


def test_prompt_lookup_and_processors_at_temperature_one():
    """With one-hot drafts, requests with penalties, banned words and a minimum length repeat their tokens with the same
    seeds."""
    banned = call(temperature=1.0, repetition_penalty=1.2, min_tokens=40, bad_words=[" the"])
    (answer,), _ = engine((NGRAM, [call(temperature=1.0), banned, banned]), processes="0")
    assert answer["tokens"][1] == answer["tokens"][2]
    assert answer["drafted"] > 0


def test_requests_of_one_batch_that_ask_for_different_things():
    """One greedy request and three that sample differently, one of them with logprobs: each gets the same as alone."""
    each = [
        {"temperature": 0.0},
        {"temperature": 0.7, "top_k": 40},
        {"temperature": 1.0, "logprobs": 2},
        {"temperature": 1.3, "top_p": 0.9, "min_p": 0.02},
    ]
    each = [x | {"max_tokens": 32} for x in each]
    together = call() | {"sampling": each}
    alone = [call([PROMPTS[i]], [SEEDS[i]]) | {"sampling": each[i]} for i in range(4)]
    (answer,), _ = engine((draft("draft"), [together, *alone]))
    assert near(answer["tokens"][0], [x for (x,) in answer["tokens"][1:]])
    (ranks,) = answer["ranks"][0]
    assert len(ranks) == 32 and min(ranks) == 1 and answer["ranks"][3] == [ranks]


def test_a_grammar_under_speculation():
    """The grammar's mask is in the rows before verification: drafts outside it are rejected."""
    colours = ["red", "green", "blue"]
    schema = {"type": "array", "items": {"enum": colours}, "minItems": 3, "maxItems": 3}
    asked = {"structured_outputs": {"json": schema}, "ignore_eos": False, "temperature": 1.0, "max_tokens": 80}
    (answer,), _ = engine((draft("draft"), [call() | {"sampling": asked}]))
    for text in answer["texts"][0]:
        assert set(json.loads(text)) <= set(colours) and len(json.loads(text)) == 3


def test_the_law_of_tokens_behind_drafts():
    """20,000 completions of three tokens. Tokens 2 and 3, which come from verification, and their pair follow the
    target exactly, with the token method and with block verification. A shift of two hundredths of the pair's mass is
    detected. SmolLM2 has its first 4 and first 2 layers here, so that the test takes minutes."""
    N, prompt, asked = 20_000, [504], {"temperature": 1.5, "top_k": 5}
    exact = law_of(prompt, 3, **asked)
    sampling = asked | {"max_tokens": 3, "detokenize": False}
    calls = [{"prompts": [{"prompt_token_ids": prompt}] * N, "sampling": sampling}]
    drafts = [draft("shallower", num_speculative_tokens=2, rejection_sample_method=x) for x in ("standard", "block")]
    answers, _ = engine(*((x, calls) for x in drafts), target="shallow", requests=64)
    for answer in answers:
        assert 0.1 < answer["accepted"] / answer["drafted"] < 0.9, "not a test of both outcomes"
        seen, found = checked(answer["tokens"][0], exact, "after drafts")
        law = projected(exact, [1, 2])
        assert found.cells >= 20
        (first, mass), (second, _) = law.most_common(2)
        shifted = law | {first: law[first] - 0.02, second: law[second] + 0.02}
        assert mass > 0.04 and not testing.check_counts(seen, shifted).passed


def second_token(prompt, allowed, asked, biased):
    """Return the distribution of the second token under a grammar: the target's or, if biased, that of tokens drawn
    from p where the grammar cut the draft."""
    law = Counter()
    for (first,), mass in law_of(prompt, 1, **asked, allowed=allowed).items():
        p = {x: m for (x,), m in law_of([*prompt, first], 1, **asked, allowed=allowed).items()}
        q = {x: m for (x,), m in law_of([*prompt, first], 1, **asked, name="shallower").items()}
        left = {x: max(m - q.get(x, 0.0), 0.0) for x, m in p.items()}
        rejected = sum(max(m - p.get(x, 0.0), 0.0) for x, m in q.items() if allowed[x])
        cut = sum(m for x, m in q.items() if not allowed[x])
        for x, m in p.items():
            drawn = min(m, q.get(x, 0.0)) + rejected * left[x] / sum(left.values()) + cut * m
            law[x] += mass * (drawn if biased else m)
    return law


def test_the_law_of_tokens_under_a_grammar():
    """4,000 completions under a grammar that allows commas, full stops and spaces, and cuts a fifth of the drafts.

    Tokens 2 and 3 and their pair follow the target exactly. The distribution of tokens drawn from p at a cut, .07 away,
    is rejected.
    """
    N, prompt, asked = 4000, [504], {"temperature": 1.5, "top_k": 5}
    tokenizer = AutoTokenizer.from_pretrained(FOLDER / "models" / "target")
    text = [tokenizer.decode([i]) for i in range(len(tokenizer))]
    allowed = torch.tensor([0 < len(t) and set(t) <= set(",. ") for t in text])
    sampling = asked | {"max_tokens": 3, "structured_outputs": {"regex": "[,. ]{40}"}}
    calls = [{"prompts": [{"prompt_token_ids": prompt}] * N, "sampling": sampling}]
    (answer,), _ = engine((draft("shallower", num_speculative_tokens=2), calls), target="shallow", requests=64)
    exact = law_of(prompt, 3, **asked, allowed=allowed)
    checked(answer["tokens"][0], exact, "under a grammar")
    seen = Counter(ids[1] for ids in answer["tokens"][0])
    for biased in (False, True):
        law = second_token(prompt, allowed, asked, biased)
        assert testing.check_counts(seen, law).passed != biased


def test_spellings_and_an_engine_that_does_not_speculate():
    calls = [call(PROMPTS[:1], None, temperature=0.0, max_tokens=4)]
    for on in ("True", "maybe"):
        _, log = engine((None, calls), on=on, processes="0")
        assert ("is on, but this engine does not speculate" in log) == (on == "True")
        assert ("SPECDEC_VLLM='maybe' is none of 1, true, yes, on" in log) == (on == "maybe")


def test_off_without_the_variable():
    (answer,), log = engine((NGRAM, [call(temperature=0.0)]), on="0")
    assert "specdec_kernels" not in log and answer["tokens"]


def parameters(root, module, name):
    """Return the names of the parameters of the function with this name, defined in this module or imported."""
    path = root / module.replace(".", "/")
    tree = ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text())
    for x in tree.body:
        if isinstance(x, ast.ImportFrom) and name in (alias.name for alias in x.names):
            return parameters(root, x.module, name)
    for part in name.split("."):
        tree = next(x for x in tree.body if getattr(x, "name", None) == part)
    every = tree.args
    assert not every.vararg and not every.kwarg
    return " ".join(x.arg for x in every.posonlyargs + every.args + every.kwonlyargs if x.arg != "cls")


@pytest.mark.parametrize("version", known.VERSIONS)
def test_the_functions_that_are_replaced_are_those_that_are_known(version):
    """The functions that the plugin replaces have known parameters, also in a version that cannot run here: its source
    is parsed, not imported."""
    run, read = next((FOLDER / "lib").glob("python3*/site-packages")), FOLDER / f"vllm-{version}"
    root = read if read.is_dir() else run
    seen = set()
    for (module, name), forms in known.PARAMETERS.items():
        came = parameters(root, module, name)
        assert came in forms, (module, name)
        seen.add(forms.index(came))
    assert 0 in seen
    if root == run:
        assert next(run.glob("vllm_cpu-*.dist-info")).name.startswith(f"vllm_cpu-{version}.")


# attributes of vLLM's objects that the plugin reads, by the file that sets them
ATTRIBUTES = {
    "v1/worker/gpu_model_runner.py": ["self._draft_token_ids", "self._draft_probs", "self._draft_prob_req_ids",
                                      "self.discard_request_mask.np", "self.query_start_loc", "self.positions"],
    "v1/sample/logits_processor/builtin.py": ["self.biases: dict[int, dict[int, float]]", "self.min_p_count: int",
                                              "self.min_toks: dict[int, tuple[int, Sequence[int], set[int], bool]]"],
    "v1/sample/thinking_budget_state.py": ["logits.index_put_((active_indices, force_tokens), fill)",
                                           "def has_tracked_requests(self)"],
    "v1/metrics/loggers.py": ["self.per_engine_labelvalues: dict[int, list[object]]"],
    "v1/worker/gpu/states.py": ["self.draft_tokens =", "self.prefill_len ="],
    "v1/worker/gpu/sample/sampler.py": ["self.req_states = req_states"],
    "v1/worker/gpu/input_batch.py": ["num_draft_tokens: int", "req_ids: list[str]"],
    "v1/worker/gpu/spec_decode/speculator.py": ["self.draft_logits"],
}  # fmt: skip


@pytest.mark.parametrize("version", known.VERSIONS)
def test_what_is_read_of_vllms_objects(version):
    run, read = next((FOLDER / "lib").glob("python3*/site-packages")), FOLDER / f"vllm-{version}"
    root = read if read.is_dir() else run
    for name, texts in ATTRIBUTES.items():
        source = (root / "vllm" / name).read_text()
        assert not [text for text in texts if text not in source], name
