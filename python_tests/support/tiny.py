# SPDX-License-Identifier: Apache-2.0
"""Tiny random causal LMs, and the results of a plain Hugging Face loop with them."""

import random

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from specdec_kernels.decode import HFModel, Request, adapt
from specdec_kernels.decode.models.layer_draft import LayerDraft


def llama(seed, vocab=32, spread=0.3):
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=spread,
        bos_token_id=0,
        eos_token_id=0,
    )
    return LlamaForCausalLM(config).float().eval().requires_grad_(False)


def gpt2(seed, vocab=32):
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=vocab,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=512,
        initializer_range=0.3,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config).float().eval().requires_grad_(False)


def nearby(model, noise=0.02):
    """Disturb the weights in place, and return the model: a draft that often agrees with the original."""
    torch.manual_seed(99)
    for weight in model.parameters():
        weight.add_(noise * torch.randn_like(weight))
    return model


def served():
    """Return name -> (Hugging Face target, served target, served draft)."""
    make = {"lean": llama, "llama-hf": llama, "gpt2": gpt2}
    targets = {name: model(0) for name, model in make.items()}
    return {
        name: (t, *(adapt(m, lean=name == "lean") for m in (t, nearby(make[name](0))))) for name, t in targets.items()
    }


def requests(n=8, **parameters):
    """Return requests that end at different steps. Their prompts differ in length, and repeat themselves for lookup."""
    rng = random.Random(5)
    out = []
    for i in range(n):
        piece = [rng.randrange(32) for _ in range(4 + i)]
        out.append(Request((piece + piece)[: 6 + 2 * i], max_new_tokens=12 + 3 * i, seed=i, **parameters))
    return out


_LOGITS = {}  # (model, text) -> the logits of its last position


@torch.inference_mode()
def logits(model, text):
    """Return the logits [V] after a text, from which tests compute expected results.

    The model reads the whole text without a KV cache, once per text: tests that need the same text share the result.
    """
    if (model, *text) not in _LOGITS:
        _LOGITS[(model, *text)] = model(torch.tensor([list(text)])).logits[0, -1].clone()
    return _LOGITS[(model, *text)]


def greedy(model, prompt, tokens):
    """Return greedy tokens, the expected result."""
    out = []
    while len(out) < tokens:
        out.append(logits(model, [*prompt, *out]).argmax().item())
    return out


def laws(model, prompt, temperature=1.0):
    """Return a cached function: prefix -> the model's distribution [V] after prompt + prefix, float64."""
    known = {}

    def law(prefix):
        if prefix not in known:
            known[prefix] = torch.softmax(logits(model, [*prompt, *prefix]).double() / temperature, -1).numpy()
        return known[prefix]

    return law


class Letters:
    """A tokenizer of single characters. Id 0 is the end; ids 1 and 2 are the two bytes of one two-byte character."""

    def __init__(self, alphabet="abcdefghijklmnopqrstuvwxyz.,?! "):
        self.alphabet = alphabet

    def decode(self, ids, **_):
        out, i = "", 0
        while i < len(ids):
            if ids[i] == 1:
                whole = i + 1 < len(ids) and ids[i + 1] == 2
                out, i = out + ("\u00e9" if whole else "\ufffd"), i + 1 + whole
                continue
            out += "" if ids[i] == 0 else "\ufffd" if ids[i] == 2 else self.alphabet[ids[i] - 3]
            i += 1
        return out


class InDoubles(HFModel):
    """A model that computes in float64, so that its logits in float32 do not depend on the batch's shape."""

    def __init__(self, model):
        super().__init__(model.double(), pack=False)

    def forward(self, *args, **options):
        logits = super().forward(*args, **options)
        return None if logits is None else logits.float()


WORDS = ["<eos>", "<unk>", *"abcdefghijklmnopqrstuvwxyz .:()\n"]


def folder(path, seed, words=WORDS):
    """Write a model and a tokenizer of single characters in transformers' format."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", unk_token="<unk>").save_pretrained(path)
    llama(seed, vocab=len(words)).save_pretrained(path)
    return str(path)


def byte_level_folder(path, seed):
    """Write a model and a byte-level tokenizer, which reads any text, in transformers' format."""
    from support.tokenizers import MAKE, SPECIAL
    from tokenizers import pre_tokenizers

    tokenizer = MAKE["byte_level"]()
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens({"eos_token": SPECIAL[0]})
    tokenizer.save_pretrained(path)
    llama(seed, vocab=len(tokenizer)).save_pretrained(path)
    return str(path)


def layer_draft(hf, seed=0, layers=(1, 1)):
    """Return a draft of some of the target's layers, which weighs the target's states as much as the embeddings.

    It is near the target, and its rows show which states it was given.
    """
    draft = LayerDraft(hf, range(hf.config.vocab_size), layers, reads_states=True).copy_layers(hf).eval()
    torch.manual_seed(seed)
    torch.nn.init.normal_(draft.state.weight, std=0.05), torch.nn.init.normal_(draft.state.bias, std=0.1)
    return draft.to(hf.device).requires_grad_(False)
