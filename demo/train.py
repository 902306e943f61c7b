# SPDX-License-Identifier: Apache-2.0
"""Distillation of a LayerDraft against the target's exact distribution on the reduced vocabulary.

Loss at a position, p the target's probabilities of the R head ids (they sum to at most 1), q the draft's:
    kl * (-sum_x p(x) ln q(x))  +  tv * (1 - sum_x min(p(x), q(x)))
The second term is 1 - alpha, the quantity that speculative decoding pays for; its gradient vanishes where q is far
from p, so the first 60% of the steps use KL alone at a constant rate and the rest 0.2 KL + 2 TV while the rate falls.
"""

import json
import time
from pathlib import Path

import numpy as np
import torch
from rich.progress import Progress, TextColumn

from specdec_kernels.decode.models.layer_draft import LayerDraft

RATE, WARMUP, DECAY, WEIGHT_DECAY = 1.2e-3, 50, 0.4, 0.05
HEAD_SIZE = 8192  # output ids while training
KEPT_SIZE = 4096  # output ids of the saved draft: a fifth fewer bytes a step for 0.005 of alpha
PER_STEP = 12  # sequences: half of them chat (kinds A, B), half code (kinds C, D)


def head_ids(corpus, size, vocab_size=49152):
    """The `size` ids the target writes most often, ascending."""
    used = corpus.tokens[corpus.tokens != 65535]
    count = np.bincount(used, minlength=vocab_size)
    return np.sort(np.argsort(-count, kind="stable")[:size])


class DistillLoss(torch.autograd.Function):
    """Loss and its gradient in closed form, in chunks of rows that stay in the cache: no [N, R] tensor is kept.

    With q = softmax(z), P = sum p, m = [q < p]:  d KL/dz = P q - p,   d TV/dz = q (sum_x m q - m).
    """

    @staticmethod
    def forward(ctx, h, head, teacher, log_z, kl, tv, chunk=256):
        grad, loss, alpha = torch.empty_like(h), 0.0, 0.0
        for i in range(0, len(h), chunk):
            rows = slice(i, i + chunk)
            p = (teacher[rows] @ head.T).float().sub_(log_z[rows, None]).exp_()
            z = (h[rows] @ head.T).float().log_softmax(-1)
            q = z.exp()
            overlap = torch.minimum(p, q).sum()
            alpha += overlap.item()
            loss += kl * -(p * z).sum().item() + tv * (len(p) - overlap.item())
            dz = (q * p.sum(-1, keepdim=True)).sub_(p).mul_(kl)
            if tv:
                mq = q * (q < p)
                dz.add_(q * mq.sum(-1, keepdim=True) - mq, alpha=tv)
            torch.mm(dz.to(h.dtype), head, out=grad[rows])
        ctx.save_for_backward(grad)
        return h.new_tensor(loss, dtype=torch.float32), alpha / len(h)

    @staticmethod
    def backward(ctx, g, _):
        return ctx.saved_tensors[0] * g.to(ctx.saved_tensors[0].dtype), *[None] * 6


class Data:
    """Corpus and stored states, split into training and held-out sequences."""

    def __init__(self, corpus, shards, held_out=96, seed=0):
        """shards: the files that store_states wrote for `corpus`."""
        self.corpus, self.items, self.groups, self.held = corpus, [], ([], []), []
        held = set(np.random.default_rng(seed + 1).permutation(len(corpus))[:held_out].tolist())
        for path in shards:
            for i, (states, log_z) in torch.load(path).items():
                group = self.held if i in held else self.groups[corpus.kind[i] in "CD"]
                group.append(len(self.items))
                self.items.append((i, states, log_z))

    def batch(self, numbers):
        """ids [B, T], the index of every trained position in the flattened [B * T], states [N, d], ln Z [N]."""
        picked = [self.items[n] for n in numbers]
        ids, where = self.corpus.batch([i for i, _, _ in picked]), []
        for b, (i, states, _) in enumerate(picked):
            end = b * ids.shape[1] + self.corpus.length[i] - 1  # the last token has no successor to predict
            where.append(torch.arange(end - len(states), end))
        return ids, torch.cat(where), torch.cat([p[1] for p in picked]), torch.cat([p[2] for p in picked])

    def epochs(self, rng):
        """Endless minibatches: PER_STEP/2 chat and PER_STEP/2 code sequences, each kind in its own shuffled order."""
        queues = [[], []]
        while True:
            step = []
            for queue, group in zip(queues, self.groups):
                if len(queue) < PER_STEP // 2:
                    queue.extend(rng.permutation(group).tolist())
                step.append([queue.pop(0) for _ in range(PER_STEP // 2)])
            yield step


def rate(step, steps):
    """Warm-up, then constant, then a cosine to 1% over the last DECAY of the steps."""
    start = (1 - DECAY) * steps
    fall = 1.0 if step < start else 0.01 + 0.99 * 0.5 * (1 + np.cos(np.pi * (step - start) / (steps - start)))
    return RATE * min(1.0, (step + 1) / WARMUP) * fall


def run_batch(draft, data, numbers, head, kl, tv):
    ids, where, teacher, log_z = data.batch(numbers)
    with torch.autocast("cpu", torch.bfloat16):
        h = draft.hidden(ids).reshape(-1, head.shape[1])[where].bfloat16()
    loss, alpha = DistillLoss.apply(h, head, teacher, log_z, kl, tv)
    return loss, float(alpha), len(where)


@torch.no_grad()
def held_out_alpha(draft, data, head):
    """Mean of sum_x min(p, q) at temperature 1 over the held-out sequences: (chat, code)."""
    total = np.zeros((2, 2))
    for n in data.held:
        _, alpha, count = run_batch(draft, data, [n], head, 1.0, 0.0)
        total[int(data.corpus.kind[data.items[n][0]] in "CD")] += alpha * count, count
    return total[:, 0] / total[:, 1]


def train(data, target, out, steps, seed=0, init=None, checkpoint=None, layers=(0, 29), log_every=50):
    """Trains from the target's layers, or from the weights in the checkpoint `init`, and saves a draft folder `out`.

    checkpoint: file that gets the training state every 200 steps and is picked up again if it exists. At the end
    of the constant rate a copy is kept in <checkpoint>.steady, from which a longer run may start (`init`).
    """
    torch.manual_seed(seed)
    draft = LayerDraft(target, head_ids(data.corpus, HEAD_SIZE), layers).copy_layers(target).float()
    weights = [p for p in draft.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in weights if p.dim() == n], "weight_decay": d} for n, d in ((2, WEIGHT_DECAY), (1, 0))
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), fused=True)
    head = draft.head.weight.detach().bfloat16()
    start, seen, spent, checkpoint = 0, 0, 0.0, Path(checkpoint) if checkpoint else None
    if init:
        saved = torch.load(init)
        draft.load_state_dict(saved["draft"]), optimizer.load_state_dict(saved["optimizer"])
    if checkpoint and checkpoint.exists():
        saved = torch.load(checkpoint)
        draft.load_state_dict(saved["draft"]), optimizer.load_state_dict(saved["optimizer"])
        start, seen, spent = (saved[key] for key in ("step", "positions", "seconds"))
    batches = data.epochs(np.random.default_rng(seed))
    for _ in range(start):
        next(batches)
    began, recent = time.time() - spent, []
    progress = Progress(*Progress.get_default_columns(), TextColumn("{task.fields[note]}"))
    task = progress.add_task("training", total=steps, completed=start, note="")
    with progress:
        for step in range(start, steps):
            steady = step < (1 - DECAY) * steps
            kl, tv = (1.0, 0.0) if steady else (0.2, 2.0)
            for group in optimizer.param_groups:
                group["lr"] = rate(step, steps)
            halves = [run_batch(draft, data, numbers, head, kl, tv) for numbers in next(batches)]
            count = sum(n for _, _, n in halves)
            (sum(loss for loss, _, _ in halves) / count).backward()
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step(), optimizer.zero_grad()
            seen += count
            recent.append([a for _, a, _ in halves])
            note = "alpha chat {:.3f} code {:.3f}".format(*np.mean(recent[-log_every:], axis=0))
            progress.update(task, advance=1, note=note)
            if (step + 1) % log_every == 0 and not progress.console.is_terminal:
                print(f"step {step + 1} {note} {time.time() - began:.0f} s", flush=True)
            last_steady = step + 1 == int(np.ceil((1 - DECAY) * steps))
            if checkpoint and ((step + 1) % 200 == 0 or last_steady):
                progress_made = {"step": step + 1, "positions": seen, "seconds": time.time() - began}
                state = {"draft": draft.state_dict(), "optimizer": optimizer.state_dict(), **progress_made}
                torch.save(state, checkpoint.with_suffix(".tmp"))
                checkpoint.with_suffix(".tmp").rename(checkpoint)
                if last_steady:
                    torch.save(state, checkpoint.with_suffix(".steady"))
    chat, code = held_out_alpha(draft, data, head)
    notes = {
        "seed": seed,
        "steps": steps,
        "positions": seen,
        "minutes": round((time.time() - began) / 60, 1),
        "held_out_alpha": {"chat": round(float(chat), 4), "code": round(float(code), 4)},
    }
    draft.save(out, head_ids(data.corpus, KEPT_SIZE), **notes)
    print(json.dumps(notes))
    return draft
