# SPDX-License-Identifier: Apache-2.0
"""The decode loop on tiny models: greedy output, joint distributions, ragged batches, ends, streaming, errors."""

import numpy as np
import pytest
import torch
from support import tiers, tiny

from specdec_kernels import testing
from specdec_kernels.decode import (
    HFModel,
    LeanLlama,
    LookupThenModel,
    ModelDrafter,
    PromptLookupDrafter,
    Request,
    adapt,
    generate,
    stream,
)

pytestmark = pytest.mark.usefixtures("one_thread")
KINDS = ["plain", "model", "adaptive", "lookup", "both", "auto"]


@pytest.fixture(scope="module")
def models():
    return tiny.served()


def drafter(kind, model):
    lookup, gamma = PromptLookupDrafter(5), "auto" if kind == "auto" else 3
    if kind in ("both", "auto"):
        return LookupThenModel(lookup, ModelDrafter(model, gamma))
    adaptive = ModelDrafter(model, "auto")
    return {"plain": None, "model": ModelDrafter(model, 3), "adaptive": adaptive, "lookup": lookup}[kind]


OTHERS = [("lean", 1), ("lean", 8), ("llama-hf", 3), ("gpt2", 3)]
SERVED = [("lean", 3), *(pytest.param(*x, marks=pytest.mark.thorough) for x in OTHERS)]


@pytest.mark.parametrize("name, batch", SERVED)
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_is_the_models_own(models, name, batch, kind):
    """8 requests, by default in batches of 3: slots are freed, moved and reused. Kills: a cache row kept for another
    request, a position off by one, a stale key that is attended to."""
    hf, target, draft = models[name]
    todo = tiny.requests()
    output = generate(target, todo, drafter(kind, draft), max_batch=batch)
    for request, result in zip(todo, output.results):
        assert result.tokens == tiny.greedy(hf, request.prompt, request.max_new_tokens)
        assert result.finished == "length"
    if kind in ("model", "both"):
        assert 0.2 < output.stats.alpha < 0.95 and output.stats.tokens_per_call > 1.2  # both outcomes occurred
    if kind == "plain":
        assert output.stats.tokens_per_call == 1


CASES = [("model", 1.0), ("both", 1.0)]
MORE = [("plain", 1.0), ("model", 0.6), ("lookup", 1.0)]
CASES += [pytest.param(*case, marks=pytest.mark.thorough) for case in MORE]


def three_tokens(kind, n, temperature=1.0, V=4):
    """Return the chi-square of the 3 tokens of n requests that differ in their seed only, against exact enumeration,
    and the statistics of the run.

    The draft is another random model, so its distribution is far from the target's.
    """
    hf, other = tiny.llama(3, V, 0.15), tiny.llama(4, V, 0.15)
    prompt = [1]  # lookup finds something once the 1 has occurred again
    drafters = {"lookup": PromptLookupDrafter(2, 2, 1), "plain": None, "model": ModelDrafter(adapt(other), 3)}
    drafters["both"] = LookupThenModel(drafters["lookup"], drafters["model"])
    todo = [Request(prompt, max_new_tokens=3, temperature=temperature, seed=i) for i in range(n)]
    output = generate(adapt(hf), todo, drafters[kind], max_batch=2000)
    tokens = np.array([r.tokens for r in output.results])
    return testing.check_tokens(tokens, testing.enumerate_law(tiny.laws(hf, prompt, temperature), 3)), output.stats


@pytest.mark.parametrize("kind, temperature", CASES)
@pytest.mark.slow
def test_joint_law_of_three_tokens(kind, temperature):
    """Through the whole loop, emitted tokens follow the target's joint distribution on V^3.

    With 10,000 draws (half as many below the tier `all`) over up to 64 cells, a bias of total variation 0.06, spread
    over the cells, is found 99 times in 100.
    """
    check, stats = three_tokens(kind, tiers.draws(10_000), temperature)
    assert check.passed, check
    assert check.cells > 25 and check.detects < tiers.shift(0.06), check
    assert kind == "plain" or 0.1 < stats.alpha < 0.9, stats  # some drafts are accepted and some rejected


def test_joint_law_finds_a_wrong_draft_law(monkeypatch):
    """Control of the test above: greedy drafts passed off as draws at temperature 1 are found."""
    import specdec_kernels as sk

    honest = sk.sample

    def liar(rows, **options):
        return honest(rows, **options)._replace(tokens=rows.logits.argmax(-1, keepdim=True))

    monkeypatch.setattr(sk, "sample", liar)
    assert not three_tokens("model", 4000)[0].passed


@pytest.mark.parametrize("kind", ["plain", "model", "lookup", "both"])
@pytest.mark.slow
def test_a_request_alone_and_in_a_batch(models, kind):
    """A request gets the same tokens alone and in a batch, in another slot, beside other parameters."""
    _, target, draft = models["lean"]
    todo = [
        Request(
            r.prompt,
            r.max_new_tokens,
            temperature=[0.0, 1.0, 0.7, 1.3][i % 4],
            top_k=[0, 5][i % 2],
            top_p=[1.0, 0.8, 1.0][i % 3],
            min_p=[0.0, 0.1][i // 4],
            top_n_sigma=[0.0, 0.0, 1.5][i % 3],
            seed=100 + i,
        )
        for i, r in enumerate(tiny.requests())
    ]
    alone = [generate(target, [r], drafter(kind, draft)).results[0].tokens for r in todo]
    together = generate(target, todo[::-1], drafter(kind, draft), max_batch=5).results
    assert alone == [r.tokens for r in together[::-1]]
    reseeded = (
        generate(target, [Request(todo[1].prompt, 15, temperature=1.0, seed=1)], drafter(kind, draft)).results[0].tokens
    )
    assert reseeded != alone[1]


def test_parameters_are_each_requests_own(models):
    """Beside a request at temperature 1, requests whose filter keeps one token give the greedy text, and so does one at
    temperature 0."""
    hf, target, draft = models["lean"]
    prompt = tiny.requests()[3].prompt
    variants = [dict(top_k=1), dict(top_p=1e-6), dict(min_p=1.0), dict(top_n_sigma=1e-6), dict(temperature=0.0)]
    todo = [Request(prompt, 20, **{"temperature": 1.0, **v}, seed=i) for i, v in enumerate([*variants, {}])]
    results = generate(target, todo, drafter("model", draft)).results
    expected = tiny.greedy(hf, prompt, 20)
    assert [r.tokens == expected for r in results] == [True] * 5 + [False]


@pytest.mark.parametrize("kind", KINDS)
def test_ends_at_eos(models, kind):
    """EOS inside an accepted draft: later tokens of the step are dropped, and the request ends."""
    hf, target, draft = models["lean"]
    todo = []
    for request in tiny.requests():
        tokens = tiny.greedy(hf, request.prompt, request.max_new_tokens)
        todo.append(Request(request.prompt, request.max_new_tokens, eos=(tokens[7], 31)))
    results = generate(target, todo, drafter(kind, draft), max_batch=4).results
    for request, result in zip(todo, results):
        whole = tiny.greedy(hf, request.prompt, request.max_new_tokens)
        end = min(whole.index(e) for e in request.eos if e in whole)
        assert result.tokens == whole[: end + 1] and result.finished == "eos" and end <= 7


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [1, 2, 5])
@pytest.mark.slow
def test_max_new_tokens(models, kind, tokens):
    hf, target, draft = models["lean"]
    for result, request in zip(generate(target, todo := tiny.requests(), drafter(kind, draft)).results, todo):
        assert len(result.tokens) == request.max_new_tokens
    short = [Request(r.prompt, tokens) for r in todo]
    output = generate(target, short, drafter(kind, draft))
    assert [r.tokens for r in output.results] == [tiny.greedy(hf, r.prompt, tokens) for r in short]
    assert output.stats.new_tokens == 8 * tokens == sum(r.stats.new_tokens for r in output.results)


@pytest.mark.parametrize("kind", ["plain", "both"])
def test_streaming(models, kind):
    """A request's events, in order, are its tokens and its text. The last one gives the reason of the end, and none
    follows."""
    _, target, draft = models["lean"]
    tokenizer, seen = tiny.Letters(), {}
    todo = tiny.requests(temperature=1.0)
    output = generate(
        target,
        todo,
        drafter(kind, draft),
        tokenizer=tokenizer,
        max_batch=3,
        on_event=lambda e: seen.setdefault(e.index, []).append(e),
    )
    for i, result in enumerate(output.results):
        events = seen[i]
        assert [t for e in events for t in e.tokens] == result.tokens and all(e.tokens for e in events)
        assert "".join(e.text for e in events) == result.text == tokenizer.decode(result.tokens)
        assert [e.finished for e in events] == [None] * (len(events) - 1) + ["length"]
    first = next(stream(target, todo, drafter(kind, draft)))
    assert first.tokens and first.finished is None  # tokens arrive before the requests end


def test_text_waits_for_whole_characters():
    from specdec_kernels.decode.text import TextStream

    text = TextStream(tiny.Letters())
    assert [text.push(t)[0] for t in (3, 1, 2, 4)] == ["a", "", "\u00e9", "b"]
    text.push(1)
    assert text.flush() == "\ufffd"  # half a character at the very end becomes U+FFFD


def test_stop_strings(models):
    """The text ends before the stop string, and no part of the string is streamed, whatever the drafter."""
    hf, target, draft = models["lean"]
    tokenizer, found = tiny.Letters(), []
    for request in tiny.requests():
        whole = tokenizer.decode(tiny.greedy(hf, request.prompt, 40))
        found += [
            (request, whole, i)
            for i in range(4, 37)
            if whole.find(whole[i : i + 3]) == i and "\ufffd" not in whole[i : i + 3]
        ]
    request, whole, i = found[0]
    stop = whole[i : i + 3]
    for kind in KINDS:
        pieces = []
        asked = Request(request.prompt, 40, stop=("zzzzzz", stop))
        result = generate(
            target, [asked], drafter(kind, draft), tokenizer=tokenizer, on_event=lambda e: pieces.append(e.text)
        ).results[0]
        assert result.finished == "stop" and result.text == "".join(pieces) == whole[: whole.find(stop)]
    with pytest.raises(ValueError, match="stop strings need a tokenizer"):
        generate(target, [asked])


def test_statistics_add_up(models):
    _, target, draft = models["lean"]
    output = generate(target, tiny.requests(temperature=1.0), drafter("both", draft), max_batch=4)
    total, each = output.stats, [r.stats for r in output.results]
    for name in ("new_tokens", "rows", "drafted", "tested", "accepted"):
        assert getattr(total, name) == sum(getattr(s, name) for s in each), name
    assert total.accepted <= total.tested <= total.drafted == sum(g * n for g, n in total.widths.items())
    assert total.rows == sum(total.widths.values()) and total.target_calls < total.rows
    assert total.rows <= total.new_tokens <= total.rows + total.accepted  # an end may cut a step short
    for name in ("draft_seconds", "target_seconds", "verify_seconds"):
        assert getattr(total, name) == pytest.approx(sum(getattr(s, name) for s in each)) and getattr(total, name) > 0
    assert total.draft_seconds + total.target_seconds + total.verify_seconds + total.prefill_seconds < total.seconds
    assert total.status == 0


@pytest.mark.slow
def test_draft_vocabulary_of_another_size():
    """A draft with fewer or more output rows than the target (padded vocabularies) changes no greedy token."""
    hf, todo = tiny.llama(0), tiny.requests()
    expected = [tiny.greedy(hf, r.prompt, r.max_new_tokens) for r in todo]
    for vocab in (24, 40):
        draft = adapt(tiny.llama(6, vocab))
        output = generate(adapt(hf), todo, drafter("model", draft))
        assert [r.tokens for r in output.results] == expected
        hot = [Request(r.prompt, r.max_new_tokens, temperature=1.0) for r in todo]
        assert all(0 <= t < 32 for r in generate(adapt(hf), hot, drafter("both", draft)).results for t in r.tokens)


def test_lookup_prefers_the_longest_and_latest_match():
    from specdec_kernels.decode.sequence import Batch, Sequence

    def propose(tokens, gamma=3, **options):
        drafter = PromptLookupDrafter(gamma, **options)
        drafter.begin(1, 100)
        sequence = Sequence(0, Request(tokens))
        drafter.admit(0, sequence)
        draft = drafter.propose(Batch([sequence]))
        return None if draft is None else draft.tokens[0].tolist()

    assert propose([1, 2, 3, 9, 9, 2, 3, 8, 8, 1, 2, 3]) == [9, 9, 2]  # three tokens match at the start, two later
    assert propose([2, 3, 7, 7, 2, 3, 8, 8, 1, 2, 3]) == [8, 8, 1]  # the later of two matches of two tokens
    assert propose([1, 2, 3, 4, 5]) is None
    assert propose([1, 2, 3, 4, 2], min_ngram=2) is None and propose([1, 2, 3, 4, 2], min_ngram=1) == [3, 4, 2]
    assert propose([5, 6, 5, 6], gamma=5) == [5, 6, 5, 6, 5]  # a match that reaches the end repeats
    assert (
        propose([1, 2, 1, 2], gamma=100)[:3] == [1, 2, 1] and len(propose([1, 2, 1, 2], gamma=100)) == 63
    )  # max_new_tokens - 1


def test_lean_forward_is_the_models_own():
    """Ragged passes over one cache against the whole sequence at once, in float32."""
    hf = tiny.llama(7)
    lean = LeanLlama.from_hf(hf)
    ids = torch.randint(0, 32, (3, 40), generator=torch.Generator().manual_seed(0))
    cache = lean.new_cache(4, 64)
    with torch.inference_mode():
        expected = hf(ids).logits
    assert torch.allclose(lean.forward(ids[:, :30], [0, 0, 0], cache, slot=1), expected[:, :30], atol=1e-4)
    start = [30, 27, 22]  # two rows roll back before they go on
    rows = torch.stack([ids[i, s : s + 8] for i, s in enumerate(start)])
    logits = lean.forward(rows, start, cache, slot=1)
    picked = lean.forward(rows, start, cache, slot=1, keep=[7, 0, 3])
    for i, s in enumerate(start):
        assert torch.allclose(logits[i], expected[i, s : s + 8], atol=1e-4)
        assert torch.allclose(picked[i], logits[i, [7, 0, 3][i]], atol=1e-5)


@pytest.mark.parametrize("served", ["lean", "gpt2"])
def test_a_pass_over_tokens_that_are_there(served):
    """Negative ids are padding. They change neither the other rows of the pass nor the passes after it."""
    _, model, _ = tiny.served()[served]
    ids = torch.randint(0, 32, (3, 12), generator=torch.Generator().manual_seed(0))
    lengths = [5, 1, 3]
    there = torch.arange(5) < torch.tensor(lengths)[:, None]
    alone, together = (model.new_cache(3, 16) for _ in range(2))
    for cache in alone, together:
        model.forward(ids[:, :4], [0, 0, 0], cache, keep=None)
    rows = [model.forward(ids[i : i + 1, 4 : 4 + k], [4], alone, i)[0] for i, k in enumerate(lengths)]
    padded = ids[:, 4:9].masked_fill(~there, -1)
    assert torch.allclose(model.forward(padded, [4] * 3, together, keep="present"), torch.cat(rows), atol=1e-4)
    assert torch.allclose(model.forward(padded, [4] * 3, together)[there], torch.cat(rows), atol=1e-4)
    last = model.forward(padded, [4] * 3, together, keep=[k - 1 for k in lengths])
    assert torch.allclose(last, torch.stack([row[-1] for row in rows]), atol=1e-4)
    start = [4 + k for k in lengths]
    behind = [model.forward(ids[i : i + 1, 9:11], start[i : i + 1], alone, i)[0] for i in range(3)]
    assert torch.allclose(model.forward(ids[:, 9:11], start, together), torch.stack(behind), atol=1e-4)


def test_errors(models):
    _, target, draft = models["lean"]
    ok = tiny.requests()[0]
    for make, message in [
        (lambda: Request([]), "prompt must have at least one token"),
        (lambda: Request([1], max_new_tokens=0), "max_new_tokens must be >= 1, got 0"),
        (lambda: Request([1], temperature=-0.5), r"temperature must be finite in float32 and >= 0, got -0.5"),
        (lambda: Request([1], top_p=0.0), r"top_p must be in \(0, 1\], got 0.0"),
        (lambda: Request([1], min_p=1.5), r"min_p must be in \[0, 1\], got 1.5"),
        (lambda: Request([1], top_k=-2), "top_k must be >= 1 and below .*, got -2"),
        (lambda: ModelDrafter(draft, 0), 'ModelDrafter: gamma must be an integer >= 1 or "auto", got 0'),
        (lambda: ModelDrafter(draft, "fast"), "gamma must be an integer >= 1 or \"auto\", got 'fast'"),
        (lambda: PromptLookupDrafter(3, max_ngram=1), "min_ngram <= max_ngram, got 2 and 1"),
        (lambda: generate(target, []), "requests must not be empty"),
        (lambda: generate(target, [ok], max_batch=0), "max_batch must be >= 1, got 0"),
        (lambda: generate(target, [ok, Request([3, 32])]), r"prompt ids must lie in \[0, V=32\), request 1 has 32"),
        (lambda: generate(target, [Request([1] * 500, 20)]), "fit the model's 512 positions, request 0 needs 520"),
    ]:
        with pytest.raises(ValueError, match=message):
            make()


def test_models_that_forget_are_refused():
    """A model with a sliding window is refused with a clear error, since it would need another cache."""
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=16,
    )
    with pytest.raises(ValueError, match="must have full attention in every layer, got sliding_window=16"):
        HFModel(MistralForCausalLM(config))
