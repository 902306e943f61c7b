# SPDX-License-Identifier: Apache-2.0
"""Drafts of vLLM's V2 model runner: drawn with the request's filters, and verified with the same."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import vllm_v2_sampler as world

from specdec_kernels import testing
from specdec_kernels.integrations.vllm import draft_v2, verify_v2
from specdec_kernels.reference import chain_law

V, K, T = 6, 2, 0.8
FILTERS = {"temperature": T, "top_k": 4, "min_p": 0.12, "prompt": [0], "output": [2]}


def gumbel_sample(logits, idx, temperature, seeds, pos, apply_temperature, is_drafting, logits_cache, logits_cache_col):
    """Stand in for vLLM's function at temperature 0: store the rows of slots >= 0, and return the argmax."""
    assert (temperature == 0).all() and is_drafting and not apply_temperature
    for n, slot in enumerate(idx.tolist()):
        if slot >= 0:
            logits_cache[slot, logits_cache_col.expand(len(idx))[n]] = logits[n]
    return logits.argmax(1)


def tables():
    generator = torch.Generator().manual_seed(4)
    return torch.randn(V, V, generator=generator), torch.randn(V, V, generator=generator)


class StandaloneARSpeculator:
    """A drafter whose next row depends on the last token (its "hidden state")."""

    def __init__(self, S):
        self.draft_logits, self.draft_watermarker = torch.full((S, K, V), torch.nan), None
        self.temperature, self.seeds = torch.zeros(S), torch.zeros(S, dtype=torch.int64)
        self.predicted = []

    def compute_draft_logits(self, hidden_states, spec_step_idx):
        return tables()[1][hidden_states]

    def _maybe_predict_acceptance(self, logits, idx_mapping, draft_step):
        self.predicted.append(int(draft_step))

    def copy(self, slots, states):
        """Begin a step, as ``propose`` does: the slots' parameters are copied to fixed tensors."""
        upstream = lambda self, n, idx, temperature, seeds: (
            self.temperature.copy_(temperature),
            self.seeds.copy_(seeds),
        )
        draft_v2.copy_request_inputs(upstream, self, len(slots), slots, states.temperature.gpu, states.seeds.gpu)

    def draft(self, slots, last, position, step):
        by = (self.temperature, self.seeds, torch.tensor(step), self.draft_logits)
        return draft_v2.sample_draft(own_sample_draft, self, last, position, slots, *by)


def own_sample_draft(self, *args):
    return "vLLM's own"


@pytest.fixture
def made():
    """Return a function that makes a drafter, a sampler and the slots of these requests."""

    def make(requests, kind=StandaloneARSpeculator, **verifier):
        B = len(requests)
        slots = torch.randperm(B + 9, generator=torch.Generator().manual_seed(2))[:B]
        seeds = torch.randint(1 << 62, (B,), generator=torch.Generator().manual_seed(3)).tolist()
        sampler = world.sampler([r | {"seed": s} for r, s in zip(requests, seeds)], slots, B + 9, V)
        draft_v2.made(SimpleNamespace(sampler=sampler, **verifier))
        return kind(B + 9), sampler, slots

    yield make
    draft_v2.made(None)


def proposed(drafter, sampler, slots, position):
    """Return drafts [B, K] of requests whose last token is 2."""
    drafter.copy(slots, sampler.sampling_states)
    tokens = torch.full((len(slots), 1), 2)
    for step in range(K):
        drawn = drafter.draft(slots.to(torch.int32), tokens[:, -1], position + step, step)
        tokens = torch.cat([tokens, drawn[:, None]], 1)
    return tokens[:, 1:]


def filtered(z):
    """Return the distribution of a row under FILTERS, by hand: min-p, then top-k."""
    z = np.asarray(z, dtype=np.float64)
    mass = np.exp((z - z.max()) / T)
    mass[mass < FILTERS["min_p"]] = 0
    mass[z < np.sort(z)[-FILTERS["top_k"]]] = 0
    return mass / mass.sum()


def outcome(made, B, mutant=None):
    """Return the chi-square of the tokens of B steps against the distribution of drafting and verifying with the
    filters."""
    drafter, sampler, slots = made([FILTERS] * B)
    drafts = proposed(drafter, sampler, slots, torch.full((B,), 1))
    requests = [FILTERS | {"drafts": x} for x in drafts.tolist()]
    last = torch.cat([torch.full((B, 1), 2), drafts], 1).flatten()
    args = world.batch(requests, slots, tables()[0][last], drafter.draft_logits)
    if mutant == "prepared rows":  # as in steps that fall back
        sampler.sampling_states.num_logprobs[:] = 1
        sampler.logprobs_mode = "processed_logprobs"
    runner = SimpleNamespace(speculator=drafter, rejection_sampler=object())
    if mutant == "filters not passed on":
        runner.speculator = None
    run = lambda *_: verify_v2.verify(prepared, world.rejection_sampler(sampler, K), **args)
    _, tokens, count = verify_v2.runner_sample(run, runner, None, SimpleNamespace(num_draft_tokens=1), None)
    p, q = ([filtered(z) for z in table] for table in tables())
    after = lambda rows: lambda prefix: rows[prefix[-1] if prefix else 2]
    emitted = [row[:n] for row, n in zip(tokens.tolist(), count.tolist())]
    assert drafter.predicted == list(range(K))
    return testing.check_tokens(emitted, chain_law(after(p), after(q), K))


def prepared(self, logits, draft_logits, ids, pos, cu, slot, _, expanded, local, __, drafts):
    """Stand in for vLLM's ``_verify``: filter the rows, then call the module's ``rejection_sample``."""
    rows = torch.stack([torch.from_numpy(np.log(filtered(z))) for z in tables()[0]])
    of_last = rows[(logits[:, None] == tables()[0]).all(2).to(torch.int64).argmax(1)].float()
    states = self.sampler.sampling_states
    by = (states.temperature.gpu, states.seeds.gpu, K)
    return of_last, *verify_v2.rejection_sample(
        None, of_last, draft_logits, drafts, cu, pos, slot, expanded, local, *by
    )


@pytest.mark.slow
@pytest.mark.parametrize("draws, least", [(8_000, 0.06), pytest.param(20_000, 0.05, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("rows", [None, "prepared rows"])
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_joint_law_of_drafting_and_verifying(made, rows, draws, least):
    result = outcome(made, draws, rows)
    print(result)
    assert result.passed and result.detects < least, result


@pytest.mark.slow
def test_filters_that_verification_does_not_know_are_caught(made):
    assert not outcome(made, 8_000, "filters not passed on").passed


def test_drafts_are_those_that_the_filters_keep(made):
    drafter, sampler, slots = made([FILTERS] * 400)
    drafts = proposed(drafter, sampler, slots, torch.full((400,), 1))
    q = torch.tensor(np.stack([filtered(z) for z in tables()[1]]))
    assert (q[torch.full((400,), 2), drafts[:, 0]] > 0).all() and (q[drafts[:, 0], drafts[:, 1]] > 0).all()
    assert (q == 0).sum(1).min() > 0  # each row has an id that they remove
    assert torch.equal(drafter.draft_logits[slots, 0], tables()[1][2].expand(400, V))
    assert torch.equal(drafter.draft_logits[slots, 1], tables()[1][drafts[:, 0]])


def test_a_draft_depends_on_its_request_and_step_alone(made):
    drafter, sampler, slots = made([FILTERS | {"temperature": 1.5, "top_k": 0}] * 300)
    position = torch.arange(300) * 3
    drafts = proposed(drafter, sampler, slots, position)
    assert torch.equal(proposed(drafter, sampler, slots, position), drafts)
    order = torch.randperm(300)[:40]
    assert torch.equal(proposed(drafter, sampler, slots[order], position[order]), drafts[order])
    later = proposed(drafter, sampler, slots, position + 1)  # its first drafts have the second ones' positions
    fresh = drafter.draft(slots.to(torch.int32), torch.full((300,), 2), position + 1, 1)
    assert (later[:, 0] != fresh).float().mean() > 0.3


def test_padding_is_skipped(made):
    """Rows of slot -1, which pad a CUDA graph's batch, draw some token, and their logits are not stored."""
    drafter, sampler, slots = made([FILTERS] * 3)
    drafter.copy(slots, sampler.sampling_states)
    padded = torch.cat([slots[:2], torch.tensor([-1, -1])]).to(torch.int32)
    tokens = drafter.draft(padded, torch.tensor([2, 3, 4, 5]), torch.tensor([7, 9, 0, 0]), 0)
    assert tokens.shape == (4,) and ((tokens >= 0) & (tokens < V)).all()
    kept = drafter.draft_logits.isfinite().flatten(1).any(1)
    assert set(kept.nonzero()[:, 0].tolist()) == set(slots[:2].tolist())


def test_drafting_does_not_wait(made, monkeypatch):
    """On a simulated GPU no op mixes devices, nothing is waited for or uploaded, and the drafts are the same."""
    devices = pytest.importorskip("bench.devices", reason="needs the source tree's bench")
    drafter, sampler, slots = made([FILTERS] * 20)
    position, last, step = torch.arange(20) * 3, torch.full((20,), 2), torch.tensor(0)
    drafter.copy(slots, sampler.sampling_states)
    wanted = drafter.draft(slots, last, position, 0)
    monkeypatch.setitem(globals(), "gumbel_sample", lambda *args, **named: None)  # the stand-in reads values
    drafter._maybe_predict_acceptance = lambda *args: None
    with devices.watch() as seen:
        for name in ("draft_logits", "temperature", "seeds"):
            setattr(drafter, name, getattr(drafter, name).to("cuda"))
        drafter.specdec_filters = draft_v2.Filters(None, *(x.to("cuda") for x in drafter.specdec_filters[1:]))
        rows = tables()[1][last].to("cuda")
        drafter.compute_draft_logits = lambda hidden_states, spec_step_idx: rows
        idx, last, position, step = (x.to("cuda") for x in (slots.to(torch.int32), last, position, step))
        seen.synchronisations.clear(), seen.uploads.clear()
        by = (last, position, idx, drafter.temperature, drafter.seeds, step, drafter.draft_logits)
        drawn = draft_v2.sample_draft(own_sample_draft, drafter, *by)
        assert seen.synchronisations == seen.uploads == []
        assert drawn.is_cuda and torch.equal(drawn.cpu(), wanted)


def test_a_graph_reads_the_filters_where_they_were(made):
    """vLLM may replace its tensors by slot from step to step. A CUDA graph reads the drafter's copies, which stay in
    place and get the step's values."""
    drafter, sampler, slots = made([FILTERS] * 3)
    drafter.copy(slots, sampler.sampling_states)
    filters = drafter.specdec_filters
    places = [x.data_ptr() for x in filters[1:]]
    sampler.sampling_states.top_k.gpu = torch.full_like(sampler.sampling_states.top_k.gpu, 1)
    drafter.copy(slots, sampler.sampling_states)
    assert drafter.specdec_filters is filters and [x.data_ptr() for x in filters[1:]] == places
    assert (filters.top_k == 1).all()
    drawn = drafter.draft(slots.to(torch.int32), torch.tensor([2, 3, 4]), torch.tensor([5, 6, 7]), 0)
    assert torch.equal(drawn, tables()[1][[2, 3, 4]].argmax(1))


TargetDependentARSpeculator = type("TargetDependentARSpeculator", (), dict(vars(StandaloneARSpeculator)))
EagleSpeculator = type("EagleSpeculator", (TargetDependentARSpeculator,), {})
DFlashSpeculator = type("DFlashSpeculator", (), dict(vars(StandaloneARSpeculator)))  # it drafts in one pass


def greedy(S):
    drafter = StandaloneARSpeculator(S)
    drafter.draft_logits = None
    return drafter


def marked(S):
    drafter = StandaloneARSpeculator(S)
    drafter.draft_watermarker = object()
    return drafter


@pytest.mark.parametrize(
    "kind, verifier, ours",
    [
        (StandaloneARSpeculator, {}, True),
        (EagleSpeculator, {}, True),
        (DFlashSpeculator, {}, False),
        (greedy, {}, False),
        (marked, {}, False),
        (StandaloneARSpeculator, {"watermark_key": 7}, False),
        (StandaloneARSpeculator, {"fly_window_size": 2}, False),
        (StandaloneARSpeculator, {"fly_window_size": 0}, True),
    ],
)
def test_which_drafters_draw_with_filters(made, kind, verifier, ours):
    drafter, sampler, slots = made([FILTERS] * 3, kind, **verifier)
    drafter.copy(slots, sampler.sampling_states)
    drawn = drafter.draft(slots.to(torch.int32), torch.tensor([2, 2, 2]), torch.tensor([7, 9, 1]), 0)
    assert (drawn is not own_sample_draft(None)) == ours and (drafter.specdec_filters is not None) == ours


def test_a_graph_captured_before_the_first_step_stays_vllms_own(made):
    drafter, sampler, slots = made([FILTERS] * 3)
    for _ in range(2):
        assert drafter.draft(slots, torch.tensor([2, 2, 2]), torch.tensor([7, 9, 1]), 0) == own_sample_draft(None)
        drafter.copy(slots, sampler.sampling_states)
        assert drafter.specdec_filters is None
