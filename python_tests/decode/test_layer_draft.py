# SPDX-License-Identifier: Apache-2.0
"""LayerDraft: the file format, the reduced head, and the cache. The target is a tiny random Llama."""

import json

import pytest
import torch

transformers = pytest.importorskip("transformers")
pytest.importorskip("safetensors")

from specdec_kernels.decode.models.layer_draft import LayerDraft, dequantize_rows, is_layer_draft, quantize_rows  # noqa: E402

V, R, LAYERS = 131, 40, (0, 3)  # V prime; the first and the last of four layers


@pytest.fixture(scope="module")
def target():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=V,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.2,
        tie_word_embeddings=True,
    )
    return transformers.LlamaForCausalLM(config).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def draft(target):
    ids = torch.randperm(V, generator=torch.Generator().manual_seed(1))[:R]
    return LayerDraft(target, ids, LAYERS).copy_layers(target).eval()


@pytest.fixture(scope="module")
def tokens():
    return torch.randint(0, V, (3, 12), generator=torch.Generator().manual_seed(2))


@torch.no_grad()
def test_all_layers_and_ids_are_the_target_itself(target, tokens):
    """Kills: a wrong norm, a shifted layer index, a head in the wrong order."""
    whole = LayerDraft(target, torch.arange(V), range(4)).copy_layers(target)
    torch.testing.assert_close(whole(tokens).logits, target(tokens).logits, rtol=0, atol=0)
    other = LayerDraft(target, torch.arange(V), (0, 1, 2, 2)).copy_layers(target)
    assert not torch.allclose(other(tokens).logits, target(tokens).logits, atol=1e-2), "the test would not see a layer"


@torch.no_grad()
def test_minus_infinity_outside_the_head(target, draft, tokens):
    logits = draft(tokens).logits
    inside = torch.zeros(V, dtype=torch.bool)
    inside[draft.head_ids] = True
    assert logits.shape == (3, 12, V)
    assert torch.isneginf(logits[..., ~inside]).all() and logits[..., inside].isfinite().all()
    reduced = draft.head(draft.hidden(tokens))
    assert torch.equal(logits[..., draft.head_ids], reduced)
    assert torch.equal(draft.head_ids, draft.head_ids.sort().values) and draft.head_ids.numel() == R
    assert torch.equal(draft.head.weight, target.get_output_embeddings().weight[draft.head_ids])


@torch.no_grad()
@pytest.mark.parametrize("mask", [None, "bool", "additive"])
def test_cached_steps_equal_one_forward_pass(draft, tokens, mask):
    """A chunk, then single tokens, then a chunk again. In float32 sums of another order differ by 1e-4 for logits of
    about 10."""
    full = draft(tokens).logits
    cache, out, start = None, [], 0
    for width in (5, 1, 1, 3, 2):
        allowed = torch.ones(start + width, start + width).tril().bool()[-width:][None, None].expand(3, 1, -1, -1)
        form = {None: None, "bool": allowed, "additive": torch.zeros(()).masked_fill(~allowed, -torch.inf)}[mask]
        step = draft(tokens[:, start : start + width], attention_mask=form, cache=cache, use_cache=True)
        cache, start = step.cache, start + width
        out.append(step.logits)
    assert cache.get_seq_length() == 12
    finite = full.isfinite()
    assert full[finite].abs().max() > 0.5, "logits near zero would hide a wrong position"
    torch.testing.assert_close(torch.cat(out, 1)[finite], full[finite], rtol=0, atol=1e-4)


@torch.no_grad()
def test_logits_to_keep_and_positions(draft, tokens):
    full = draft(tokens).logits
    torch.testing.assert_close(draft(tokens, logits_to_keep=2).logits, full[:, -2:])
    shifted = draft(tokens, position_ids=torch.arange(7, 19)[None]).logits  # rotary: only differences count
    finite = full.isfinite()
    torch.testing.assert_close(shifted[finite], full[finite], rtol=0, atol=1e-4)
    stretched = draft(tokens, position_ids=2 * torch.arange(12)[None]).logits
    assert not torch.allclose(stretched[finite], full[finite], atol=1e-2)


def test_quantization_error_is_at_most_half_a_step():
    """round() moves a value by at most half a step, and no value is clipped since the step is max|w| / 127."""
    w = torch.randn(64, 96, generator=torch.Generator().manual_seed(3)) * torch.logspace(-4, 4, 64)[:, None]
    w[5] = 0
    values, scale = quantize_rows(w)
    error = (dequantize_rows(values, scale) - w).abs()
    assert values.dtype == torch.int8
    # One float32 rounding in w / scale and one in scale * i, each at most 127 steps * 2^-24. The bound allows twice
    # that.
    assert (error <= scale[:, None] * (0.5 + 2 * 127 * 2**-23)).all()
    full = scale > 1e-20
    assert (error.amax(1)[full] > 0.4 * scale[full]).all(), "the bound is nearly met: a finer claim would be false"


@torch.no_grad()
def test_round_trip(tmp_path, target, draft, tokens):
    draft.save(tmp_path / "d", seed=7)
    assert is_layer_draft(tmp_path / "d") and not is_layer_draft(tmp_path)
    assert json.loads((tmp_path / "d" / "config.json").read_text())["seed"] == 7
    back = LayerDraft.load(tmp_path / "d", target)
    assert torch.equal(back.head_ids, draft.head_ids) and back.layer_ids == LAYERS
    for name, w in draft.model.state_dict().items():
        want = dequantize_rows(*quantize_rows(w)) if w.dim() == 2 else w
        torch.testing.assert_close(back.model.state_dict()[name], want, rtol=0, atol=0)
    back.save(tmp_path / "again")  # int8 of int8 is the same int8
    a, b = (LayerDraft.load(tmp_path / n, target)(tokens).logits for n in ("d", "again"))
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_smaller_head_can_be_saved(tmp_path, target, draft, tokens):
    kept = draft.head_ids[::3]
    draft.save(tmp_path / "all"), draft.save(tmp_path / "few", head_ids=kept)
    whole, few = (LayerDraft.load(tmp_path / n, target)(tokens).logits for n in ("all", "few"))
    torch.testing.assert_close(few[..., kept], whole[..., kept])
    assert few.isfinite().sum(-1).eq(kept.numel()).all()


@torch.no_grad()
def test_dtype_is_the_drafts_own(tmp_path, target, draft, tokens):
    """A bfloat16 draft of a float32 target does not change the target's embedding and rotary angles."""
    draft.save(tmp_path)
    half = LayerDraft.load(tmp_path, target, torch.bfloat16)
    assert half(tokens).logits.dtype == torch.bfloat16
    assert target.model.embed_tokens.weight.dtype == torch.float32
    assert target.model.rotary_emb.inv_freq.dtype == torch.float32
    assert not any(p.data_ptr() == target.model.embed_tokens.weight.data_ptr() for p in half.parameters())


def test_bad_input(tmp_path, target, draft):
    with pytest.raises(ValueError, match=r"head_ids must be ids in \[0, V=131\)"):
        LayerDraft(target, torch.tensor([3, V]))
    with pytest.raises(ValueError, match="holds no draft"):
        LayerDraft.load(tmp_path, target)
    draft.save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "vocab_size": 999}))
    with pytest.raises(ValueError, match="vocab_size=999, got 131"):
        LayerDraft.load(tmp_path, target)
