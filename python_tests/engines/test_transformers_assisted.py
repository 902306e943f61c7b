# SPDX-License-Identifier: Apache-2.0
"""transformers' assisted generation with its verification replaced: distributions, seeds, and cases where upstream
fails."""

import inspect

import numpy as np
import pytest
import torch
from support import tiny
from transformers.generation import utils

from specdec_kernels import testing
from specdec_kernels.integrations import transformers as ours
from specdec_kernels.integrations.transformers import assisted

pytestmark = pytest.mark.slow
UPSTREAM = utils._speculative_sampling
TAKES = inspect.signature(UPSTREAM).parameters
NEEDED = {"is_done_candidate": False} if "is_done_candidate" in TAKES else {}  # up to 5.12 at least
WEIGHTS = [None, 0.3] if "assistant_ensemble_weight" in TAKES else [None]
P, Q = torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0.4, 0.3, 0.2, 0.1])


@pytest.fixture
def patched():
    """Apply the patch, and undo it at the end."""
    yield lambda **given: (ours.patch(**given), utils._speculative_sampling)[1]
    ours.unpatch()
    assert utils._speculative_sampling is UPSTREAM


def first_tokens(function, n, **more):
    """Return the emitted tokens of each of n steps with two drafts, and how many drafts it accepts."""
    drafts = torch.multinomial(Q, 2 * n, True, generator=torch.Generator().manual_seed(3)).view(n, 1, 2)
    prompt = torch.zeros(1, 5, dtype=torch.int64)
    p, q = P.log().expand(1, 3, 4), Q.log().expand(1, 2, 4)
    out = [function(torch.cat([prompt, draft], 1), q, 2, p, **NEEDED | more) for draft in drafts]
    return [tokens for tokens, _ in out], torch.stack([n for _, n in out])


@pytest.mark.parametrize("weight", WEIGHTS)
def test_law(patched, weight):
    """The first token follows pi, and the first draft is accepted with probability sum min(pi, q). pi is p or, with an
    ensemble weight w, w p + (1 - w) q."""
    function, n = patched(generator=torch.Generator().manual_seed(1)), 3000
    tokens, kept = first_tokens(function, n, **{} if weight is None else {"assistant_ensemble_weight": weight})
    law = P if weight is None else weight * P + (1 - weight) * Q
    seen = torch.stack([t[0, 0] for t in tokens]).bincount(minlength=4).tolist()
    assert testing.check_counts(seen, law)
    rate = torch.minimum(law, Q).sum().item()
    assert abs((kept > 0).double().mean() - rate) < 5 * (rate * (1 - rate) / n) ** 0.5
    wrong = P if weight is not None else 0.3 * P + 0.7 * Q  # with the other parameter the test would fail
    assert not testing.check_counts(seen, wrong)


def test_shapes_are_transformers_own(patched):
    """The two outputs have the shapes that assisted generation reads: ids [1, n+1] int64, and a count without
    dimensions."""
    tokens, kept = first_tokens(patched(generator=torch.Generator().manual_seed(2)), 40)
    theirs, their_kept = first_tokens(UPSTREAM, 1)
    assert {int(n) for n in kept} == {0, 1, 2}
    for t, n in zip(tokens, kept):
        assert t.shape == (1, int(n) + 1) and t.dtype == theirs[0].dtype and n.dim() == their_kept[0].dim() == 0


def test_nothing_left_to_draw_from(patched):
    """q covers p, and has a little mass elsewhere, where the draft was drawn: upstream divides 0 by 0."""
    q, p = torch.tensor([[[0.0, -25.0]]]), torch.tensor([[[0.0, -torch.inf], [0.0, -torch.inf]]])
    given = (torch.tensor([[0, 1]]), q, 1, p, *NEEDED.values())
    with pytest.raises(RuntimeError, match="nan"):
        UPSTREAM(*given)
    tokens, n = patched(seed=1)(*given)
    assert tokens.tolist() == [[0]] and n == 0


def test_a_seed_fixes_the_coins_and_nothing_global_moves(patched):
    patched(seed=1)
    state = torch.get_rng_state()
    first, _ = first_tokens(utils._speculative_sampling, 30)
    again, _ = first_tokens(utils._speculative_sampling, 30)
    assert all(map(torch.equal, first, again)) and torch.equal(state, torch.get_rng_state())
    patched(seed=2)
    other, _ = first_tokens(utils._speculative_sampling, 30)
    assert [t.tolist() for t in first] != [t.tolist() for t in other]
    with pytest.raises(ValueError, match="exclude each other"):
        ours.patch(seed=1, generator=torch.Generator())


def test_a_step_further_on_draws_other_numbers(patched):
    function = patched(seed=1)
    p, q = P.log().expand(1, 1, 4), Q.log().expand(1, 0, 4)
    drawn = [
        function(torch.zeros(1, length, dtype=torch.int64), q, 0, p, **NEEDED)[0].item() for length in range(1, 400)
    ]
    assert testing.check_counts(np.bincount(drawn, minlength=4), P)


@pytest.mark.parametrize("sampled", [False, True])
def test_generate_with_an_assistant(patched, sampled):
    """In transformers' own loop, greedy tokens do not change, and sampled ones repeat with the same two seeds."""
    model, draft = tiny.llama(0), tiny.nearby(tiny.llama(0))
    ids = torch.tensor([[5, 6, 7, 8]])
    options = {"max_new_tokens": 20, "assistant_model": draft, "do_sample": sampled, "eos_token_id": None}

    def run():
        torch.manual_seed(7)  # seeds the draft's draws
        return model.generate(ids, pad_token_id=0, **options)

    if not sampled:
        plain = run()
        patched(seed=1)
        assert torch.equal(run(), plain)
        return
    calls = []
    patched(seed=1)
    function = utils._speculative_sampling
    utils._speculative_sampling = lambda *given, **more: calls.append(given) or function(*given, **more)
    try:
        first, second = run(), run()
    finally:
        utils._speculative_sampling = function
    assert calls and torch.equal(first, second) and first.size(1) == 24


def test_patching_again_is_one_layer(patched):
    one, two = patched(seed=1), patched(seed=2)
    assert one.__wrapped__ is two.__wrapped__ is UPSTREAM
    ours.unpatch()
    ours.unpatch()
    assert utils._speculative_sampling is UPSTREAM


def old_form(candidate_input_ids, candidate_logits, candidate_length, new_logits, is_done_candidate):
    """The function as in transformers 5.0."""


def strange(candidate_input_ids, logits):
    """A form that no transformers has."""


def test_a_draft_that_has_ended_the_text(patched, monkeypatch):
    """In the older form, no token follows the drafts if all are accepted and the last one ends the text."""
    monkeypatch.setattr(utils, "_speculative_sampling", old_form)
    function = patched(seed=1)
    ids, p, q = torch.tensor([[0, 2, 3]]), torch.tensor([0.0, 0.0, 0.5, 0.5]).log(), torch.full((4,), 0.25).log()
    given = (ids, q.expand(1, 2, 4), 2, p.expand(1, 3, 4))
    tokens, n = function(*given, False)
    assert tokens.shape == (1, 3) and n == 2
    tokens, n = function(*given, True)
    assert tokens.tolist() == [[2, 3]] and n == 1
    rejected = (torch.tensor([[0, 0, 0]]), *given[1:])
    tokens, n = function(*rejected, True)
    assert tokens.shape == (1, 1) and n == 0
    monkeypatch.setattr(utils, "_speculative_sampling", UPSTREAM)


@pytest.mark.parametrize("what", [strange, None])
def test_a_strange_transformers_is_left_alone(monkeypatch, caplog, what):
    if what is None:
        monkeypatch.delattr(utils, "_speculative_sampling")
    else:
        monkeypatch.setattr(utils, "_speculative_sampling", what)
    assert ours.patch() is False and "not patched" in caplog.text
    assert getattr(utils, "_speculative_sampling", None) is what


def test_this_transformers_is_known():
    assert assisted.NAME == UPSTREAM.__name__ and ours.patch() is True
    ours.unpatch()
