# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding from prompt to text: a thin loop around sk.sample, sk.verify_chain and sk.verify_tree.

    pair = load_pair("smollm2", draft="path/to/draft")
    requests = [Request(pair.tokenizer.encode("def fib(n):"), max_new_tokens=64, eos=pair.eos)]
    output = generate(pair.target, requests, LookupThenModel(PromptLookupDrafter(), ModelDrafter(pair.draft)))
    output = generate(pair.target, requests, TreeDrafter(pair.draft, "kseq", drafts=4, depth=4))     # a tree per request

Needs the extra `decode` (transformers and friends); the ops themselves do not.
"""

from .proposal import Draft, Drafter, TreeDraft
from .drafters.lookup_then_model import LookupThenModel
from .drafters.model_drafter import ModelDrafter
from .drafters.prompt_lookup import PromptLookupDrafter
from .drafters.token_cascade import PlainCascade
from .drafters.tree_drafter import TREE_METHODS, TreeDrafter
from .drafters.tree_shape import TreeShape
from .loop import Output, generate, stream
from .models.adapters import HFModel, Model, adapt
from .models.lean_llama import LeanLlama
from .models.load import Pair, check_tokenizers, load_pair
from .models.slot_cache import Branches, SlotCache
from .request import Event, Request, Result, Stats

__all__ = [
    "TREE_METHODS",
    "Branches",
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
    "PlainCascade",
    "PromptLookupDrafter",
    "Request",
    "Result",
    "SlotCache",
    "Stats",
    "TreeDraft",
    "TreeDrafter",
    "TreeShape",
    "adapt",
    "check_tokenizers",
    "generate",
    "load_pair",
    "stream",
]
