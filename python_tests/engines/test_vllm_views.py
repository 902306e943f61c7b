# SPDX-License-Identifier: Apache-2.0
"""Penalties, biases, bans and masks of requests, applied by vLLM's plugin as views of the rows in a V1 step."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import vllm_stub, vllm_views
from support.vllm_step import never
from torch.nn.functional import pad

from specdec_kernels import Rows, verify_chain
from specdec_kernels.integrations.vllm import draft, grammar, metrics, race, thinking, views

pytestmark = pytest.mark.usefixtures("vllm_modules")

EVERY = vllm_views.KINDS


def step(batch, seeds, draft_rows=None, moved=lambda x: x):
    """Return vLLM's SamplerOutput of a step of the runner with the batch, on the device that `moved` moves to.

    Its drafts are one-hot, or have rows [B, K, V]; then those with fewer than K tokens were cut.
    """
    sampler = vllm_stub.rejection_sampler()
    batch.sampling.generators = {b: torch.Generator().manual_seed(seed) for b, seed in seeds.items()}
    metadata = vllm_stub.metadata(batch.counts.tolist(), torch.tensor(sum(batch.drafts, []), dtype=torch.int64))
    drafts = torch.tensor([x + [0] * (vllm_views.K - len(x)) for x in batch.drafts])
    proposer = vllm_stub.proposer()
    proposer.specdec = SimpleNamespace(logits=draft_rows is not None)
    runner = vllm_stub.runner(sampler, proposer, torch.arange(len(batch.rows)), batch.sampling, drafts, draft_rows)
    runner.query_start_loc.gpu = pad(metadata.cu_num_sampled_tokens, (1, 0))
    runner, rows, metadata = moved(runner), moved(batch.rows), moved(metadata)
    if batch.grammar:
        grammar.apply_grammar_bitmask(never, *batch.grammar_output(), runner.input_batch, rows)
    return vllm_stub.sample(runner, rows, metadata if sum(batch.counts) else None)


def wanted(batch, seeds):
    """Return the tokens of verify_chain on rows written out in full."""
    first = np.cumsum(batch.counts + 1) - batch.counts - 1
    temperature = 0.0 if batch.sampling.all_greedy else batch.sampling.temperature
    rows = Rows(batch.written_out(), temperature=temperature, top_p=batch.sampling.top_p)
    cu_draft = torch.from_numpy(np.cumsum([0, *batch.counts]))
    of = {"seed": torch.tensor(list(seeds.values())), "offset": torch.from_numpy(first)}
    drafts = torch.tensor(sum(batch.drafts, []), dtype=torch.int64)
    return verify_chain(rows, drafts, cu_draft=cu_draft, max_draft=int(max(batch.counts)), **of)


@pytest.mark.parametrize("kinds", [(), *((kind,) for kind in EVERY), EVERY[:4], ("min tokens", "grammar"), EVERY])
@pytest.mark.parametrize("parameters", [{"temperature": 0.9, "top_p": 0.95}, {"all_greedy": True}])
def test_tokens_are_those_of_the_rows_by_definition(kinds, parameters):
    """Bit for bit: the rows by definition, written out in float32, give the same tokens."""
    changed = 0
    for seed in range(5):
        batch = vllm_views.Batch(kinds, seed=seed, **parameters)
        seeds, raw = {b: 100 * seed + b for b in range(batch.B)}, batch.rows.clone()
        out = wanted(batch, seeds)
        assert (out.status != 0).sum() <= (2 if len(kinds) > 4 else 0)  # rows in which nothing is allowed
        got = step(batch, seeds).sampled_token_ids
        assert torch.equal(got, out.tokens.to(torch.int32))
        assert torch.equal(batch.rows, raw)
        plain = vllm_views.Batch((), seed=seed, **parameters)
        plain.drafts, plain.counts, plain.rows = batch.drafts, batch.counts, batch.rows
        changed += int((wanted(plain, seeds).tokens != out.tokens).sum())
    assert changed >= 5 if kinds else changed == 0


def on_gpu(x):
    """Return x with its tensors on the GPU, except those of a holder of budgets."""
    if isinstance(x, SimpleNamespace):
        return SimpleNamespace(**{name: on_gpu(y) for name, y in vars(x).items()})
    if isinstance(x, list) and x and isinstance(x[0], SimpleNamespace):
        return [on_gpu(y) for y in x]
    return x.to("cuda") if isinstance(x, torch.Tensor) else x


@pytest.mark.parametrize("drafts", ["one-hot", "cut"])
def test_nothing_waits_for_the_device(monkeypatch, drafts):
    """On a simulated GPU no op mixes devices, each upload is from pinned memory and not waited for, and the tokens are
    the same."""
    devices = pytest.importorskip("bench.devices", reason="needs the source tree's bench")
    batch = vllm_views.Batch(EVERY[:6], temperature=0.9, top_p=0.95)
    seeds = {b: 5 + b for b in range(batch.B)}
    rows = torch.zeros(batch.B, vllm_views.K, batch.V) if drafts == "cut" else None
    wanted = step(batch, seeds, rows).sampled_token_ids
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda x: pinned.append(x) or x)
    monkeypatch.setattr(metrics, "_statuses", {})  # on the simulated GPU of another test
    with devices.watch() as seen:

        def moved(x):
            x = on_gpu(x)
            seen.synchronisations.clear(), seen.uploads.clear()
            return x

        tokens = step(batch, seeds, rows, moved).sampled_token_ids
        assert seen.synchronisations == [] and len(seen.uploads) == len(pinned) > 5
        assert tokens.is_cuda and torch.equal(tokens.cpu(), wanted)


def test_min_tokens_gives_way_to_a_grammar_that_allows_nothing_else():
    """As in vLLM, a request may end before its minimum if its grammar allows only end tokens."""
    batch = vllm_views.Batch(("min tokens", "grammar"), seed=1)
    only_end = [
        b
        for b in batch.grammar.keys() & batch.ends.keys()
        if set(np.nonzero(batch.grammar[b][0])[0]) <= batch.ends[b][1]
    ]
    got = step(batch, {b: b for b in range(batch.B)}).sampled_token_ids
    assert len(only_end) > 3
    for b in only_end:
        assert int(got[b, 0]) in batch.ends[b][1]


@pytest.mark.parametrize(
    "masks, wanted",
    [(6, [-1, 0, 1, 2, 3, 4, 5]), (8, [-1, 0, 1, 4, 5, 6, 7])],
    ids=["without gaps (vLLM 0.32)", "4 masks for each request (vLLM 0.33)"],
)
def test_which_mask_is_a_rows(masks, wanted):
    """Requests with 0, 1 and 3 of 3 drafts; the last two have grammars."""
    drafts = {"b": [5], "c": [5, 6, 7]}
    batch = SimpleNamespace(req_ids=["a", "b", "c"])
    scheduled = SimpleNamespace(scheduled_spec_decode_tokens=drafts)
    bits = np.arange(masks, dtype=np.int32)[:, None]
    asked = SimpleNamespace(structured_output_request_ids=["b", "c"], grammar_bitmask=bits)
    grammar.apply_grammar_bitmask(never, scheduled, asked, batch, torch.zeros(7, 9))
    found = grammar.taken(batch).masks
    assert found.row.tolist() == wanted and found.bits.tolist() == bits.tolist()


class OneEnd:
    """vLLM's ThinkingBudgetStateHolder without speculation, for one request whose end marker is one token: a call for
    bonus rows marks it as forced, and later calls for other rows then force nothing."""

    in_spec_mode, marked = False, False

    def has_tracked_requests(self):
        return True

    def update_state(self, *_, **__):
        pass

    def apply_to_logits(self, logits, predict_bonus_token, spec_token_ids):
        if predict_bonus_token or not self.marked:
            logits.index_put_((torch.tensor([0]), torch.tensor([2])), logits.new_full((1,), 1e9))
        self.marked |= predict_bonus_token


def test_a_budget_without_speculation_is_asked_once():
    sampling = vllm_stub.sampling(1, thinking_budget_state_holder=OneEnd())
    forced = thinking.forced(draft.no_drafts(torch.arange(2), 1), sampling)
    assert forced.row.tolist() == [0] and forced.ids.tolist() == [2]
    assert not sampling.thinking_budget_state_holder.marked


def test_history_by_hand():
    """Prompt (3, 3, 8) and output (0, 0, 2). Another request has pads of V = 9 after its prompt, and placeholders."""
    prompt, output = torch.tensor([[3, 3, 8], [5, 9, 9]]), torch.tensor([[0, 0, 2], [5, -1, -1]])
    ids, counts = views.history(prompt, output, 9)
    assert ids.tolist() == [[0, 2, 3, 8, -1, -1], [5, -1, -1, -1, -1, -1]]
    assert counts.tolist() == [[2, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0]]
    ids, counts = views.history(torch.tensor([[0, 1, 0]]), torch.tensor([[1, 1]]), 2)  # longer than the vocabulary
    assert ids.tolist() == [[0, 1]] and counts.tolist() == [[0, 2]]


@pytest.mark.parametrize("V", [1, 31, 32, 33, 100])
def test_packed_masks(V):
    forbidden = torch.rand(3, V, generator=torch.Generator().manual_seed(V)) < 0.5
    bits = views.packed(forbidden)
    assert bits.shape == (3, -(-V // 32)) and bits.dtype == torch.int32
    unpacked = np.unpackbits(bits.numpy().view(np.uint8), axis=1, bitorder="little")
    assert (unpacked[:, :V] == ~forbidden.numpy()).all() and not unpacked[:, V:].any()


def test_raw_logprobs_are_those_under_the_grammar():
    """As in vLLM, raw logprobs are those of rows to which the grammar was applied, and nothing else."""
    batch = vllm_views.Batch(EVERY, max_num_logprobs=2)
    out = step(batch, {b: b for b in range(batch.B)})
    assert max(batch.counts) == vllm_views.K
    ids, columns = out.sampled_token_ids, vllm_views.K + 1
    seen = 0
    for b in range(batch.B):
        for i in range(int((ids[b] >= 0).sum())):
            z = batch.rows[int(batch.counts[:b].sum()) + b + i].double()
            if b in batch.grammar:
                z[~torch.from_numpy(batch.grammar[b][i])] = -torch.inf
                seen += 1
            want = z.log_softmax(0)[int(ids[b, i])]
            got = out.logprobs_tensors.logprobs[b * columns + i, 0]
            torch.testing.assert_close(got.double(), want, rtol=0, atol=2e-6)  # two float32 roundings below 16
    assert seen > 20


def allocations(run):
    """Return the bytes of each tensor that is allocated while run() runs, inside of ops too."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    events = profile.profiler.kineto_results.events()
    return [event.nbytes() for event in events if event.name() == "[memory]" and event.nbytes() > 0]


CONFIGURATIONS = {
    "temperature": ((), {}),
    "greedy": ((), {"all_greedy": True}),
    "filters": ((), {"top_k": 40, "top_p": 0.9, "min_p": 0.05}),
    **{kind: ((kind,), {}) for kind in EVERY},
    "min tokens and grammar": (("min tokens", "grammar"), {}),
    "logprobs": (("grammar",), {"max_num_logprobs": 5}),
    "everything": (EVERY, {"top_k": 40, "top_p": 0.9, "min_p": 0.05, "max_num_logprobs": 5}),
}


def asking(kinds, V, parameters):
    """Return a batch of one request with two drafts and parameters of each of these kinds."""
    for seed in range(2000):
        batch = vllm_views.Batch(kinds, 1, 40, seed, **parameters)
        asked = (batch.bias, batch.bad_words, batch.ends, (batch.penalties != [1, 0, 0]).any(), batch.lists,
                 batch.grammar, batch.forced)  # fmt: skip
        asked = dict(zip(EVERY, asked, strict=True))
        if batch.counts[0] == 2 and all(asked[kind] for kind in kinds):
            return vllm_views.Batch(kinds, 1, V, seed, **parameters)
    raise AssertionError("no such batch")


@pytest.mark.parametrize("name", CONFIGURATIONS)
@pytest.mark.parametrize("drafts", ["one-hot", "cut", "none"])
def test_no_scratch_of_a_rows_size(name, drafts):
    """A step of one request, of 1 or 3 rows, allocates nothing of V elements, not even of one byte each. (Packed masks
    take V / 8 bytes a row.)"""
    V = 1 << 18
    batch = asking(CONFIGURATIONS[name][0], V, CONFIGURATIONS[name][1])
    if drafts == "none":
        batch.counts, batch.drafts, batch.rows = np.array([0]), [[]], batch.rows[:1]
        batch.grammar, batch.forced = (
            {b: x[:1] for b, x in batch.grammar.items()},
            {b: (0, x[1]) for b, x in batch.forced.items()},
        )
        batch.sampling = batch.metadata_of(CONFIGURATIONS[name][1])
    made = []
    rows = torch.zeros(1, vllm_views.K, V, dtype=torch.bfloat16) if drafts == "cut" else None
    found = allocations(lambda: made.append(step(batch, {0: 7}, rows)))
    assert made[0].sampled_token_ids.shape == (1, len(batch.rows)) and found
    assert max(found) < V, max(found) / V


def test_the_count_of_allocations_sees_a_scratch():
    V = 1 << 18
    rows = torch.zeros(1, V, dtype=torch.bfloat16)
    assert max(allocations(lambda: rows == 0)) == V
    assert max(allocations(lambda: rows.float())) == 4 * V


@pytest.mark.parametrize("races", [True, False])
def test_no_scratch_in_drafting(races):
    V = 1 << 18
    logits, sampling = torch.randn(1, V).to(torch.bfloat16), vllm_stub.sampling(1, top_k=40, top_p=0.9, min_p=0.05)
    proposer, at = vllm_stub.proposer(), race.Place(torch.tensor([5]), torch.tensor([9]))
    proposer.specdec = draft.Drafting(race=at if races else None)
    made = []
    found = allocations(lambda: made.append(draft.sample_from_logits(never, proposer, logits, sampling)))
    assert made[0][0].shape == (1,) and made[0][1] is logits and max(found) < V
