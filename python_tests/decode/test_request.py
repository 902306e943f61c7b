# SPDX-License-Identifier: Apache-2.0
"""Every field of a request is checked when it is made and when it is submitted. A refused request changes no other."""

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support import tiny

from specdec_kernels.decode import (
    BeamDrafter,
    HierarchicalDrafter,
    LookupThenModel,
    ModelDrafter,
    Output,
    PromptLookupDrafter,
    Request,
    Session,
    TokenCascade,
    TreeDrafter,
    adapt,
    beam_search,
    generate,
    load_pair,
    stream,
)

pytestmark = pytest.mark.usefixtures("one_thread")

NOTHING = [object(), {}, {1: 2}, {1}, iter([1]), 1j, b"\1\2", torch.nn.Identity(), np.array("a"), np.datetime64(1, "s")]
FLAGS = [None, True, np.bool_(True), torch.tensor(True), "", "1"]
FLOATS = [1.0, 1.5, math.nan, np.float32(1), torch.tensor(1.0)]
NO_NUMBER = [*NOTHING, *FLAGS, (), (1,), [1], torch.tensor([1])]
NO_INT = [*NO_NUMBER, *FLOATS]
NO_IDS = [
    *NOTHING, *FLAGS, *FLOATS, 1, -1, 2**63, torch.tensor(1), torch.tensor([[1, 2]]), torch.tensor([1.0]),
    np.ones((1, 2), int), np.array([1.5]), [1.0], [True], [None], ["1"], [[1, 2]], [(1,)], [1, -1],
    torch.tensor([1, -1]), [torch.tensor([1])], [np.nan],
]  # fmt: skip
BAD = {  # by the type of a field: values that no field of this type accepts
    list[int]: [*NO_IDS, [], (), np.ones(0, int), torch.ones(0, dtype=torch.int64)],
    tuple[int, ...]: NO_IDS,
    int: NO_INT,
    float: [*NO_NUMBER, math.nan, math.inf, -math.inf, 1e39, -1e39, 10**400, np.float64("nan"), torch.tensor(math.nan)],
    tuple[str, ...]: [*NOTHING, None, 1, True, "", "abc", [1], [None], [b"a"], ["a", ""], ("",), [["a"]]],
    str: [*NOTHING, None, 1, True, "", "no rule", ["exact"], ("exact",), b"exact", torch.tensor(0)],
    float | tuple[float, float] | None: [
        *NOTHING,
        True,
        "1",
        [None],
        ["1"],
        (1, 2, 3),
        math.nan,
        torch.eye(2),
        10**400,
    ],
    dict[int, float] | None: [
        *NOTHING[:1],
        *(1, "1", [1], {1}, torch.ones(2), {"1": 1.0}, {1: "1"}, {1: None}, {1.0: 1}, {True: 1}, {1: True}, {None: 1}),
        *({-1: 1.0}, {1: math.nan}, {1: math.inf}, {1: 1e39}, {1: -1e39}, {1: 10**400}, {1: torch.ones(2)}),
    ],
}
BAD_BY_NAME = {  # ranges that a type alone does not determine
    "max_new_tokens": [0, -1, np.int64(0), torch.tensor(-3)],
    "temperature": [-1, -0.5, torch.tensor(-1.0)],
    "top_k": [-2, 1 << 63, np.int64(-5)],
    "top_p": [-1, -0.5, 0, 1.0001, np.float32(2), 1e-60],
    "min_p": [-1, -0.5, 1.0001, torch.tensor(2.0)],
    "top_n_sigma": [-1, -0.5, math.inf],
    "min_tokens": [-1, np.int64(-1), 10**6],
    "repetition_penalty": [-1, -0.5, 0, 1e-60, np.float32(0)],
}
BAD[tuple[tuple[int, ...], ...]] = [
    *NOTHING,
    None,
    1,
    "",
    "ab",
    [1],
    (1,),
    [[]],
    [[1], ()],
    [[1], [-1]],
    [["1"]],
    [[[1]]],
]
BAD[int | None] = [x for x in NO_INT if x is not None] + [-1, np.int64(-1)]
BAD[Callable[[list[int]], Any] | None] = [1, "abc", [abs], {}, torch.ones(2), True]
GOOD = {  # by type: (the value that a request keeps, a value to pass)
    list[int]: [([1, 2], x) for x in ((1, 2), range(1, 3), np.array([1, 2]), torch.tensor([1, 2], dtype=torch.int32))]
    + [([1, 2], [np.int64(1), torch.tensor(2)]), ([1, 2], np.array([1, 2], np.uint8))],
    tuple[int, ...]: [((), ()), ((), []), ((3,), [np.int32(3)]), ((3, 4), torch.tensor([3, 4]))],
    int: [(3, np.int64(3)), (3, np.uint8(3)), (3, torch.tensor(3)), (3, torch.tensor(3, dtype=torch.int16))],
    float: [(0.5, np.float32(0.5)), (1.0, 1), (1.0, np.int64(1)), (0.5, torch.tensor(0.5)), (0.5, np.float16(0.5))],
    tuple[str, ...]: [((), ()), (("a", "b"), ["a", "b"]), (("a",), (np.str_("a"),))],
    str: [("exact", "exact"), ("typical", np.str_("typical"))],
    float | tuple[float, float] | None: [(None, None)],
    Callable[[list[int]], Any] | None: [(None, None), (abs, abs)],
    int | None: [(None, None), (0, np.int64(0)), (3, torch.tensor(3))],
    tuple[tuple[int, ...], ...]: [((), []), (((1,), (2, 3)), [np.array([1]), torch.tensor([2, 3]), (2, np.int64(3))])],
    dict[int, float] | None: [
        (None, None),
        (None, {}),
        ({3: 1.0, 4: -math.inf}, {np.int64(3): 1, 4: torch.tensor(-math.inf)}),
    ],
}
GOOD_BY_NAME = {"logprobs_mode": [("raw", np.str_("raw")), ("processed", "processed")]}
FIELDS = dataclasses.fields(Request)
SOME = {"prompt": [1, 2]}


def bad(field):
    return [*BAD[field.type], *BAD_BY_NAME.get(field.name, ())]


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_every_field_refuses_what_it_cannot_take(field):
    """A new field without a check, or of a type that the tables lack, fails here. Kills each missing check: every bad
    value of a type is tried in every field of it."""
    for value in bad(field):
        with pytest.raises((TypeError, ValueError), match=rf"^Request: .*\b{field.name}\b.*got") as caught:
            Request(**(SOME | {field.name: value}))
        assert type(caught.value) in (TypeError, ValueError), repr(value)


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_every_field_keeps_pythons_own_values(field):
    for wanted, given in GOOD_BY_NAME.get(field.name) or GOOD[field.type]:
        kept = getattr(Request(**(SOME | {field.name: given})), field.name)
        assert kept == wanted and type(kept) is type(wanted), (field.name, given)
        if isinstance(kept, (list, tuple)):
            assert [type(x) for x in kept] == [type(x) for x in wanted]
        if isinstance(kept, dict):
            assert [(type(k), type(x)) for k, x in kept.items()] == [(int, float)] * len(wanted)


def test_alpha_by_its_rule():
    for rule, alpha, kept in [("lenience", np.float32(0.5), 0.5), ("typical", [np.float64(0.5), 1], (0.5, 1))]:
        assert Request([1], rule=rule, alpha=alpha).alpha == kept
    for rule, alpha in [("exact", 0.5), ("lenience", 2.0), ("lenience", (0.5, 0.5)), ("typical", (0.5, -1))]:
        with pytest.raises(ValueError, match=r"^Request: .*alpha.*got"):
            Request([1], rule=rule, alpha=alpha)


@pytest.mark.parametrize(
    "fields, text",
    [
        (
            dict(prompt="abc"),
            "Request: prompt must be a list of token ids, got 'abc': encode it, tokenizer.encode(text)",
        ),
        (
            dict(prompt={"input_ids": [1]}),
            "Request: prompt must be a list of token ids, got dict: write prompt['input_ids']",
        ),
        (dict(prompt=[[1, 2]]), "Request: prompt must be a list of token ids, got list: write prompt[0]"),
        (
            dict(prompt=torch.ones(1, 5, dtype=torch.int64)),
            "Request: prompt must be a list of token ids, got a Tensor of shape [1, 5]: write prompt[0]",
        ),
        (dict(prompt=[1, 2.0]), "Request: prompt must be a list of token ids, got 2.0 at index 1"),
        (dict(prompt=[1, [2]]), "Request: prompt must be a list of token ids, got list at index 1"),
        (dict(prompt=[1, -1]), "Request: prompt must be a list of token ids, each >= 0, got -1 at index 1"),
        (dict(prompt=[]), "Request: prompt must have at least one token, got none"),
        (dict(max_new_tokens=0), "Request: max_new_tokens must be >= 1, got 0"),
        (dict(max_new_tokens=None), "Request: max_new_tokens must be an int, got None"),
        (dict(temperature=math.nan), "Request: temperature must be finite in float32 and >= 0, got nan"),
        (dict(temperature="1"), "Request: temperature must be a number, got '1'"),
        (dict(top_k=True), "Request: top_k must be an int, got True"),
        (dict(repetition_penalty=0), "Request: repetition_penalty must be finite in float32 and > 0, got 0"),
        (dict(presence_penalty=math.inf), "Request: presence_penalty must be finite in float32, got inf"),
        (dict(seed="a"), "Request: seed must be an int, got 'a'"),
        (dict(allowed=[1]), "Request: allowed must be a function of a list of token ids, or None, got list"),
        (dict(min_tokens=-1), "Request: min_tokens must be >= 0, got -1"),
        (dict(min_tokens=65), "Request: min_tokens must be <= max_new_tokens=64, got 65"),
        (dict(logit_bias=[1]), "Request: logit_bias must be a dict {token id: number}, got list"),
        (dict(logit_bias={"5": 1}), "Request: logit_bias must be a dict {token id: number}, got '5': 1"),
        (
            dict(logit_bias={5: math.inf}),
            "Request: logit_bias must be a dict {token id: number}, ids >= 0, each number finite in float32 or -inf, "
            "got 5: inf",
        ),
        (dict(bad_words=[1]), "Request: bad_words must be a tuple of sequences of token ids, got 1"),
        (
            dict(bad_words=[[1], [2, -3]]),
            "Request: bad_words must be a tuple of sequences of token ids, each >= 0, got -3",
        ),
        (
            dict(bad_words=[[1], []]),
            "Request: bad_words must be a tuple of sequences of token ids, none of them empty, got list at index 1",
        ),
        (dict(logprobs=-1), "Request: logprobs must be >= 0, got -1"),
        (dict(logprobs_mode="logits"), "Request: logprobs_mode must be 'raw' or 'processed', got 'logits'"),
        (dict(eos=2), "Request: eos must be a tuple of token ids, got 2: write (2,)"),
        (dict(eos=(None,)), "Request: eos must be a tuple of token ids, got None at index 0"),
        (dict(stop="end"), "Request: stop must be a tuple of strings, got 'end': write ('end',)"),
        (dict(stop=("a", "")), "Request: stop must be a tuple of strings, none of them empty, got '' at index 1"),
        (dict(rule="no"), "Request: rule must be one of exact,"),
    ],
)
def test_what_an_error_says(fields, text):
    with pytest.raises((TypeError, ValueError), match="^" + re.escape(text)):
        Request(**(SOME | fields))


@pytest.mark.parametrize("seed", [2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64 - 1, 2**64, 10**30, -1])
def test_seeds_are_folded(seed):
    """Seeds of any size count by their low 64 bits, as in the calls of engines."""
    target = adapt(tiny.llama(0))
    todo = [Request([1, 2], 6, temperature=1.0, seed=s) for s in (seed, seed % 2**64, seed + 2**64, seed + 1)]
    tokens = [result.tokens for result in generate(target, todo).results]
    assert -(2**63) <= todo[0].seed < 2**63 and tokens[0] == tokens[1] == tokens[2] != tokens[3]


@pytest.fixture(scope="module")
def target():
    return adapt(tiny.llama(0))


def test_submit_checks_again(target):
    """A request may have changed since it was made: its list, or a field that was assigned."""
    session = Session(target, max_batch=2, capacity=20)
    ok = session.submit(Request([1, 2], 5))
    for field in FIELDS:
        for value in bad(field):
            spoilt = Request([1, 2], 4)
            object.__setattr__(spoilt, field.name, value)
            with pytest.raises((TypeError, ValueError), match=rf"^Request: .*\b{field.name}\b"):
                session.submit(spoilt)
    changed = Request([1, 2], 4)
    changed.prompt.append("x")
    with pytest.raises(TypeError, match="prompt must be a list of token ids, got 'x' at index 2"):
        session.submit(changed)
    own = Request([1, 2], 5)
    again = session.submit(own)
    own.prompt[:] = [99]  # a session has its own copy
    list(session.events())
    assert (ok, again) == (0, 1) and [*session.results] == [0, 1]
    assert (
        session.results[0].tokens
        == session.results[1].tokens
        == generate(target, [Request([1, 2], 5)]).results[0].tokens
    )


def test_requests_are_a_list_of_requests(target):
    request = Request([1, 2], 3)
    for given, error, text in [
        (request, TypeError, r"requests must be a list of decode.Request, got Request: write \[request\]"),
        ([[1, 2]], TypeError, r"requests\[0\] must be a decode.Request, got list"),
        ([request, "a"], TypeError, r"requests\[1\] must be a decode.Request, got 'a'"),
        ("ab", TypeError, "requests must be a list of decode.Request, got 'ab'"),
        (None, TypeError, "requests must be a list of decode.Request, got None"),
        ([], ValueError, "requests must not be empty"),
    ]:
        for call in (generate, stream, beam_search):
            with pytest.raises(error, match=text):
                call(target, given)
    with pytest.raises(TypeError, match="submit: request must be a decode.Request, got list"):
        Session(target).submit([1, 2])
    assert len(generate(target, iter([request])).results) == len(generate(target, (request,)).results) == 1


def test_a_model_where_a_drafter_is_wanted_and_the_other_way_round(target):
    hf, request = tiny.llama(0), Request([1, 2], 3)
    wrap = r"got LlamaForCausalLM: wrap it, decode.adapt\(model\)"
    for call in (
        lambda: generate(hf, [request]),
        lambda: Session(hf),
        lambda: beam_search(hf, [request]),
        lambda: ModelDrafter(hf),
        lambda: TreeDrafter(hf),
        lambda: TokenCascade(hf),
        lambda: BeamDrafter(hf),
        lambda: HierarchicalDrafter(hf, PromptLookupDrafter()),
    ):
        with pytest.raises(TypeError, match=r"(target|model) must be a decode.Model, " + wrap):
            call()
    for given, text in [
        (target, r"got LeanLlama: wrap it, decode.ModelDrafter\(model\)"),
        (hf, r"got LlamaForCausalLM: wrap it, decode.ModelDrafter\(decode.adapt\(model\)\)"),
        ("x", "got 'x'"),
        (PromptLookupDrafter, "got the class PromptLookupDrafter"),
    ]:
        for call in (lambda g: Session(target, g), lambda g: HierarchicalDrafter(target, g)):
            with pytest.raises(TypeError, match="drafter must be a decode.Drafter, " + text):
                call(given)
    with pytest.raises(TypeError, match="target must be a decode.Model, got PromptLookupDrafter"):
        generate(PromptLookupDrafter(), [request])
    lookup, model = PromptLookupDrafter(), ModelDrafter(target)
    for arguments, text in [
        ((model, lookup), "lookup must be a PromptLookupDrafter, got ModelDrafter"),
        (
            (lookup, target),
            "model must be a ModelDrafter or a HierarchicalDrafter, got LeanLlama: wrap it, decode.ModelDrafter",
        ),
        ((lookup, hf), r"got LlamaForCausalLM: wrap it, decode.ModelDrafter\(decode.adapt\(model\)\)"),
    ]:
        with pytest.raises(TypeError, match=text):
            LookupThenModel(*arguments)
    hint = r"LeanLlama: wrap it, decode.BeamDrafter\(model\)"
    for given, text in ((model, "ModelDrafter$"), (target, hint), ("x", "str$")):
        with pytest.raises(TypeError, match="beam_search: drafter must be a decode.BeamDrafter, got " + text):
            beam_search(target, [request], 2, given)


def test_a_name_where_what_it_names_is_wanted(target):
    for call, text in [
        (lambda: adapt("large"), "adapt: model must be a transformers causal LM, got 'large': load it first"),
        (
            lambda: adapt(target),
            "adapt: model must be a transformers causal LM, got LeanLlama, which is a decode.Model",
        ),
        (
            lambda: generate(target, [Request([1])], tokenizer="large"),
            "tokenizer must have a method decode, got 'large'",
        ),
    ]:
        with pytest.raises(TypeError, match=text):
            call()
    with pytest.raises(ValueError, match="load_pair: ./nowhere: no such folder"):
        load_pair("./nowhere")


def test_limits_of_a_session(target):
    for name in ("max_batch", "capacity"):
        for value, error in [(0, ValueError), (-1, ValueError), (1.5, TypeError), ("8", TypeError), (True, TypeError)]:
            with pytest.raises(error, match=f"^Session: {name} must be"):
                Session(target, **{name: value})


def test_an_error_names_the_call_that_was_made(target):
    """Each check of the loop, by each call that makes it."""
    one, hot = [Request([1, 2], 4)], [Request([1, 2], 4, temperature=1.0)]
    small = ModelDrafter(target)

    def submit(todo, drafter=None, **options):
        Session(target, drafter, **options).submit(todo[0])

    with_list = {"generate": generate, "stream": stream}
    session = {"Session": lambda todo, drafter=None, **options: Session(target, drafter, **options)}
    calls = {name: lambda *a, call=call, **o: call(target, *a, **o) for name, call in with_list.items()}
    submits = {"submit": submit}
    for made, todo, drafter, options, text in [
        (calls | session, one, None, {"verify": "raced"}, "verify must be"),
        (calls | session, one, TreeDrafter(target, "kseq"), {"verify": "block"}, "verify must be 'token'"),
        (calls | session, one, "a drafter", {}, "drafter must be"),
        (calls | session, one, None, {"max_batch": 0}, "max_batch must be"),
        (calls | session, one, None, {"prefill_chunk": 0}, "prefill_chunk must be"),
        (calls | session, one, None, {"tokenizer": "large"}, "tokenizer must"),
        (calls | submits, [Request([1 << 20], 4)], None, {}, "prompt ids must"),
        (calls | submits, [Request([1], 1 << 20)], None, {}, "prompt and max_new_tokens must fit"),
        (calls | submits, [Request([1], 4, stop=("a",))], None, {}, "stop strings need"),
        (calls | submits, [Request([1], 4, logprobs=999)], None, {}, "logprobs must be"),
        (calls | submits, [Request([1], 4, logit_bias={999: 1.0})], None, {}, "logit_bias ids must"),
        (calls | submits, [Request([1], 4, rule="diff")], PromptLookupDrafter(), {}, "rule must be"),
        (calls | submits, [Request([1], 4, rule="typical")], small, {"verify": "block"}, "rule 'typical' defines"),
        (calls | submits, [Request([1], 4, rule="typical")], small, {"verify": "race"}, "rule must be 'exact'"),
        ({"beam_search": lambda todo, _: beam_search(target, todo)}, [Request([1 << 20], 4)], None, {}, "prompt ids"),
    ]:
        for name, call in made.items():
            with pytest.raises((TypeError, ValueError), match=f"^{name}: {text}"):
                call(todo, drafter, **options)
    for name, call in (calls | submits).items():
        with pytest.raises(ValueError, match="^TreeDrafter: method 'greedy'"):
            call(hot, TreeDrafter(target, "greedy"))
        busy = ModelDrafter(target)
        other = Session(target, busy)
        other.submit(one[0])
        with pytest.raises(ValueError, match=f"^{'Session' if name == 'submit' else name}: drafter must not be in use"):
            call(one, busy)
    with pytest.raises(ValueError, match="^HierarchicalDrafter: verify must be 'token'"):
        HierarchicalDrafter(target, Chains(), verify="block")


class Chains(PromptLookupDrafter):
    verifies = ("token",)


def test_an_output_that_is_used_again_holds_the_last_run_alone(target):
    output = Output()
    for tokens in (3, 5):
        list(stream(target, [Request([1, 2], tokens)] * 2, output=output))
        assert [len(r.tokens) for r in output.results] == [tokens] * 2 and output.stats.new_tokens == 2 * tokens


def test_a_sessions_limits_are_handed_on_as_ints(target):
    """The cache and the drafter get what the check returned, not the number as given."""
    got = []

    class Noted(PromptLookupDrafter):
        def begin(self, slots, capacity):
            got.extend((slots, capacity - self.num_lookahead))
            super().begin(slots, capacity)

    session = Session(target, Noted(3), max_batch=torch.tensor(2), capacity=np.int64(9), prefill_chunk=np.int32(4))
    assert got == [2, 9] and [type(x) for x in got] == [int, int]
    assert [type(x) for x in (session.slots, session.capacity, session.prefill_chunk)] == [int] * 3
