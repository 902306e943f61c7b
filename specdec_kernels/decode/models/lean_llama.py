# SPDX-License-Identifier: Apache-2.0
"""A lean forward pass for Llama weights, with only the work that a decoding step needs.

At one token per step, a small model in `transformers` spends most of its time in Python and small kernels. Here the
query, key and value projections are one packed product, and so are gate and up. Residuals are added inside the product.
Grouped queries are extra rows of their key head's attention, so keys are not copied. Logits are computed only where
the caller reads them.
"""

import torch
import torch.nn.functional as F

import specdec_kernels as sk

from ..transfers import is_free
from .packed_linear import PackedLinear
from .plain_modules import is_plain_llama
from .slot_cache import Branches, SlotCache, kept

__all__ = ["LeanLlama", "rounded"]


class LeanLlama:
    """A Model with the weights of a transformers LlamaForCausalLM, or of a LayerDraft.

    `layers`: each layer's tensors (norm, qkv, out, norm, gate_up, down); `embed [V, d]`, `head [R, d]`: embedding and
    output rows; `norm`: the final norm; `rotary(positions [S]) -> cos, sin [S, head_dim]`; `head_ids [R]`: the token id
    of each output row if the head covers only part of the vocabulary (logits then have R columns); `state`: the linear
    layer [d, d] that projects states before they are added to the last layer's input, for a draft that reads them.
    """

    def __init__(self, config, layers, embed, norm, head, rotary, head_ids=None, state=None):
        self.config, self.dtype, self.device = config, head.dtype, head.device
        self.vocab_size, self.max_positions = embed.shape[0], config.max_position_embeddings
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.eps, self.embed, self.norm = config.rms_norm_eps, embed.detach(), norm.detach()
        self.rotary = rotary
        self.rope: tuple[torch.Tensor, ...] = ()
        self.head = PackedLinear(head)
        self.vocab_map = None if head_ids is None else sk.vocab_map(head_ids, self.vocab_size)
        self.state, self.state_size = None if state is None else PackedLinear(state.weight, state.bias), embed.shape[1]
        self.layers: list[tuple] = [
            tuple(w.detach() if w.dim() == 1 else PackedLinear(w) for w in layer) for layer in layers
        ]

    @staticmethod
    def supports(model) -> bool:
        """Return whether this class reproduces the forward pass of `model`: a Llama with no module changed."""
        return is_plain_llama(model)

    @classmethod
    def from_hf(cls, model) -> "LeanLlama":
        """Copy the linear layers of a transformers LlamaForCausalLM.

        Raises:
            ValueError: the model's pass does not follow from its weights alone (plain_modules.py).
        """
        if not cls.supports(model):
            raise ValueError(
                "LeanLlama: model must be a LlamaForCausalLM without adapters, hooks, biases, quantization or a rope "
                f"that depends on the length, got {type(model).__name__}"
            )
        return cls._from_parts(model.config, model.model, model.model.embed_tokens.weight, model.lm_head.weight)

    @classmethod
    def from_layer_draft(cls, draft) -> "LeanLlama":
        """Copy a LayerDraft: a few layers of a target, with an output head over part of the vocabulary."""
        return cls._from_parts(
            draft.config,
            draft.model,
            draft.embed.weight.to(draft.dtype),
            draft.head.weight,
            draft.head_ids,
            draft.state,
        )

    @classmethod
    def _from_parts(cls, config, body, embed, head, head_ids=None, state=None):
        """Collect the tensors of `body`, a transformers LlamaModel, layer by layer."""

        def parts(layer):
            a, m = layer.self_attn, layer.mlp
            qkv = torch.cat((a.q_proj.weight, a.k_proj.weight, a.v_proj.weight))
            gate_up = torch.cat((m.gate_proj.weight, m.up_proj.weight))
            norms = layer.input_layernorm.weight, layer.post_attention_layernorm.weight
            return norms[0], qkv, a.o_proj.weight, norms[1], gate_up, m.down_proj.weight

        def rotary(positions):
            return tuple(x[0] for x in body.rotary_emb(embed[:1], positions[None]))

        return cls(config, map(parts, body.layers), embed, body.norm.weight, head, rotary, head_ids, state)

    @property
    def reads_states(self) -> bool:
        return self.state is not None

    def new_cache(self, slots: int, capacity: int) -> SlotCache:
        """Return a cache with rotation tables up to its capacity: cos and signed sin, [capacity, 1, head_dim] each."""
        if not self.rope or self.rope[0].shape[0] < capacity:
            cos, sin = self.rotary(torch.arange(capacity, device=self.device))
            half = self.head_dim // 2
            signed = torch.cat((-sin[:, :half], sin[:, half:]), 1)  # rotate_half(x) * sin = roll(x, half) * signed
            self.rope = tuple(x.to(self.dtype)[:, None] for x in (cos, signed))
        cache = SlotCache(slots, capacity)
        cache.tables = self.rope
        return cache

    @torch.inference_mode()
    def forward(self, ids, start, cache: SlotCache, slot=0, keep="all", branches: Branches | None = None, states=None):
        """Run one pass, as Model.forward does. On the CPU the products skip padding tokens."""
        n, T = ids.shape
        H, K, D = self.heads, self.kv_heads, self.head_dim
        places = (ids >= 0).flatten().nonzero()[:, 0] if is_free(ids) and (ids < 0).any() else None
        positions = cache.begin(start, T, slot, self.device, branches, places)
        cos, sin = (table[_at(positions.flatten(), places)] for table in cache.tables)
        mask = None if cache.sees_all else self._mask(cache, n)
        shape, eps = (self.embed.shape[1],), self.eps
        x = F.embedding(_at(ids.flatten(), places).clamp(min=0), self.embed)
        for i, (norm1, qkv, out, norm2, gate_up, down) in enumerate(self.layers):
            if states is not None and self.state is not None and i == len(self.layers) - 1:
                x = self.state.add(_at(states.flatten(0, 1).to(self.dtype), places), x)
            h = qkv(F.rms_norm(x, shape, norm1, eps)).view(-1, H + 2 * K, D)
            qk = h[:, : H + K]
            qk = torch.addcmul(qk * cos, torch.roll(qk, D // 2, -1), sin)
            keys, values = cache.update(i, qk[:, H:], h[:, H + K :])
            q = _padded(qk[:, :H], places, n * T).view(n, T, K, H // K, D).permute(0, 2, 3, 1, 4)
            a = F.scaled_dot_product_attention(q.reshape(n, K, H // K * T, D), keys, values, mask)
            a = a.view(n, K, H // K, T, D).permute(0, 3, 1, 2, 4).reshape(n * T, H * D)
            x = out.add(_at(a, places), x)
            gate, up = gate_up(F.rms_norm(x, shape, norm2, eps)).chunk(2, -1)
            x = down.add(F.silu(gate) * up, x)
        if keep is None and cache.states is None:
            return None
        x = F.rms_norm(x, shape, self.norm, eps)
        cache.put_states(x)
        if keep is None:
            return None
        if not isinstance(keep, str):
            x = kept(_padded(x, places, n * T).view(n, T, -1), keep)
        logits = rounded(self.head(x))
        return _padded(logits, places, n * T).view(n, T, -1) if keep == "all" else logits

    def _mask(self, cache, n):
        """Return the additive mask [n, 1, H/K * T, length]."""
        hidden = torch.zeros((), dtype=self.dtype, device=self.device).masked_fill(~cache.visible(), float("-inf"))
        return hidden.repeat(1, 1, self.heads // self.kv_heads, 1)


def rounded(logits: torch.Tensor) -> torch.Tensor:
    """Return logits in a dtype that the ops take: those of a float64 model in float32."""
    return logits.float() if logits.dtype == torch.float64 else logits


def _at(x, places):
    """Return the rows of x at `places`; all rows if `places` is None."""
    return x if places is None else x[places]


def _padded(x, places, size):
    """Scatter rows x to `places` among `size` rows, zeros elsewhere; return x itself if `places` is None."""
    return x if places is None else x.new_zeros(size, *x.shape[1:]).index_copy_(0, places, x)
