# SPDX-License-Identifier: Apache-2.0
"""`speculative`, our custom_generate for transformers: its keywords, the arguments that generate does not pass on,
streamers, and stop strings."""

import inspect
import threading

import numpy as np
import pytest
import torch
from support import tiny
from support.tokenizers import MAKE, SPECIAL
from transformers import GenerationConfig, TextIteratorStreamer
from transformers.generation.streamers import BaseStreamer

from specdec_kernels import decode
from specdec_kernels.decode import ModelDrafter, Output, PromptLookupDrafter, adapt
from specdec_kernels.integrations.transformers import speculative

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.slow]
IDS = torch.tensor([[5, 6, 7, 5, 6]])


@pytest.fixture(scope="module")
def model():
    return tiny.llama(0, vocab=len(MAKE["byte_level"]()))


def run(model, ids=IDS, **more):
    inputs = {"max_new_tokens": 12, "pad_token_id": 0, "eos_token_id": None, "do_sample": False} | more
    return model.generate(ids, custom_generate=speculative, **inputs)


# keyword -> [(value, the error text after "speculative: ")]
BAD = {
    "drafter": [
        ("x", "drafter must be a decode.Drafter, a transformers model or None, got 'x'"),
        (PromptLookupDrafter, "drafter must be a decode.Drafter, a transformers model or None, got the class Prompt"),
        (torch.nn.Linear(2, 2), "drafter must be a decode.Drafter, a transformers model or None, got Linear"),
        (4, "drafter must be a decode.Drafter, a transformers model or None, got 4"),
    ],
    "target": [("x", "target must be a decode.Model or None, got 'x'")],
    "verify": [
        ("chain", "verify must be 'token', 'block' or 'race', got 'chain'"),
        (None, "verify must be 'token', 'block' or 'race'"),
    ],
    "rule": [("chov", "rule must be 'exact', 'chow'"), (None, "rule must be 'exact'"), (3, "rule must be 'exact'")],
    "alpha": [
        ("a", "alpha must be a number, a pair of numbers or a tensor, got 'a'"),
        (0.5, "rule 'exact' takes no alpha, got 0.5"),
        (torch.ones(1), "alpha must be a number, a pair of numbers or None, got Tensor"),
    ],
    "seed": [
        ("a", "seed must be an int or None, got 'a'"),
        (1.5, "seed must be an int or None, got 1.5"),
        (np.float64(1), "seed must be an int or None, got 1.0"),
        (True, "seed must be an int or None, got True"),
        (torch.ones(2, dtype=torch.int64), "seed must be an int or None, got Tensor"),
    ],
    "max_batch": [
        (0, "max_batch must be >= 1, got 0"),
        ("2", "max_batch must be an int or None, got '2'"),
        (2.5, "max_batch must be an int or None, got 2.5"),
    ],
    "output": [
        ({}, "output must be a decode.Output or None, got dict"),
        (Output, "output must be a decode.Output or N"),
    ],
    "stream_to": [("x", "stream_to must be a streamer with put and end, or None, got 'x'")],
    "stop": [
        ("abc", "stop must be a tuple of strings, got 'abc'"),
        (("a", ""), "stop must hold strings of at least one character, got ('a', '')"),
        ((7,), "stop must be a tuple of strings, got (7,)"),
        (("a",), "stop needs a tokenizer as stop_tokenizer, got None"),
    ],
    "stop_tokenizer": [("x", "stop needs a tokenizer as stop_tokenizer, got 'x'")],
}


def test_every_keyword_is_checked(model):
    """For every keyword in the signature, wrong values raise an error with its name, before a model is called."""
    kinds = inspect.Parameter
    own = [name for name, p in inspect.signature(speculative).parameters.items() if p.kind is kinds.KEYWORD_ONLY]
    assert list(BAD) == own
    for name, cases in BAD.items():
        for value, says in cases:
            given = {name: value} | ({"stop": ("a",)} if name == "stop_tokenizer" else {})
            with pytest.raises((TypeError, ValueError)) as error:
                run(model, **given)
            assert str(error.value).startswith(f"speculative: {says}"), (name, value, str(error.value))


def test_what_is_not_wrapped_is_told_how(model):
    with pytest.raises(
        TypeError, match=r"target must be a decode.Model or None, got LlamaForCausalLM: wrap it, decode.ad"
    ):
        run(model, target=model)
    with pytest.raises(TypeError, match=r"drafter must be .* got \w+: wrap it, decode.ModelDrafter\(model\)"):
        run(model, drafter=adapt(model, lean=False, pack=False))


@pytest.mark.parametrize("seed", [2**63 - 1, 2**63, -(2**63), 2**64, -1, np.uint64(2**63 - 1), torch.tensor(2**63 - 1)])
def test_seeds_of_any_size(model, seed):
    """Seeds are wrapped to 64 bits, row by row: row b uses seed + b, whatever its size."""
    both = run(model, IDS.repeat(2, 1), do_sample=True, seed=seed)
    for b in range(2):
        folded = (int(seed) + b + 2**63) % 2**64 - 2**63
        assert torch.equal(run(model, do_sample=True, seed=folded)[0], both[b])
    assert not torch.equal(both[0], both[1])


class Noting(BaseStreamer):
    def __init__(self):
        self.got, self.ended = [], 0

    def put(self, value):
        self.got.append(value)

    def end(self):
        self.ended += 1


@pytest.mark.parametrize("kind", ["plain", "lookup", "model"])
def test_a_streamer_gets_the_tokens_step_by_step(model, kind):
    """The streamer gets the prompt as from generate, then each step's tokens, then one end."""
    draft = adapt(tiny.nearby(tiny.llama(0, vocab=model.config.vocab_size)), lean=False, pack=False)
    drafter = {"plain": None, "lookup": PromptLookupDrafter(3), "model": ModelDrafter(draft, 3)}[kind]
    streamer, ours = Noting(), Output()
    got = run(model, drafter=drafter, stream_to=streamer, output=ours)
    assert torch.equal(streamer.got[0], IDS) and streamer.ended == 1
    assert torch.cat(streamer.got[1:]).tolist() == got[0, 5:].tolist()
    assert len(streamer.got) - 1 == ours.stats.target_calls
    assert torch.equal(got, model.generate(IDS, max_new_tokens=12, pad_token_id=0, eos_token_id=None, do_sample=False))


def test_an_iterator_in_another_thread_ends(model):
    """TextIteratorStreamer's reader gets the text, and does not wait forever if an error is raised."""
    tokenizer = MAKE["byte_level"]()
    for more, wrong in (({}, False), ({"num_beams": 2}, True), ({"drafter": "x"}, True)):
        streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=60)
        raised = []

        def work(more=more, streamer=streamer, raised=raised):
            try:
                run(model, stream_to=streamer, **more)
            except (TypeError, ValueError) as error:
                raised.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        text = "".join(streamer)
        thread.join()
        assert bool(raised) is wrong
        assert text == ("" if wrong else tokenizer.decode(run(model)[0, 5:], skip_special_tokens=False))


def test_a_streamer_is_for_one_prompt(model):
    streamer = Noting()
    with pytest.raises(ValueError, match="speculative: stream_to takes one prompt, got 2"):
        run(model, IDS.repeat(2, 1), stream_to=streamer)
    assert streamer.ended == 1 and streamer.got == []


def test_a_row_that_ends_in_an_error(model, monkeypatch):
    """The error is raised with its reason, and the streamer ends."""

    def step(session):
        steps.append(session)
        if len(steps) == 1:
            return [decode.Event(0, [3])]
        return [decode.Event(0, [], "", "error", "target pass: no memory")]

    steps = []
    monkeypatch.setattr(decode.Session, "step", step)
    streamer = Noting()
    with pytest.raises(RuntimeError, match="speculative: row 0 ended in an error: target pass: no memory"):
        run(model, stream_to=streamer)
    assert streamer.ended == 1 and streamer.got[1].tolist() == [3]


def test_stop_strings(model):
    """A row ends with the token that completes a stop string. Special tokens count, and other rows go on."""
    tokenizer = MAKE["byte_level"]()
    ids = torch.tensor([[5, 6, 7, 5, 6], [9, 8, 9, 8, 9]])
    free = run(model, ids)[:, 5:]
    token = next(int(t) for t in free[0][3:] if tokenizer.decode([t]).isascii() and t not in free[1])
    at = free[0].tolist().index(token)
    got = run(model, ids, stop=(tokenizer.decode([token]),), stop_tokenizer=tokenizer)[:, 5:]
    assert got[0, : at + 1].tolist() == free[0, : at + 1].tolist() and (got[0, at + 1 :] == 0).all()
    text = tokenizer.decode(free[1])
    assert tokenizer.decode([token]) in text or torch.equal(got[1], free[1])
    special = tokenizer.convert_tokens_to_ids(SPECIAL[0])
    biased = tiny.llama(0, vocab=len(tokenizer))
    biased.lm_head.weight[special] = biased.lm_head.weight[token] * 1.01  # in place of that token
    ended = run(biased, ids[:1], stop=(SPECIAL[0],), stop_tokenizer=tokenizer)[0, 5:]
    assert ended[-1] == special and len(ended) <= 12
    assert (run(biased, ids[:1])[0, 5:] == special).sum() >= 1 and run(biased, ids[:1]).size(1) == 17


# Arguments that generate does not pass to a custom_generate; the table is in docs/engines.md.
DROPPED = {
    "streamer": lambda model: Noting(),
    "assistant_model": lambda model: tiny.nearby(tiny.llama(0, vocab=model.config.vocab_size)),
    "tokenizer": lambda model: MAKE["byte_level"](),
    "assistant_tokenizer": lambda model: MAKE["byte_level"](),
    "synced_gpus": lambda model: False,
}


@pytest.mark.parametrize("name", DROPPED)
def test_what_generate_keeps(model, name):
    """The table holds for the installed transformers: the argument does not arrive, so it could not be refused here."""
    arrived = {}

    def custom(model, input_ids, **kwargs):
        arrived.update(kwargs)
        return input_ids

    given = DROPPED[name](model)
    model.generate(IDS, custom_generate=custom, max_new_tokens=2, pad_token_id=0, **{name: given})
    assert "generation_config" in arrived and name not in arrived
    if name == "streamer":
        assert len(given.got) == 1 and given.ended == 0  # the prompt, and no end


def test_keywords_arrive_that_generate_does_not_know(model):
    """All our keywords arrive: none has the name of one that generate keeps."""
    arrived = {}
    own = list(BAD)

    def custom(model, input_ids, *, generation_config=None, logits_processor=(), stopping_criteria=(), **kwargs):
        arrived.update(kwargs)
        return input_ids

    custom.__signature__ = inspect.signature(speculative)
    model.generate(IDS, custom_generate=custom, max_new_tokens=2, pad_token_id=0, **{n: f"<{n}>" for n in own})
    assert {name: arrived.get(name) for name in own} == {n: f"<{n}>" for n in own}


def test_stop_strings_and_modes_of_generate_raise(model):
    with pytest.raises(ValueError, match="could not locate a tokenizer"):
        run(model, stop_strings=["a"], tokenizer=MAKE["byte_level"]())
    config = GenerationConfig(stop_strings=["a"], max_new_tokens=4)
    with pytest.raises(ValueError, match="could not locate a tokenizer"):
        model.generate(IDS, config, custom_generate=speculative)
    with pytest.raises(ValueError, match="token healing"):
        run(model, token_healing=True, tokenizer=MAKE["byte_level"]())
    with pytest.raises(ValueError, match="speculative: cannot serve contrastive search"):
        run(model, penalty_alpha=0.6, top_k=4)
    with pytest.raises(ValueError, match="speculative: cannot serve dola generation"):
        run(model, dola_layers="high")


@pytest.mark.parametrize("nothing", [{}, [], (), None, False, {"image": None}, {"image": [], "video": {}}, [None]])
def test_empty_is_not_asked(model, nothing):
    """Empty values may come from generate itself and are accepted. Others are refused by name."""
    plain = run(model)
    given = {"max_length": 17, "pad_token_id": 0, "eos_token_id": None}

    def with_it(x):
        def custom(model, *args, **kwargs):
            return speculative(model, *args, **kwargs, mm_encoder_outputs=x)

        return model.generate(IDS, custom_generate=custom, do_sample=False, **given)

    assert torch.equal(with_it(nothing), plain)
    for something in (torch.zeros(1), {"image": torch.zeros(1)}, [torch.zeros(0)], True, "x", 0):
        with pytest.raises(ValueError, match="speculative: cannot serve mm_encoder_outputs"):
            with_it(something)
