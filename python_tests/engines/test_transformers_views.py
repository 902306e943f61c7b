# SPDX-License-Identifier: Apache-2.0
"""custom_generate=speculative with processors that change logits and criteria that end texts: greedy tokens are those
of plain generate, which runs the processors itself."""

import copy
import itertools
import math
import time

import pytest
import torch
from support import tiers, tiny
from support.tokenizers import MAKE
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM
from transformers.generation import (
    LogitsProcessorList,
    MaxTimeCriteria,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    StoppingCriteriaList,
    StopStringCriteria,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
)

from specdec_kernels import testing
from specdec_kernels.decode import ModelDrafter, Output, PromptLookupDrafter, TokenCascade, TreeDrafter, adapt
from specdec_kernels.integrations.transformers import processors, speculative

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.slow]
PAD, NEW = 31, 20


@pytest.fixture(scope="module")
def pair():
    return tiny.llama(0), tiny.nearby(tiny.llama(0))


def inputs(n=4, **more):
    """Return prompts of different lengths, padded on the left."""
    prompts = [request.prompt for request in tiny.requests(n)]
    width = max(map(len, prompts))
    ids = torch.tensor([[PAD] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    same = {"pad_token_id": PAD, "eos_token_id": None, "do_sample": False, "max_new_tokens": NEW}
    return {"input_ids": ids, "attention_mask": mask} | same | more


def drafter(kind, draft):
    served = adapt(draft, lean=False, pack=False)
    return {
        "none": None,
        "chain": ModelDrafter(served, 3),
        "lookup": PromptLookupDrafter(4, 2, 1),
        "tree": TreeDrafter(served, "target_only", shape=(2, 2)),
    }[kind]


def odd_after_even(batch_id, ids):
    """After an even id the odd ones may follow, after an odd one the even ones, and batch_id after any."""
    return [v for v in range(32) if (v + int(ids[-1])) % 2 or v == batch_id]


FREE = tiny.greedy(tiny.llama(0), tiny.requests(1)[0].prompt, NEW)
VIEWS = {  # name -> arguments of generate
    "repetition": dict(repetition_penalty=1.4),
    "bias": dict(sequence_bias=[[[FREE[2]], -3.0], [[9], 1.5]], repetition_penalty=1.2),
    "bias of words": dict(sequence_bias=[[[FREE[2]], -1.0], [FREE[4:6], -math.inf]]),
    "words": dict(bad_words_ids=[[FREE[1]], [FREE[5]]]),
    "long words": dict(bad_words_ids=[[FREE[1]], FREE[4:6], FREE[7:10], [31, 5]]),
    "ngrams": dict(no_repeat_ngram_size=2),
    "ngrams of 1": dict(no_repeat_ngram_size=1, max_new_tokens=8),
    "min length": dict(min_length=26, eos_token_id=FREE[1:4]),
    "min new tokens": dict(min_new_tokens=9, eos_token_id=FREE[1:4]),
    "min of all": dict(min_new_tokens=90, eos_token_id=FREE[1:4]),
    "suppressed": dict(suppress_tokens=[FREE[0], FREE[3], 99, -1]),
    "suppressed first": dict(begin_suppress_tokens=[FREE[0], 3]),
    "forced end": dict(forced_eos_token_id=7, eos_token_id=7, min_new_tokens=90),
    "forced in spite of words": dict(forced_eos_token_id=7, bad_words_ids=[[7], [FREE[1]]]),
    "prefix": dict(prefix_allowed_tokens_fn=odd_after_even),
    "prefix and others": dict(prefix_allowed_tokens_fn=odd_after_even, suppress_tokens=[*range(0, 30)]),
    "all": dict(
        repetition_penalty=1.3,
        sequence_bias=[[[5], 1.0]],
        no_repeat_ngram_size=3,
        bad_words_ids=[[FREE[2], FREE[3]], [4]],
        min_new_tokens=6,
        eos_token_id=[FREE[1], 2],
        suppress_tokens=[1],
        forced_eos_token_id=2,
    ),
}


@pytest.mark.parametrize("name, kind", tiers.in_turn(VIEWS, ["none", "chain", "lookup", "tree"]))
def test_greedy_is_plain_generate(pair, name, kind):
    model, draft = pair
    given = inputs(**VIEWS[name])
    plain = model.generate(**given)
    ours = Output()
    got = model.generate(**given, custom_generate=speculative, drafter=drafter(kind, draft), output=ours)
    assert torch.equal(got, plain), name
    assert not torch.equal(got, model.generate(**inputs())), name  # the processors do something
    assert kind in ("none", "lookup") or ours.stats.accepted > 3 or name in ("ngrams of 1", "prefix and others")


def qwen(seed, V, spread):
    """Return a tiny model with Qwen2.5's generation_config.json (the ids are the model's own), and a draft."""
    torch.manual_seed(seed)
    shape = dict(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
    )
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=V, initializer_range=spread, **shape)).eval().requires_grad_(False)
    draft = tiny.nearby(copy.deepcopy(model), 0.05)
    model.generation_config = GenerationConfig(
        bos_token_id=0, pad_token_id=0, eos_token_id=[6, 7], do_sample=True, repetition_penalty=1.05, temperature=0.7,
        top_p=0.8, top_k=20,
    )  # fmt: skip
    return model, draft


@pytest.mark.parametrize("kind", ["chain", *(pytest.param(x, marks=pytest.mark.thorough) for x in ("none", "tree"))])
def test_qwens_published_configuration(kind):
    """Greedy rows, where the penalty changes the text, and the distribution of sampled ones."""
    ids = torch.tensor([[2, 3, 4, 2, 3]])
    model, draft = qwen(2, 48, 0.3)
    greedy = dict(do_sample=False, temperature=None, top_p=None, top_k=None, max_new_tokens=24)
    plain = model.generate(ids, **greedy)
    how = dict(custom_generate=speculative, drafter=drafter(kind, draft))
    assert torch.equal(model.generate(ids, **greedy, **how), plain)
    assert not torch.equal(plain, model.generate(ids, **greedy, repetition_penalty=1.0))
    model, draft = qwen(9, 8, 0.15)
    how = dict(custom_generate=speculative, drafter=drafter(kind, draft))
    n = tiers.draws(3000)
    got = model.generate(ids, max_new_tokens=2, num_return_sequences=n, seed=3, **how)[:, 5:]

    def law(prefix):
        if prefix and prefix[-1] in (6, 7):
            return (torch.arange(8) == 0).double().numpy()  # padding
        text = ids[0].tolist() + list(prefix)
        with torch.inference_mode():
            z = model(torch.tensor([text])).logits[0, -1].double()
        seen = torch.isin(torch.arange(8), torch.tensor(text))
        z = torch.where(seen, torch.where(z < 0, z * 1.05, z / 1.05), z) / 0.7
        p, order = torch.softmax(z, -1).sort(descending=True)
        kept = p.cumsum(0) - p < 0.8
        return torch.zeros(8, dtype=torch.float64).scatter(0, order[kept], p[kept] / p[kept].sum()).numpy()

    check = testing.check_tokens(got.numpy(), testing.enumerate_law(law, 2))
    assert check.passed and check.cells > 5 and check.detects < tiers.shift(0.09), check


def test_rows_of_one_prompt(pair):
    """With num_return_sequences the function of prefixes gets the prompt's number, and rows keep their padding."""
    model, draft = pair
    seen = set()

    def watching(batch_id, ids):
        seen.add(batch_id)
        return odd_after_even(batch_id, ids)

    given = inputs(2, prefix_allowed_tokens_fn=watching, do_sample=True, num_return_sequences=3, repetition_penalty=1.2)
    got = model.generate(**given, custom_generate=speculative, drafter=drafter("chain", draft), seed=2)
    width, rows = given["input_ids"].size(1), got.tolist()
    assert seen == {0, 1} and len(rows) == 6
    for b, row in enumerate(rows):
        for i in range(width, len(row)):
            assert row[i] in odd_after_even(b // 3, row[:i])


def fields(given, prompt=2, most=20, eos=(7,)):
    """Return the fields of the request that these processors make."""
    ids = torch.zeros(1, prompt, dtype=torch.int64)
    ends = {"max_new_tokens": most, "eos": eos}
    return processors.parameters("generate", LogitsProcessorList(given), False, ids, 32, ends, None)(0)


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))], ids=str)
def test_a_forbidden_id_stays_forbidden(order):
    """A forbidden id stays forbidden whatever bias another processor gives it, as when transformers adds them one after
    another."""
    every = (
        SuppressTokensLogitsProcessor([5], device="cpu"),
        SequenceBiasLogitsProcessor({(5,): 2.0, (6,): 1.5}),
        NoBadWordsLogitsProcessor([[4]]),
    )
    given = [every[i] for i in order]
    scores = LogitsProcessorList(given)(torch.zeros(1, 3, dtype=torch.int64), torch.zeros(1, 32))[0]
    assert fields(given)["logit_bias"] == {v: x for v, x in enumerate(scores.tolist()) if x}


@pytest.mark.parametrize("skipped", [0, 2, 5])
@pytest.mark.parametrize("least", [0, 3, 9])
def test_min_new_tokens_from_any_start(skipped, least):
    """prompt_length_to_skip need not be the prompt's length."""
    given = MinNewTokensLengthLogitsProcessor(skipped, least, 7, device="cpu")
    early = [
        n for n in range(20) if given(torch.zeros(1, 2 + n, dtype=torch.int64), torch.zeros(1, 32))[0, 7] == -math.inf
    ]
    assert early == [*range(fields([given]).get("min_tokens", 0))]


def test_stop_string_criteria(pair):
    """Rows end as in plain generate, after the token that completes a string, and others go on."""
    tokenizer = MAKE["byte_level"]()
    model = tiny.llama(0, vocab=len(tokenizer))
    draft = tiny.nearby(tiny.llama(0, vocab=len(tokenizer)))
    given = inputs(3, eos_token_id=len(tokenizer) - 1)  # without one, plain generate does not pad rows that have ended
    free = model.generate(**given)[:, given["input_ids"].size(1) :]
    ascii_at = next(i for i in range(3, NEW) if tokenizer.decode(free[0, i]).isascii())
    stop = [tokenizer.decode(free[0, ascii_at]), tokenizer.decode(free[1, 6:8])]
    criteria = lambda: StoppingCriteriaList([StopStringCriteria(tokenizer, stop)])
    plain = model.generate(**given, stopping_criteria=criteria())
    assert not torch.equal(plain[:, -free.size(1) :], free)
    for kind in ("none", "chain", "tree"):
        output = Output()
        how = dict(custom_generate=speculative, drafter=drafter(kind, draft), max_batch=2, output=output)
        assert torch.equal(model.generate(**given, stopping_criteria=criteria(), **how), plain), kind
        for result, row in zip(output.results, plain[:, given["input_ids"].size(1) :].tolist()):
            n = len(result.tokens)
            assert n == len(result.drafted) == result.stats.new_tokens
            assert result.tokens == row[:n] and {*row[n:]} <= {PAD}


def test_max_time(pair):
    """The call ends after the step in which the time is over, with the tokens that it has."""
    model, draft = pair
    given = inputs(max_new_tokens=400)
    began = time.time()
    how = dict(custom_generate=speculative, drafter=drafter("chain", draft))
    got = model.generate(**given, max_time=0.3, **how)
    new, whole = got.size(1) - given["input_ids"].size(1), model.generate(**given, **how)
    assert 1 <= new < 400 and 0.3 <= time.time() - began
    assert torch.equal(got, whole[:, : got.size(1)]) or (got == PAD).any()  # rows end at different lengths
    over = StoppingCriteriaList([MaxTimeCriteria(1.0, initial_timestamp=time.time() - 5)])
    one = model.generate(**inputs(), stopping_criteria=over, custom_generate=speculative)
    assert one.size(1) == given["input_ids"].size(1) + 1  # one step of plain decoding


class Mine(RepetitionPenaltyLogitsProcessor):
    """A processor of one's own."""


def test_what_is_refused(pair):
    """Processors that cannot be served are refused by name, before anything is decoded."""
    model, draft = pair

    def error(*given, drafter=None, **more):
        processors = {"logits_processor": LogitsProcessorList(given)} if given else {}
        with pytest.raises(ValueError) as caught:
            model.generate(**inputs(2) | more, **processors, custom_generate=speculative, drafter=drafter)
        return str(caught.value)

    bias, penalty = SequenceBiasLogitsProcessor([[[3], 1.0]]), RepetitionPenaltyLogitsProcessor(1.2)
    assert "got Mine" in error(Mine(1.5))
    assert "sequence_bias of several ids must be -inf, got 1.5 for [3, 4]" in error(sequence_bias=[[[3, 4], 1.5]])
    assert "must have SequenceBiasLogitsProcessor before RepetitionPenalty" in error(penalty, bias)
    assert "must have RepetitionPenaltyLogitsProcessor before Temper" in error(TemperatureLogitsWarper(0.5), penalty)
    assert "eos_token_id must be one id, got [3, 4] of ForcedEOS" in error(forced_eos_token_id=[3, 4], eos_token_id=3)
    assert "prompt_ignore_length must be None or the padding, got 5" in error(RepetitionPenaltyLogitsProcessor(1.2, 5))
    assert "got ExponentialDecayLengthPenalty" in error(exponential_decay_length_penalty=(2, 1.5), eos_token_id=3)
    assert "got InfNanRemoveLogitsProcessor" in error(remove_invalid_values=True)
    assert "logit_bias ids must lie in [0, V=32), request 0 has 40" in error(sequence_bias=[[[40], 1.0]])
    cascade = TokenCascade(adapt(draft), 32)
    assert "TokenCascade: repetition_penalty must be off" in error(drafter=cascade, rule="chow", repetition_penalty=1.2)
    bad = dict(prefix_allowed_tokens_fn=lambda b, ids: [])
    with pytest.raises(
        RuntimeError, match="row 0 ended in an error: .*prefix_allowed_tokens_fn must allow at least one"
    ):
        model.generate(**inputs(2, **bad), custom_generate=speculative)


def test_every_processor_of_a_configuration_is_served_or_refused():
    """Every processor that is served by name exists in the installed transformers."""
    from transformers.generation import logits_process

    assert all(hasattr(logits_process, name) for name in processors.SERVED)
