# SPDX-License-Identifier: Apache-2.0
"""Training passes of a draft that reads states, equal to the passes of the decode loop.

At depth 1 the draft reads the target's states, at depth k its own states of depth k - 1. The root of a draft is the
last token that the target has accepted. At depth k each token is k - 1 positions after its root. It attends to the keys
of depth 1 up to the root, and after the root to those of depths 2, 3, ..., k, one position each. So the drafts from
every position of a text are trained in `depths` passes over the text.
"""

import torch
import torch.nn.functional as F


def shifted(x, by, dim=1):
    """Return x moved `by` positions towards the end along `dim`, with zeros before it."""
    return F.pad(x, (0, 0) * (x.dim() - 1 - dim) + (by, 0)).narrow(dim, 0, x.shape[dim])


def rotated(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def attend(q, passes):
    """Return the attention [B, H, T, D] of the deepest pass.

    q [B, H, T, D]: its queries. passes: (keys, values) [B, H, T, D] of every depth so far.
    """
    (keys, values), own, k = passes[0], passes[1:], len(passes)
    if not own:
        return F.scaled_dot_product_attention(q, keys, values, is_causal=True)
    T = q.shape[2]
    place = torch.arange(T)
    scores = (q @ keys.transpose(-1, -2)).float().masked_fill(place > place[:, None] - (k - 1), -torch.inf)
    drafted = [(shifted(x, k - m, 2), shifted(y, k - m, 2)) for m, (x, y) in enumerate(own, 2)]
    mine = torch.stack([(q * x).sum(-1) for x, _ in drafted], -1).float()  # the first rows have no root: zeros
    weights = (torch.cat((scores, mine), -1) * q.shape[-1] ** -0.5).softmax(-1).to(q.dtype)
    out = weights[..., :T] @ values
    for m, (_, y) in enumerate(drafted):
        out = out + weights[..., T + m, None] * y
    return out


def states_of_depths(draft, ids, states, depths):
    """Return the draft's last states after the norm [B, T, d] at every depth from 1 on. states [B, T, d]: the target's.

    Only the last layer reads states, so the layers before it run once.
    """
    config = draft.config
    D = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    groups = config.num_attention_heads // config.num_key_value_heads
    cos, sin = (x[0] for x in draft.model.rotary_emb(draft.model.norm.weight[None], torch.arange(ids.shape[1])[None]))

    def heads(x):
        return x.view(*ids.shape, -1, D).transpose(1, 2)

    def through(layer, x, passes):
        attention, h = layer.self_attn, layer.input_layernorm(x)
        q, k = (rotated(heads(f(h)), cos, sin) for f in (attention.q_proj, attention.k_proj))
        k, v = (y.repeat_interleave(groups, 1) for y in (k, heads(attention.v_proj(h))))
        passes.append((k.to(v.dtype), v))
        x = x + attention.o_proj(attend(q.to(v.dtype), passes).transpose(1, 2).flatten(2))
        return x + layer.mlp(layer.post_attention_layernorm(x))

    x, passes, found = draft.embed(ids).to(draft.dtype), [], []
    *first, last = draft.model.layers
    for layer in first:
        x = through(layer, x, [])
    for _ in range(depths):
        states = draft.model.norm(through(last, draft.add_states(x, shifted(states, 1)), passes))
        found.append(states)
    return found
