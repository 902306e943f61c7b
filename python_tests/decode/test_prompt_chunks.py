# SPDX-License-Identifier: Apache-2.0
"""Prompts read in chunks: no pass of the target or of a drafter is wider, and the text is the same.

test_architectures.py compares texts read in chunks and at once for every architecture.
"""

import pytest
import torch
from support import tiny
from support.tiny import layer_draft

from specdec_kernels.decode import (
    BeamDrafter,
    HierarchicalDrafter,
    LeanLlama,
    LookupThenModel,
    ModelDrafter,
    PromptLookupDrafter,
    Request,
    Session,
    TokenCascade,
    TreeDrafter,
    adapt,
    beam_search,
    generate,
)
from specdec_kernels.decode.models.prompt import PREFILL_CHUNK

pytestmark = pytest.mark.usefixtures("one_thread")
PROMPT = torch.randint(0, 32, (70,), generator=torch.Generator().manual_seed(1)).tolist()
DRAFTERS = {
    "plain": lambda d, s: None,
    "model": lambda d, s: ModelDrafter(d, 3),
    "both": lambda d, s: LookupThenModel(PromptLookupDrafter(3), ModelDrafter(d, 3)),
    "tree": lambda d, s: TreeDrafter(d, "greedy", 2, 2),
    "hierarchical": lambda d, s: HierarchicalDrafter(d, ModelDrafter(s, 2), 4),
    "cascade": lambda d, s: TokenCascade(d, 20),
}


class Noting:
    """Passes every call on to a model, and records the width of its passes that read a prompt."""

    def __init__(self, model, widths):
        self.model, self.widths = model, widths

    def __getattr__(self, name):
        return getattr(self.model, name)

    def forward(self, ids, start, cache, slot=0, keep="all", **options):
        if keep is None:
            self.widths.append(ids.shape[1])
        return self.model.forward(ids, start, cache, slot, keep, **options)


FEW = [("model", True), ("hierarchical", True), ("tree", False)]
MORE = [(kind, lean) for kind in DRAFTERS for lean in (True, False) if (kind, lean) not in FEW]


@pytest.mark.parametrize("kind, lean", [*FEW, *(pytest.param(*case, marks=pytest.mark.thorough) for case in MORE)])
def test_no_pass_is_wider_and_the_text_is_the_same(kind, lean):
    hf = tiny.llama(0)
    models = [adapt(m, lean=lean) for m in (hf, tiny.nearby(tiny.llama(0)), tiny.nearby(tiny.llama(0), 0.05))]
    rule = dict(rule="chow", alpha=0.4) if kind == "cascade" else {}
    todo = [Request(PROMPT[:n], 5, **rule) for n in (70, 33, 1)]
    found = {}
    for chunk in (32, 69, PREFILL_CHUNK):
        widths = [[], [], []]
        target, *drafts = (Noting(*x) for x in zip(models, widths))
        output = generate(target, todo, DRAFTERS[kind](*drafts), prefill_chunk=chunk, max_batch=2)
        found[chunk] = [result.tokens for result in output.results]
        for one in (w for w in widths if w):
            assert max(one) == min(chunk, 69) and sum(one[: -(-69 // chunk)]) == 69
        assert len([w for w in widths if w]) == {"plain": 1, "hierarchical": 3}.get(kind, 2)
    assert len({str(tokens) for tokens in found.values()}) == 1
    if kind != "cascade":
        assert found[32] == [tiny.greedy(hf, request.prompt, 5) for request in todo]


def test_a_draft_that_reads_states_reads_them_in_chunks():
    """Each chunk gets the states that predicted its own tokens, and the drafts are the same."""
    hf = tiny.llama(0)
    drafted = []
    for chunk in (9, PREFILL_CHUNK):
        draft = LeanLlama.from_layer_draft(layer_draft(hf))
        output = generate(LeanLlama.from_hf(hf), [Request(PROMPT, 20)], ModelDrafter(draft, 3), prefill_chunk=chunk)
        drafted.append((output.results[0].tokens, output.stats.accepted, output.stats.drafted))
    assert drafted[0] == drafted[1] and drafted[0][0] == tiny.greedy(hf, PROMPT, 20)


def test_beam_search_reads_in_chunks(monkeypatch):
    from specdec_kernels.decode.models import prompt

    widths = []
    target, draft = (Noting(adapt(tiny.llama(0)), widths) for _ in range(2))
    want = beam_search(target, [Request(PROMPT, 6)], 3).results
    assert widths == [69]
    monkeypatch.setattr(prompt.read_tokens, "__defaults__", (0, 0, 20, None))
    got = beam_search(target, [Request(PROMPT, 6)], 3, BeamDrafter(draft)).results
    assert widths[1:] == [20, 20, 20, 9] * 2
    assert [[b.tokens for b in beams] for beams in got] == [[b.tokens for b in beams] for beams in want]


def test_the_mask_of_a_long_prompt_is_that_of_a_chunk(monkeypatch):
    """6,000 tokens: the largest mask has 512 x 6,000 entries instead of 36 million."""
    from specdec_kernels.decode.models import slot_cache

    sizes, honest = [], slot_cache.SlotCache.visible
    monkeypatch.setattr(slot_cache.SlotCache, "visible", lambda self: sizes.append(self.seen.numel()) or honest(self))
    hf = tiny.llama(0)
    hf.config.max_position_embeddings = 6100
    target = adapt(hf)
    sizes.clear()
    generate(target, [Request(PROMPT * 85 + PROMPT[:50], 1)])
    assert 512 * 5500 < max(sizes) <= 512 * 6000 and len(sizes) >= 12


def test_errors():
    with pytest.raises(ValueError, match="prefill_chunk must be >= 1, got 0"):
        Session(adapt(tiny.llama(0)), prefill_chunk=0)
