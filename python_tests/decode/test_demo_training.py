# SPDX-License-Identifier: Apache-2.0
"""Training of the demo's draft on a tiny target: it learns, resumes after an interruption, and saves what was
trained."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from support import tiny

from specdec_kernels.decode.models.layer_draft import LayerDraft, dequantize_rows, quantize_rows

DEMO = Path(__file__).parents[2] / "demo"
pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(not DEMO.is_dir(), reason="needs the source tree's demo"),
]
V, LENGTH, TEXTS = 32, 24, 800


@pytest.fixture
def training(monkeypatch):
    from demo.draft.recipe import train

    monkeypatch.setattr(train, "HEAD_SIZE", V)
    return train


class Text:
    """A corpus drawn from the target itself, half of it chat."""

    def __init__(self, hf):
        ids = torch.randint(0, V, (TEXTS, 1), generator=torch.Generator().manual_seed(0))
        for t in range(LENGTH - 1):
            z = hf(ids).logits[:, -1]
            noise = -torch.log(-torch.log(torch.rand(z.shape, generator=torch.Generator().manual_seed(t + 1))))
            ids = torch.cat((ids, (z + noise).argmax(-1, keepdim=True)), 1)
        self.ids, self.tokens = ids, ids.numpy().astype(np.uint16)
        self.kind, self.length = np.array(["A", "C"] * (TEXTS // 2)), np.full(TEXTS, LENGTH)

    def __len__(self):
        return TEXTS

    def batch(self, numbers):
        return self.ids[numbers]


@pytest.fixture
def parts(training, tmp_path):
    """Return (data, target, the folder of an untrained draft)."""
    hf = tiny.llama(0)
    with torch.no_grad():
        text = Text(hf)
        states = hf.model(text.ids).last_hidden_state[:, :-1]
        log_z = hf.lm_head(states).logsumexp(-1)
    shards = [(0, tmp_path / "first.pt"), (TEXTS // 2, tmp_path / "second.pt")]
    for first, path in shards:
        own = range(first, first + TEXTS // 2)
        torch.save({i - first: (states[i].bfloat16(), log_z[i, 3:].clone()) for i in own}, path)
    LayerDraft(hf, range(V), (0,)).copy_layers(hf).save(tmp_path / "untrained")
    return training.Data(text, shards, held_out=8), hf, tmp_path / "untrained"


@pytest.mark.slow
def test_learns_at_every_depth(training, parts, tmp_path):
    """Alpha on held-out texts rises, with and without states, and int8 costs little of it. The benefit of states shows
    on the real pair only: this target knows nothing that is not in the text."""
    data, hf, untrained = parts
    before = training.held_out_alpha(
        training.first_draft(hf, data.corpus, untrained), data, hf.lm_head.weight.bfloat16()
    )
    draft = training.train(data, hf, tmp_path / "out", 150, init=untrained, checkpoint=tmp_path / "c.pt", peak=5e-3)
    after = np.array([*json.loads((tmp_path / "out" / "config.json").read_text())["held_out_alpha"].values()])
    assert (after > before + 0.02).all(), (before, after)
    back = LayerDraft.load(tmp_path / "out", hf)
    assert torch.equal(back.state.weight, dequantize_rows(*quantize_rows(draft.state.weight)))
    saved = training.held_out_alpha(back, data, back.head.weight.bfloat16())
    assert np.abs(saved - after).max() < 0.02


def test_goes_on_where_it_was_cut_off(training, parts, tmp_path):
    data, hf, untrained = parts
    options = dict(init=untrained, peak=5e-3, decay=0, log_every=2)
    whole = training.train(data, hf, tmp_path / "whole", 6, checkpoint=tmp_path / "a.pt", **options)
    training.train(data, hf, tmp_path / "half", 4, checkpoint=tmp_path / "b.pt", **options)
    rest = training.train(data, hf, tmp_path / "rest", 6, checkpoint=tmp_path / "b.pt", **options)
    half = LayerDraft.load(tmp_path / "half", hf)
    assert not torch.allclose(half.model.norm.weight, rest.model.norm.weight)
    for name, weight in whole.state_dict().items():
        assert torch.equal(weight, rest.state_dict()[name]), name


def test_a_checkpoint_of_a_falling_rate_is_read(training, parts, tmp_path):
    """A finished run is resumed at its end: nothing is left to do, and the same is saved."""
    data, hf, untrained = parts
    ends = [
        training.train(data, hf, tmp_path / "out", 3, init=untrained, checkpoint=tmp_path / "c.pt", decay=1)
        for _ in range(2)
    ]
    for name, weight in ends[0].state_dict().items():
        assert torch.equal(weight, ends[1].state_dict()[name]), name


def test_text_of_several_files(training, tmp_path):
    """Rows are padded to the longest, and saved data is read back."""
    from demo.draft.recipe import teacher

    lengths, kinds = ([5, 3], [7]), ("AC", "F")
    for n, (own, kind) in enumerate(zip(lengths, kinds)):
        tokens = np.full((len(own), max(own)), teacher.PAD, np.uint16)
        for row, length in zip(tokens, own):
            row[:length] = np.arange(length) + 10 * n
        prompts = np.full(len(own), 2)
        np.savez(tmp_path / f"{n}.npz", tokens=tokens, length=own, prompt_length=prompts, kind=list(kind))
    text = teacher.Corpus(tmp_path / "0.npz", tmp_path / "1.npz")
    text.save(tmp_path / "both.npz")
    for corpus in (text, teacher.Corpus(tmp_path / "both.npz")):
        assert corpus.batch([1, 2]).tolist() == [[0, 1, 2, 0, 0, 0, 0], [10, 11, 12, 13, 14, 15, 16]]
        assert [corpus.first_label(i) for i in range(3)] == [2, 1, 2]  # raw code is learned from its start
    assert text.begins == [0, 2] and len(text) == 3


def test_text_that_is_not_all_there(training, tmp_path):
    import typer

    from demo.draft.recipe.distill import grown_shards

    (tmp_path / "grown").mkdir()
    paths = [tmp_path / "grown" / f"shard-{s:03d}.npz" for s in range(4)]
    for path in paths:
        path.touch()
    assert grown_shards(tmp_path, 3) == paths[:3]
    paths[1].unlink()
    folder = re.escape(str(tmp_path / "grown"))
    with pytest.raises(typer.BadParameter, match=f"wanted 4 shards in {folder}, got all but shard-001.npz$"):
        grown_shards(tmp_path, 4)


def test_folding_changes_nothing(training):
    """Whitening is linear: folded into one layer, or put before a trained one, it gives the same projection."""
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(500, 16, generator=generator) * torch.logspace(-1, 1, 16) + 5
    linear = torch.nn.Linear(16, 16)
    white = training.Whitened(linear, states)
    with torch.no_grad():
        assert torch.allclose(white(states), linear(states), atol=1e-4)
        folded = white.folded()
        lost = dequantize_rows(*quantize_rows(folded.weight)) - folded.weight
        assert torch.allclose(folded(states), white(states) - lost @ states.mean(0), atol=1e-4)
