# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding from prompt to text: a thin loop around the ops sample, verify_chain and verify_tree.

    pair = load_pair("smollm2", draft="path/to/draft")
    requests = [Request(pair.tokenizer.encode("def fib(n):"), max_new_tokens=64, eos=pair.eos)]
    output = generate(pair.target, requests, LookupThenModel(PromptLookupDrafter(), ModelDrafter(pair.draft)))
    output = generate(pair.target, requests, TreeDrafter(pair.draft, "kseq", drafts=4, depth=4))  # drafts trees
    beams = beam_search(pair.target, requests, 4, BeamDrafter(pair.draft, width=8)).results[0]  # the first request's

Needs the extra `decode` (transformers and others). The ops alone do not.
"""

from .beams import Beam, BeamOutput, beam_search
from .drafters.beam_drafter import BeamDrafter
from .drafters.hierarchical_drafter import HierarchicalDrafter
from .drafters.lookup_then_model import LookupThenModel
from .drafters.model_drafter import ModelDrafter
from .drafters.prompt_lookup import PromptLookupDrafter
from .drafters.token_cascade import TokenCascade
from .drafters.tree_drafter import TREE_METHODS, TreeDrafter
from .drafters.tree_shape import TreeShape
from .grammar import Grammar
from .loop import generate, stream
from .models.adapters import HFModel, Model, adapt
from .models.graphed import Graphed
from .models.lean_llama import LeanLlama
from .models.load import Pair, check_tokenizers, load_pair
from .models.slot_cache import Branches, SlotCache
from .models.vocabulary import MatchedModel
from .outcome import Outcome
from .proposal import Draft, Drafter, Proposal, TreeDraft
from .request import Request
from .result import Event, Logprobs, Output, Result, Stats
from .session import Session

__all__ = [
    "TREE_METHODS",
    "Beam",
    "BeamDrafter",
    "BeamOutput",
    "Branches",
    "Draft",
    "Drafter",
    "Event",
    "Grammar",
    "Graphed",
    "HFModel",
    "HierarchicalDrafter",
    "LeanLlama",
    "Logprobs",
    "LookupThenModel",
    "MatchedModel",
    "Model",
    "ModelDrafter",
    "Outcome",
    "Output",
    "Pair",
    "PromptLookupDrafter",
    "Proposal",
    "Request",
    "Result",
    "Session",
    "SlotCache",
    "Stats",
    "TokenCascade",
    "TreeDraft",
    "TreeDrafter",
    "TreeShape",
    "adapt",
    "beam_search",
    "check_tokenizers",
    "generate",
    "load_pair",
    "stream",
]
