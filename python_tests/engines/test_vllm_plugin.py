# SPDX-License-Identifier: Apache-2.0
"""vLLM's plugin without vLLM: the distribution of its output, what it passes on, and what falls back to vLLM."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import vllm_stub
from support.vllm_step import PARAMETERS, V, chi_square_of_a_step, law, never, step, tables

from specdec_kernels import testing
from specdec_kernels.integrations.vllm import draft, fallback, grammar, verify
from specdec_kernels.integrations.vllm.keys import keys

pytestmark = pytest.mark.usefixtures("vllm_modules")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["standard", "block"])
def test_joint_law_of_drafting_and_verifying(method):
    """Drafts are drawn with the request's filters, then verified: the output follows the distribution by definition."""
    result = chi_square_of_a_step(method)
    assert result.passed and result.detects < 0.03, result


@pytest.mark.slow
@pytest.mark.parametrize("mutant", ["another temperature", "one uniform for both drafts", "no filters"])
def test_a_wrong_drafter_is_caught(mutant, monkeypatch):
    """The distribution is right only if the draft draws with the parameters given to verification, and each position
    with its own random number."""
    right = draft.sample

    def wrong(rows, slot, **key):
        if mutant == "another temperature":
            rows = rows._replace(temperature=rows.temperature * 1.5)
        if mutant == "one uniform for both drafts":
            slot = 0
        if mutant == "no filters":
            rows = rows._replace(top_k=None, top_p=None)
        return right(rows, slot=slot, **key)

    monkeypatch.setattr(draft, "sample", wrong)
    assert not chi_square_of_a_step().passed


def test_a_seeded_request_repeats_itself_among_others():
    target, drafter = tables(2)
    B, broad = 40, {"temperature": 3.0}
    seeds = {b: 1000 + b for b in range(B)}
    start = torch.arange(B) * 3
    alone = step(target, drafter, B, start, seeds, parameters=broad)
    order = torch.randperm(B, generator=torch.Generator().manual_seed(3))
    kept = order[:25]  # other requests are gone, and some of the rest have no seed
    some = {i: seeds[b] for i, b in enumerate(kept.tolist()) if i % 5}
    again = step(target, drafter, 25, start[kept], some, parameters=broad)
    same = (again == alone[kept]).all(1)
    assert same[torch.arange(25) % 5 > 0].all()
    later = step(target, drafter, B, start + 1, seeds, parameters=broad)
    assert not torch.equal(later, alone)  # another position uses other numbers


def test_a_seeded_request_draws_alike_whether_others_have_drafts():
    """A seeded request draws the same first token in a step without drafts, which takes the same path."""
    B, rows = 30, torch.randn(30, V, generator=torch.Generator().manual_seed(5))
    seeds, start = {b: 50 + b for b in range(B)}, torch.arange(B) * 2

    def sampled(drafts, seeds):
        sampling, sampler = vllm_stub.sampling(B, seeds=seeds), vllm_stub.rejection_sampler()
        positions = start.repeat_interleave(torch.tensor(drafts) + 1)
        runner = vllm_stub.runner(sampler, vllm_stub.proposer(), positions, sampling)
        metadata = vllm_stub.metadata(drafts, torch.full((sum(drafts),), -1)) if any(drafts) else None
        logits = rows.repeat_interleave(torch.tensor(drafts) + 1, 0)
        return vllm_stub.sample(runner, logits, metadata)

    alone = sampled([0] * B, seeds).sampled_token_ids
    assert alone.shape == (B, 1) and len(alone.unique()) > 2
    assert torch.equal(sampled([b % 3 for b in range(B)], seeds).sampled_token_ids[:, :1], alone)
    assert (sampled([0] * B, {}).sampled_token_ids >= 0).all()  # without seeds too


@pytest.mark.parametrize("why", ["logprob_token_ids", "processed logprobs"])
def test_a_step_without_drafts_that_is_left_to_vllm(why):
    """A step that is left to vLLM's sampler first has the grammar applied to its rows, once."""
    fallback.steps.clear()
    sampling, sampler = vllm_stub.sampling(1), vllm_stub.rejection_sampler()
    if why == "logprob_token_ids":
        sampling.logprob_token_ids = {0: [3]}
    else:
        sampler.is_processed_logprobs_mode, sampling.max_num_logprobs = True, 2
    runner = vllm_stub.runner(sampler, vllm_stub.proposer(), torch.tensor([7]), sampling)
    rows, written = torch.zeros(1, V), []
    of_grammar = SimpleNamespace(structured_output_request_ids=["request 0"], grammar_bitmask=np.array([[3]], "int32"))
    drafts = SimpleNamespace(scheduled_spec_decode_tokens={})
    grammar.apply_grammar_bitmask(lambda *given: written.append(given), drafts, of_grammar, runner.input_batch, rows)
    assert not written
    assert vllm_stub.sample(runner, rows, None) is None and list(fallback.steps) == [why]
    assert written == [(drafts, of_grammar, runner.input_batch, rows)]
    assert vllm_stub.sample(runner, rows, None) is None and len(written) == 1  # once


def test_requests_without_drafts_and_placeholders():
    """A request without drafts emits one token, and an id of -1 ends a draft."""
    target = torch.full((7, V), -20.0)
    target[torch.arange(7), torch.tensor([1, 2, 3, 4, 0, 1, 2])] = 20.0
    metadata = vllm_stub.metadata([2, 0, 2], torch.tensor([1, 2, 0, -1]))
    out = verify.forward(never, vllm_stub.rejection_sampler(), metadata, None, target, vllm_stub.sampling(3))
    assert out.sampled_token_ids.tolist() == [[1, 2, 3], [4, -1, -1], [0, 1, -1]]
    assert out.sampled_token_ids.dtype == torch.int32 and out.logprobs_tensors is None


def test_greedy_needs_neither_rows_nor_randomness():
    sampling = vllm_stub.sampling(1, all_greedy=True, all_random=False)
    sampling.temperature = None
    metadata = vllm_stub.metadata([1], torch.tensor([3]))
    rows = torch.eye(V)[[3, 2]]
    probs = torch.full((1, V), torch.nan)
    out = verify.forward(never, vllm_stub.rejection_sampler(), metadata, probs, rows, sampling)
    assert out.sampled_token_ids.tolist() == [[3, 2]]


def test_drafts_whose_rows_are_gone_are_not_kept():
    """vLLM drops its draft rows if a request has none. Drafts drawn from them can then not be verified."""
    sampler = vllm_stub.rejection_sampler()
    metadata = vllm_stub.metadata([2], torch.tensor([3, 3]))
    sampler.specdec_step = vllm_stub.step(metadata, torch.tensor([4]))
    out = verify.forward(never, sampler, metadata, None, torch.eye(V)[[3, 3, 3]] * 50, vllm_stub.sampling(1))
    assert out.sampled_token_ids.tolist() == [[3, -1, -1]]


@pytest.mark.parametrize("greedy", [False, True])
def test_synthetic_rates(greedy):
    """A position's rate is the probability that its draft is accepted if all before it are. There are more rates than
    drafts in this step."""
    B, sampler = 20_000, vllm_stub.rejection_sampler("synthetic")
    sampling = vllm_stub.sampling(B, all_greedy=greedy)
    metadata = vllm_stub.metadata([2] * B, torch.tensor([0, 1] * B))
    sampler.specdec_step = vllm_stub.step(metadata, torch.arange(B))
    rows = torch.full((3 * B, V), -30.0).index_fill(1, torch.tensor([4]), 30.0)  # the target favours neither
    draft_rows = torch.zeros(2 * B, V)
    out = verify.forward(never, sampler, metadata, draft_rows, rows, sampling).sampled_token_ids
    assert testing.check_tokens(out, {(0, 1, 4): 0.75, (0, 4): 0.25})  # the first rate is 1


@pytest.mark.parametrize("why", ["fly", "processed logprobs", "a logits processor that is not known", "rows"])
@pytest.mark.parametrize("kind", ["argmax_invariant", "non_argmax_invariant"])
def test_what_is_left_to_vllm(why, kind, caplog):
    """Each fallback is counted by its reason, which is logged once."""
    fallback.steps.clear()
    caplog.set_level("INFO", "vllm.specdec_kernels")
    sampler = vllm_stub.rejection_sampler(why if why == "fly" else "standard")
    sampling, rows = vllm_stub.sampling(1), torch.zeros(2, V)
    if why == "processed logprobs":
        sampler.is_processed_logprobs_mode, sampling.max_num_logprobs = True, 2
    if why.startswith("a logits processor"):
        getattr(sampling.logitsprocs, kind).append(SimpleNamespace())
    if why == "rows":
        rows = torch.zeros(3, V)
    metadata = vllm_stub.metadata([1], torch.tensor([3]))
    arguments = (sampler, metadata, None, rows, sampling)
    for _ in range(2):
        assert verify.forward(lambda *args: args == arguments, *arguments)
    reason = {"fly": "rejection_sample_method fly", "rows": "another number of rows of logits"}.get(why, why)
    (counted,) = fallback.steps
    assert reason in counted and fallback.steps[counted] == 2
    assert not any(map(str.isdigit, counted))  # a metric's label, the same for all steps
    (message,) = caplog.messages  # once
    assert message.endswith(f": {counted} (first with {len(rows)} rows and the drafts [1])")


@pytest.mark.parametrize("method", ["standard", "synthetic"])
def test_vllms_own_way_is_told_the_drafts_law(method):
    """Our drafter passes logits. vLLM would take them for probabilities, so that they are converted."""
    sampling, sampler = vllm_stub.sampling(3, **PARAMETERS), vllm_stub.rejection_sampler(method)
    sampling.temperature[2] = 0
    sampler.is_processed_logprobs_mode, sampling.max_num_logprobs = True, 2
    metadata = vllm_stub.metadata([2, 1, 1], torch.tensor([3, 1, 2, 2]))
    sampler.specdec_step = vllm_stub.step(metadata, torch.zeros(3, dtype=torch.int64))
    rows = torch.randn(4, 1, V, generator=torch.Generator().manual_seed(8)) * 2
    told = lambda self, metadata, probs, logits, sampling_metadata: (metadata.draft_token_ids.tolist(), probs)
    drafts, probs = verify.forward(told, sampler, metadata, rows, torch.zeros(7, V), sampling)
    wanted = np.stack([law(row, **PARAMETERS) for row in rows[:3, 0].numpy()])
    assert drafts == [3, 1, 2, 2]
    np.testing.assert_allclose(probs[:3], wanted, rtol=2e-6)  # a few float32 roundings, with exponents below 8
    assert torch.isfinite(probs[3]).all()  # greedy: not needed
    kept = method == "synthetic"  # decided by rates, not by distributions
    assert verify.forward(told, sampler, metadata, None, torch.zeros(7, V), sampling) == (
        [3, 1, 2, 2] if kept else [-1] * 4,
        None,
    )


def test_rejection_sample_of_rows_that_vllm_prepared():
    """vLLM passes draft probabilities, rows to which the temperature is already applied, and a bonus token that it
    drew."""
    z, q = torch.tensor([[2.0, 0.0, 1.0], [0.0, 3.0, 0.0]]), torch.tensor([[0.0, 1.0, 0.0], [0.2, 0.6, 0.2]])
    B = 20_000
    sampling = vllm_stub.sampling(B, temperature=0.3)  # applied to z by vLLM, and not again
    args = (torch.tensor([1, 1] * B, dtype=torch.int32), [2] * B, 2, torch.arange(1, B + 1) * 2)
    named = {"synthetic_mode": False, "synthetic_conditional_rates": None, "use_fp64_gumbel": False}
    bonus = torch.full((B, 1), 2)
    out = verify.rejection_sample(never, *args, q.repeat(B, 1), z.repeat(B, 1), bonus, sampling, **named)
    p0, p1 = (torch.softmax(row.double(), 0) for row in z)
    a0, a1 = float(p0[1]), min(1.0, float(p1[1]) / 0.6)
    wanted = {(x,): float(p0[x]) for x in (0, 2)}
    wanted |= {(1, x): a0 * (1 - a1) * 0.5 for x in (0, 2)} if a1 < 1 else {}
    wanted |= {(1, 1, 2): a0 * a1}
    assert a1 == 1 and out.dtype == torch.int32  # p(1) = .91 in the second row
    assert testing.check_tokens(out, wanted)
    mixed = vllm_stub.sampling(1, all_random=False)
    mixed.temperature = torch.zeros(1)
    greedy = verify.rejection_sample(never, *(x[:2] if torch.is_tensor(x) else x for x in args[:1]), [2], *args[2:3],
                                     torch.tensor([2]), q, z, bonus[:1], mixed)  # fmt: skip
    assert greedy.tolist() == [[0, -1, -1]]


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("by_name", [False, True])
def test_rejection_sample_at_synthetic_rates(greedy, by_name):
    """The first draft is kept with rate 0.75, then the second with 0.5. After a rejection the token is the target's;
    after both drafts vLLM's bonus token follows. Neither the draft's nor the target's row decides."""
    B = 20_000
    z = torch.full((2 * B, V), -30.0).index_fill(1, torch.tensor([4]), 30.0)
    sampling = vllm_stub.sampling(B, all_greedy=greedy)
    drafts, bonus, rates = (
        torch.tensor([0, 1] * B, dtype=torch.int32),
        torch.full((B, 1), 2),
        torch.tensor([0.75, 0.5, 0.9]),
    )
    more, named = (True, rates), {}
    if by_name:
        more, named = (), {"synthetic_mode": True, "synthetic_conditional_rates": rates}
    q = torch.zeros(2 * B, V).index_fill(1, torch.tensor([3]), 1.0)
    args = (drafts, [2] * B, 2, torch.arange(1, B + 1) * 2, q, z, bonus, sampling)
    out = verify.rejection_sample(never, *args, *more, **named)
    assert testing.check_tokens(out, {(4,): 0.25, (0, 4): 0.375, (0, 1, 2): 0.375})


def test_synthetic_mode_without_rates_is_refused():
    with pytest.raises(ValueError, match="rejection_sample: synthetic_conditional_rates must be given"):
        verify.rejection_sample(never, None, [1], 1, None, None, torch.zeros(1, V), None, vllm_stub.sampling(1), True)


@pytest.mark.parametrize(
    "more, named", [((), {"fly_window_size": 4}), ((False, None, False, 4), {}), ((), {"watermark": None})]
)
def test_fly_or_a_strange_rejection_sample_goes_vllms_way(more, named):
    assert verify.rejection_sample(lambda *args, **kw: (args, kw) == (tuple(range(8)) + more, named), *range(8), *more,
                                   **named)  # fmt: skip


def test_expand_batch_to_tokens():
    for dtype in (torch.float32, torch.int32, torch.int64):
        x = torch.tensor([0, 3, 5], dtype=dtype)
        out = verify.expand_batch_to_tokens(never, x, torch.tensor([2, 2, 3], dtype=torch.int32), 3, 0, 1)
        assert out.tolist() == [1, 1, 5] and out.dtype == dtype


def test_keys():
    generators = {1: torch.Generator().manual_seed(2**63 + 5), 7: torch.Generator()}
    seed, offset = keys(generators, torch.tensor([10, 20, 30]), 3, torch.device("cpu"))
    assert int(seed[1]) == 5 - 2**63 and offset.tolist() == [10, 20, 30]
    again, _ = keys(generators, torch.tensor([10, 20, 30]), 3, torch.device("cpu"))
    assert seed[1] == again[1] and (seed[[0, 2]] != again[[0, 2]]).all()
    first, second = (keys(generators, None, 3, torch.device("cpu"))[1] for _ in range(2))
    assert first[1] != second[1]  # where positions are not known, each step has another offset
    assert keys({1: torch.Generator().manual_seed(2**63 + 5)}, None, 3, torch.device("cpu"))[1][1] == first[1]
