# SPDX-License-Identifier: Apache-2.0
"""What .gguf files hold, unpacked once: weights, configuration and tokenizer stay in the user's cache as a folder that
from_pretrained maps into memory. Unpacking takes many times as long."""

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
    """Arguments of from_pretrained for what the .gguf file `path` holds, in `dtype`: a folder of the cache, made if it
    is not there; where none can be made the file itself, with a warning.

    Processes may ask at once: a folder gets its name when it is whole, and who comes second takes what is there.
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
    """By the file's content, and by all else that what is unpacked depends on."""
    digest = hashlib.blake2b(digest_size=8)
    with open(path, "rb") as file:
        while piece := file.read(1 << 22):
            digest.update(piece)
    name = str(dtype).removeprefix("torch.")
    return f"{path.stem}-{name}-{digest.hexdigest()}-transformers-{transformers.__version__}"


def _packed(path):
    return dict(pretrained_model_name_or_path=str(path.parent), gguf_file=path.name)


def _dense():
    """Newer versions of transformers may keep the file's blocks; weights in the dtype that was asked for are wanted."""
    config = getattr(transformers, "GgufConfig", None)
    return {} if config is None else dict(quantization_config=config(dequantize=True))


def _unpack(path, dtype, folder):
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = tempfile.TemporaryDirectory(dir=folder.parent, prefix="unfinished-", ignore_cleanup_errors=True)
    with made as name:
        with redirect_stderr(io.StringIO()):  # a progress bar that transformers' own switch does not reach
            model = AutoModelForCausalLM.from_pretrained(**_packed(path), **_dense(), dtype=dtype)
        model.config.__dict__.pop("quantization_config", None)
        vars(model)["should_save_on_this_rank"] = lambda *_: True  # else the first of a process group alone
        model.save_pretrained(name)
        AutoTokenizer.from_pretrained(**_packed(path)).save_pretrained(name)
        try:
            os.rename(name, folder)
        except OSError:  # another process was first
            if not folder.is_dir():
                raise
