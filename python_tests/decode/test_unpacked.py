# SPDX-License-Identifier: Apache-2.0
"""Models in .gguf files are unpacked once, completely or not at all, and unpacked models equal the packed ones."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from support import tiny
from support.ranks import Ranks

from specdec_kernels import user_cache
from specdec_kernels.cli import main
from specdec_kernels.decode.models import load, unpacked

gguf = pytest.importorskip("gguf")
WORDS = ["<eos>", *"abcdefghijklmnopqrstuvwxyz", "ab"]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def packed(path, seed=0):
    """Write a Llama of one layer, with a tokenizer of letters, as llama.cpp does."""
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(48)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(WORDS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(WORDS)
    writer.add_token_types([3] + [1] * (len(WORDS) - 1))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    shapes = dict(attn_q=(32, 32), attn_k=(16, 32), attn_v=(16, 32), attn_output=(32, 32), attn_norm=(32,))
    shapes |= dict(ffn_gate=(48, 32), ffn_up=(48, 32), ffn_down=(32, 48), ffn_norm=(32,))
    tensors = {f"blk.0.{name}": shape for name, shape in shapes.items()}
    for name, shape in (tensors | dict(token_embd=(len(WORDS), 32), output_norm=(32,))).items():
        writer.add_tensor(f"{name}.weight", rng.normal(size=shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def weights(source, dtype):
    return load._weights(source, dtype).state_dict()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_kept_is_what_was_packed(cache, tmp_path, dtype, monkeypatch):
    path = packed(tmp_path / "model.gguf")
    source = unpacked.unpacked(path, dtype)
    assert Path(source["pretrained_model_name_or_path"]).parent == cache and "gguf_file" not in source
    kept, direct = weights(source, dtype), weights(unpacked._packed(path), dtype)
    assert kept.keys() == direct.keys()
    assert all(kept[name].dtype == dtype and kept[name].equal(direct[name]) for name in direct)

    pair = load.load_pair(str(path), str(path), dtype)
    names = load.AutoTokenizer.from_pretrained(**unpacked._packed(path))
    assert pair.tokenizer.get_vocab() == names.get_vocab() and pair.eos == (0,)
    assert pair.tokenizer.encode("abcab") == names.encode("abcab") != []

    monkeypatch.setattr(unpacked, "_unpack", lambda *a: pytest.fail("it is there"))
    assert unpacked.unpacked(path, dtype) == source


def test_each_content_and_dtype_is_kept_apart(cache, tmp_path):
    one, other = packed(tmp_path / "a.gguf"), packed(tmp_path / "b.gguf", seed=1)
    sources = [unpacked.unpacked(p, d) for p in (one, other) for d in (torch.float32, torch.bfloat16)]
    assert len({s["pretrained_model_name_or_path"] for s in sources}) == 4 == len(user_cache.entries())
    other.replace(one)  # another file under the old name
    assert unpacked.unpacked(one, torch.float32) not in sources[:2]


def test_processes_that_start_together(cache, tmp_path, monkeypatch):
    """The slower process drops its folder, and both find a complete one."""
    path, rename = packed(tmp_path / "model.gguf"), os.rename

    def after_another(made, folder):
        monkeypatch.setattr(os, "rename", rename)
        unpacked._unpack(path, torch.float32, folder)
        rename(made, folder)

    monkeypatch.setattr(os, "rename", after_another)
    source = unpacked.unpacked(path, torch.float32)
    assert [str(p) for p in cache.iterdir()] == [source["pretrained_model_name_or_path"]]
    assert weights(source, torch.float32).keys() == weights(unpacked._packed(path), torch.float32).keys()


def files_of(rank, path, folder):
    unpacked._unpack(path, torch.float32, folder / str(rank))
    return {p.name: p.stat().st_size for p in (folder / str(rank)).iterdir()}


def test_every_rank_of_a_process_group_unpacks(cache, tmp_path):
    group = Ranks(2)
    first, second = group.call(files_of, packed(tmp_path / "model.gguf"), cache)
    group.stop()
    assert first == second and {"config.json", "model.safetensors", "tokenizer.json"} <= first.keys()


def test_a_process_that_dies_leaves_nothing_under_the_name(cache, tmp_path, monkeypatch):
    path = packed(tmp_path / "model.gguf")

    class Dies:
        def save_pretrained(self, folder):
            raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(unpacked.AutoTokenizer, "from_pretrained", lambda **source: Dies())
        unpacked.unpacked(path, torch.float32)
    assert list(cache.iterdir()) == []
    unpacked.unpacked(path, torch.float32)
    assert len(user_cache.entries()) == 1


def test_where_nothing_can_be_kept(tmp_path, monkeypatch):
    path = packed(tmp_path / "model.gguf")
    monkeypatch.setenv("SPECDEC_CACHE", str(path / "below a file"))
    with pytest.warns(UserWarning, match="model.gguf will be unpacked again at the next start: .*Not a directory"):
        source = unpacked.unpacked(path, torch.float32)
    assert weights(source, torch.float32)


def test_cache_command(cache, tmp_path, capsys):
    assert main(["cache"]) == 0 and capsys.readouterr().out == f"0 MB in {cache}\n"
    tiny.llama(0).save_pretrained(cache / "one")
    assert main(["cache"]) == 0 and "MB  one\n" in capsys.readouterr().out
    assert main(["cache", "--clear"]) == 0 and capsys.readouterr().out.endswith(f"MB in {cache}\n")
    assert list(cache.iterdir()) == [] and user_cache.entries() == {}
