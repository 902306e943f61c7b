# SPDX-License-Identifier: Apache-2.0
"""Unpacking of .gguf files, once per file: weights, config and tokenizer are saved as a folder in the user's cache.

from_pretrained maps such a folder into memory, which is many times faster than unpacking.
"""

import hashlib
import io
import os
import tempfile
import warnings
from contextlib import redirect_stderr
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from ... import user_cache

__all__ = ["unpacked"]


def unpacked(path: Path, dtype: torch.dtype) -> dict:
    """Return the arguments of from_pretrained for the .gguf file `path` in `dtype`.

    They name a folder of the cache, made if it does not exist. If it cannot be made, they name the file itself, and a
    warning is given. Several processes may call this at once: a folder gets its name only when complete, and the first
    one stays.
    """
    folder = user_cache.folder() / _key(path, dtype)
    try:
        if not folder.is_dir():
            _unpack(path, dtype, folder)
    except OSError as error:
        warnings.warn(f"{path.name} will be unpacked again at the next start: {error}", stacklevel=2)
        return _packed(path)
    return dict(pretrained_model_name_or_path=str(folder))


def _key(path, dtype):
    """Return the folder's name: the file's digest, and everything else that the unpacked folder depends on."""
    digest = hashlib.blake2b(digest_size=8)
    with open(path, "rb") as file:
        while piece := file.read(1 << 22):
            digest.update(piece)
    name = str(dtype).removeprefix("torch.")
    return f"{path.stem}-{name}-{digest.hexdigest()}-transformers-{transformers.__version__}"


def _packed(path):
    return dict(pretrained_model_name_or_path=str(path.parent), gguf_file=path.name)


def _dense():
    """Return options for weights in the requested dtype: newer transformers may keep the file's quantized blocks."""
    config = getattr(transformers, "GgufConfig", None)
    return {} if config is None else dict(quantization_config=config(dequantize=True))


def _unpack(path, dtype, folder):
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = tempfile.TemporaryDirectory(dir=folder.parent, prefix="unfinished-", ignore_cleanup_errors=True)
    with made as name:
        with redirect_stderr(io.StringIO()):  # hides a progress bar that transformers cannot switch off
            model = AutoModelForCausalLM.from_pretrained(**_packed(path), **_dense(), dtype=dtype)
        model.config.__dict__.pop("quantization_config", None)
        vars(model)["should_save_on_this_rank"] = lambda *_: True  # else only rank 0 saves
        model.save_pretrained(name)
        AutoTokenizer.from_pretrained(**_packed(path)).save_pretrained(name)
        try:
            os.rename(name, folder)
        except OSError:  # another process was first
            if not folder.is_dir():
                raise
