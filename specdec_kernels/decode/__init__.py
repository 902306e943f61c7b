# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding from prompt to text: a thin loop around sk.sample and sk.verify_chain.

    pair = load_pair("smollm2", draft="path/to/draft")
    requests = [Request(pair.tokenizer.encode("def fib(n):"), max_new_tokens=64, eos=pair.eos)]
    output = generate(pair.target, requests, LookupThenModel(PromptLookupDrafter(), ModelDrafter(pair.draft)))

Needs the extra `decode` (transformers and friends); the ops themselves do not.
"""

from .adapters import HFModel, Model, adapt
from .cache import SlotCache
from .draft import Draft, Drafter
from .llama import LeanLlama
from .lookup import PromptLookupDrafter
from .loop import Output, generate, stream
from .mixed import LookupThenModel
from .model_drafter import ModelDrafter
from .models import Pair, check_tokenizers, load_pair
from .request import Event, Request, Result, Stats

__all__ = [
    "Draft",
    "Drafter",
    "Event",
    "HFModel",
    "LeanLlama",
    "LookupThenModel",
    "Model",
    "ModelDrafter",
    "Output",
    "Pair",
    "PromptLookupDrafter",
    "Request",
    "Result",
    "SlotCache",
    "Stats",
    "adapt",
    "check_tokenizers",
    "generate",
    "load_pair",
    "stream",
]
