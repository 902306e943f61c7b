# SPDX-License-Identifier: Apache-2.0
"""V2's verification from raw rows: penalties, biases and other parameters of requests, against rows written out by
loops from vLLM's definitions."""

import pytest
import torch
from support import vllm_v2_sampler as world
from support.vllm_v2_sampler import MIXED, K, V, mixed

import specdec_kernels as sk
from specdec_kernels.integrations.vllm import fallback, sampling_mask, verify_v2, views_v2


def expected(args):
    """Return the step's rows as support.vllm_v2_sampler.written computes them, by loops."""
    rows = iter(args["logits"])
    drafts = ((r, r.get("drafts", [])[:i]) for r in MIXED for i in range(len(r.get("drafts", [])) + 1))
    return torch.stack([world.written(r, before, next(rows)) for r, before in drafts])


def step_of(sampler, args):
    named = ("logits", "idx_mapping_np", "idx_mapping", "cu_num_logits", "draft_sampled", "pos")
    return views_v2.step(sampler, *(args[name] for name in named), K)


def test_rows_are_those_written_out():
    """Each entry of each row is equal before temperature and filters, in a batch in which every request has other
    parameters."""
    sampler, _, args = mixed()
    plain = dict.fromkeys(("temperature", "top_k", "top_p", "min_p"))
    viewed = views_v2.flat(step_of(sampler, args))._replace(**plain)
    want = expected(args)
    changed = (want != args["logits"]).any(1)
    assert 20 < changed.sum() < len(changed)  # some of both
    mine, theirs = sk.top_logprobs(viewed, V), sk.top_logprobs(want, V)
    assert torch.equal(mine.ids, theirs.ids) and torch.equal(mine.logprobs, theirs.logprobs)


def test_sampling_parameters_by_slot():
    sampler, slots, args = mixed()
    rows = views_v2.chains(step_of(sampler, args), torch.zeros(len(MIXED), K + 1, dtype=torch.int64))
    for name, off in (("temperature", 1.0), ("top_k", V), ("top_p", 1.0), ("min_p", 0.0)):
        want = [r.get(name, off) for r in MIXED]
        assert torch.equal(getattr(rows, name), torch.tensor(want).to(getattr(rows, name).dtype)), name
    step = step_of(sampler, args)
    idle = step._replace(used=slots[:1].numpy())
    assert views_v2.sampling(sampler.sampling_states, idle.used, slots[:1]).keys() == {"temperature"}
    assert views_v2.penalties(idle, slots[:1]) is None and views_v2.bias_and_mask(idle) == (None, None)


@pytest.mark.parametrize("method", ["standard", "block", "synthetic"])
def test_a_step_is_that_of_rows_written_out(method):
    """The tokens are those of verify_chain on the written rows, whatever the seeds, with drafts that have rows."""
    sampler, slots, args = mixed()
    generator = torch.Generator().manual_seed(3)
    args["draft_logits"] = torch.randn(len(MIXED) + 9, K, V, generator=generator)
    sampler.req_states.draft_tokens[:] = -1  # no draft was cut
    rates = torch.tensor([0.9, 0.7, 0.5]) if method == "synthetic" else None
    cu, states = args["cu_num_logits"].long(), sampler.sampling_states
    row = (cu[:-1, None] + torch.arange(K + 1)).clamp(max=len(args["logits"]) - 1)
    drafts = torch.full((len(MIXED), K), -1)
    for b, r in enumerate(MIXED):
        drafts[b, : len(r.get("drafts", []))] = torch.tensor(r.get("drafts", []), dtype=torch.int64)
    named = {x: getattr(states, x).gpu[slots] for x in ("temperature", "top_k", "top_p", "min_p")}
    seen = set()
    for seed in range(40):
        states.seeds.gpu[slots] = torch.arange(len(MIXED)) * 1000 + seed
        rows, tokens, count = world.verify(world.rejection_sampler(sampler, K, method, rates), **args)
        wanted = sk.verify_chain(
            sk.Rows(expected(args), row=row, **named),
            drafts,
            sk.Rows(args["draft_logits"][slots], temperature=named["temperature"]),
            method="block" if method == "block" else "token",
            seed=states.seeds.gpu[slots],
            offset=args["pos"][cu[:-1]],
            **({} if rates is None else {"rule": "synthetic", "alpha": rates[None]}),
        )
        assert rows is args["logits"] and count.dtype == torch.int32
        assert torch.equal(count, wanted.num_accepted + 1) and torch.equal(tokens, wanted.tokens)
        seen |= set(count.tolist())
    assert seen >= {1, 2, 3}


def test_bad_words_are_read_as_far_as_the_requests_have_some():
    """The host knows how many ids the words of each filled slot have. For other slots it assumes vLLM's maximum."""
    sampler, slots, args = mixed()
    of, state = step_of(sampler, args), sampler.logits_processors[2]
    lengths = [len(sum(r.get("bad_words", []), [])) for r in MIXED]
    free = sorted(set(range(len(MIXED) + 9)) - set(slots.tolist()))
    assert state.specdec_lengths[slots].tolist() == lengths and set(state.specdec_lengths[free].tolist()) == {24}
    wanted = views_v2.bad_words(of).ids
    state.bad_word_token_ids.gpu[:, max(lengths) :] = 1 << 30  # no vocabulary has it
    assert torch.equal(views_v2.bad_words(of).ids, wanted)
    one = max(range(len(MIXED)), key=lengths.__getitem__)  # its slot is taken by a request with one word of one id
    state.bad_word_token_ids.gpu[slots[one], 0], state.bad_word_offsets.gpu[slots[one], 1] = 8, 1
    state.bad_word_offsets.gpu[slots[one], 2:] = 24  # left by the request before
    state.num_bad_words.np[slots[one]] = state.num_bad_words.gpu[slots[one]] = 1
    given = []
    asked = world.SimpleNamespace(bad_words_token_ids=[[8]])
    assert views_v2.bad_words_added(lambda *args: given.append(args), state, int(slots[one]), asked) is None
    assert given == [(state, int(slots[one]), asked)] and state.specdec_lengths[slots[one]] == 1
    alone = of._replace(used=slots[[one]].numpy(), request=torch.full_like(of.request, one))
    assert views_v2.bad_words(alone).ids.flatten().tolist() == [8] * len(of.local)
    assert torch.equal(
        views_v2.bad_words(of).ids[of.request != one], wanted[of.request != one, :2]
    )  # the others have two words
    del state.specdec_lengths  # as with a vLLM whose add_request differs
    assert views_v2.bad_words(alone).ids.flatten().tolist() == [8] * len(of.local)


def test_minimum_lengths_under_a_grammar():
    """min_tokens removes a row's stop ids, unless the grammar, allowed ids and biases leave nothing else."""
    stop = {"prompt": [1], "min_tokens": 2, "stop_token_ids": [2, 4], "drafts": [3], "grammar": True}
    some = {"allowed_token_ids": [2, 4, 9]}, {"logit_bias": {8: -float("inf")}}, {"grammar": False}
    requests = [stop, stop, *(stop | x for x in some)]
    logits = torch.randn(10, V, generator=torch.Generator().manual_seed(2))
    ids = torch.arange(V)
    for row, more in ((0, 4), (2, 8), (4, 8), (6, 8), (8, 8)):  # the grammar allows 4, a stop id, and for some 8
        logits[row] = logits[row].where((ids == 4) | (ids == more), -torch.inf)
    slots = torch.tensor([3, 0, 2, 5, 7])
    args = world.batch(requests, slots, logits)
    viewed = views_v2.flat(step_of(world.sampler(requests, slots, 9, V), args))
    each = [(r, r["drafts"][:i]) for r in requests for i in (0, 1)]
    want = torch.stack([world.written(*x, z) for x, z in zip(each, logits)])
    assert want[[0, 2, 4, 6, 8]].isfinite().nonzero()[:, 1].tolist() == [4, 8, 4, 4, 8]
    mine, theirs = sk.top_logprobs(viewed._replace(temperature=None), V), sk.top_logprobs(want, V)
    assert torch.equal(mine.ids, theirs.ids) and torch.equal(mine.logprobs, theirs.logprobs)


def test_drafts_that_vllm_found_invalid_are_not_verified():
    """Such drafts are -1 only among the drafts to verify. Penalties and bad words of other rows still see them."""
    sampler, _, args = mixed()
    assert world.verify(world.rejection_sampler(sampler, K), **args)[2].max() > 1
    args["verify_draft_sampled"] = torch.where(args["expanded_local_pos"] > 0, -1, args["draft_sampled"])
    assert (world.verify(world.rejection_sampler(sampler, K), **args)[2] == 1).all()


class SamplingMaskTensors(tuple):
    def __new__(cls, *fields):
        return super().__new__(cls, fields)

    @classmethod
    def from_logits(cls, *args):
        raise AssertionError("vLLM's own function was called")


MAX_COMPACT_SUPPORT = 2048  # as in vLLM's module, beside the class


def test_sampling_masks_of_raw_rows():
    """The kept ids are those of the written rows after the filters; greedy rows are filtered at temperature 1."""
    sampler, slots, args = mixed()
    sampler.return_sampling_mask = True
    rows, tokens, count = world.verify(world.rejection_sampler(sampler, K), **args)
    given = (SamplingMaskTensors.from_logits, rows, args["cu_num_logits"], count, V, K + 1)
    ids, packed, counts, *_ = sampling_mask.from_logits(*given)
    states, slot = sampler.sampling_states, args["expanded_idx_mapping"].long()
    named = {x: getattr(states, x).gpu[slot] for x in ("temperature", "top_k", "top_p", "min_p")}
    named["temperature"][named["temperature"] == 0] = 1.0
    want = sk.support(sk.Rows(expected(args), **named), V)
    for b, n in enumerate(count.tolist()):
        for i in range(n):
            row = int(args["cu_num_logits"][b]) + i
            assert counts[b * (K + 1) + i] == want.counts[row] and torch.equal(ids[b * (K + 1) + i], want.ids[row])
    again = sampling_mask.from_logits(*given)  # of rows that vLLM has prepared itself: every finite id
    assert again[2].max() == V > want.counts.max() - 1


FALLS_BACK = {
    "a sampler of its own, Other": lambda s: setattr(s, "__class__", type("Other", (world.Sampler,), {})),
    "a custom logits processor, Mine": lambda s: s.logits_processors.append(type("Mine", (), {})()),
    "logits processors that are not known, PenaltiesState, LogitBiasState, BadWordsState": (
        lambda s: s.logits_processors.insert(0, s.logits_processors.pop(1))
    ),
    "processed logprobs": lambda s: (
        setattr(s, "logprobs_mode", "processed_logits"),
        s.sampling_states.num_logprobs.fill(0),
    ),
}


@pytest.mark.parametrize("reason", FALLS_BACK)
def test_what_falls_back(reason):
    """vLLM's own function is called with the same arguments, and the step is counted by its reason."""
    sampler, _, args = mixed()
    FALLS_BACK[reason](sampler)
    before = fallback.steps[reason]
    given = world.verify(world.rejection_sampler(sampler, K), lambda self, *args: args, **args)
    assert all(x is y for x, y in zip(given, args.values(), strict=True)) and fallback.steps[reason] == before + 1


def test_what_falls_back_by_request():
    sampler, slots, args = mixed()
    lengths, used = args["seq_lens_upper_bound_np"].copy(), args["idx_mapping_np"]
    why_not = lambda grammars=(): world.in_runner(lambda: verify_v2.why_not(sampler, used, lengths), grammars)
    assert why_not() is None
    sampler.sampling_states.vocab_size = 1 << 17
    lengths[0] = 20_000  # it has no penalty
    assert why_not() is None
    lengths[4] = 16_384
    assert why_not() is None
    lengths[4] += 1
    assert why_not() == "penalties on a request of more than 16,384 tokens"
    lengths[4] = 5
    told = [why_not(names) for names in (["request 0", "gone"], ["request 13"], [])]
    assert told == [None, "a thinking budget under a grammar, which may forbid its end", None]
    sampler.logits_processors.append(object())
    sampler.needs_logits_processing[:] = False
    assert why_not() is None


def test_what_falls_back_if_the_runner_is_not_patched():
    """If the runner is not patched, the plugin does not know which requests have a grammar. Steps with a thinking
    budget then fall back to vLLM."""
    sampler, slots, args = mixed()
    of, reason = world.rejection_sampler(sampler, K), "a thinking budget, with a runner that names no grammars"
    before = fallback.steps[reason]
    given = verify_v2.verify(lambda self, *args: args, of, **args)
    assert given[0] is args["logits"] and fallback.steps[reason] == before + 1
    sampler.thinking_budget_state.use_thinking_budget[slots] = False
    rows, tokens, _ = verify_v2.verify(None, of, **args)
    assert rows is args["logits"] and tokens.shape == (len(MIXED), K + 1) and fallback.steps[reason] == before + 1
