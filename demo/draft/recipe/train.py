# SPDX-License-Identifier: Apache-2.0
"""Distillation of a LayerDraft against the target's exact distribution on the reduced vocabulary.

Loss at a position, with p the target's probabilities of the R head ids (they sum to at most 1) and q the draft's:
    kl * (-sum_x p(x) ln q(x))  +  tv * (1 - sum_x min(p(x), q(x)))
The second term is 1 - alpha, the chance that a draft token is rejected. Its gradient vanishes where q is far from p. So
an untrained draft starts on the first term alone (kl 1, tv 0) and goes on with kl 0.2 and tv 2. A trained draft starts
with these if `alone` is 0.
"""

import json
import math
import time
from pathlib import Path

import numpy as np
import torch
from rich.progress import track

from demo.draft.recipe.teacher import CODE
from demo.draft.recipe.unroll import states_of_depths
from demo.draft.recipe.whitened import Whitened
from specdec_kernels.decode.models.layer_draft import LayerDraft

RATE, WARMUP, DECAY, WEIGHT_DECAY = 1.2e-3, 50, 0.4, 0.05
HEAD_SIZE = 4096  # output ids: with 8192 a step reads a fifth more bytes for 0.005 of alpha
# The chance that a batch is unrolled to at least depth 1, 2, ...: about the chance that a draft's first 0, 1, ...
# tokens are accepted. The other batches are trained without states, since some drafters have none to pass on.
DEPTHS = (0.95, 0.4, 0.15, 0.05)
PER_STEP = (4, 8)  # sequences of chat (kinds A, B, E) and of code (kinds C, D, F)
CURVE = 200  # steps between evaluations on held-out sequences
FIRST = 5568  # sequences of the first corpus, which have the held-out ones: these stay the same when text is added


def head_ids(corpus, size, vocab_size=49152):
    """Return the `size` ids that the target writes most often, ascending."""
    used = corpus.tokens[corpus.tokens != 65535]
    count = np.bincount(used, minlength=vocab_size)
    return np.sort(np.argsort(-count, kind="stable")[:size])


class DistillLoss(torch.autograd.Function):
    """The loss and its gradient in closed form, in chunks of rows that fit the CPU's cache: no [N, R] tensor is kept.

    h: the draft's states [N, d], with z = h @ head.T [N, R]. teacher: the target's states [N, d].
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
        """shards: (index in `corpus` of the file's sequence 0, file of states) of each file."""
        self.corpus, self.items, self.groups, self.held = corpus, [], ([], []), []
        held = set(np.random.default_rng(seed + 1).permutation(min(FIRST, len(corpus)))[:held_out].tolist())
        for first, path in shards:
            for i, (states, log_z) in torch.load(path).items():
                i += first
                group = self.held if i in held else self.groups[corpus.kind[i] in CODE]
                group.append(len(self.items))
                self.items.append((i, states, log_z))

    def batch(self, numbers):
        """Return ids [B, T], states [B, T, d], and for the N trained positions their index in B * T and ln Z [N]."""
        picked = [self.items[n] for n in numbers]
        ids, where = self.corpus.batch([i for i, _, _ in picked]), []
        states = torch.zeros(*ids.shape, picked[0][1].shape[1], dtype=picked[0][1].dtype)
        for b, (_, own, log_z) in enumerate(picked):
            states[b, : len(own)] = own  # the last token has no successor to predict
            end = b * ids.shape[1] + len(own)
            where.append(torch.arange(end - len(log_z), end))
        return ids, states, torch.cat(where), torch.cat([p[2] for p in picked])

    def count(self, numbers):
        """Return the number of trained positions of a batch."""
        return sum(len(self.items[n][2]) for n in numbers)

    def epochs(self, rng):
        """Yield minibatches of PER_STEP sequences without end; chat and code are each in their own shuffled order."""
        queues = [[], []]
        while True:
            step = []
            for queue, group, size in zip(queues, self.groups, PER_STEP):
                if len(queue) < size:
                    queue.extend(rng.permutation(group).tolist())
                step.append([queue.pop(0) for _ in range(size)])
            yield step


def rate(step, steps, peak, decay):
    """Return the learning rate: warm-up, constant, then a cosine to 1% over the last share `decay` of the steps."""
    start = (1 - decay) * steps
    fall = 1.0 if step < start else 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (step - start) / (steps - start)))
    return peak * min(1.0, (step + 1) / WARMUP) * fall


def run_batch(draft, data, numbers, head, kl, tv, depths):
    """Return the loss summed over trained positions and depths, alpha of every depth, the number of positions.

    depths: 0 is one pass without states.
    """
    ids, states, where, log_z = data.batch(numbers)
    teacher, loss, alpha = states.flatten(0, 1)[where], 0.0, []
    with torch.autocast("cpu", torch.bfloat16):
        own = states_of_depths(draft, ids, states, depths) if depths else [draft.hidden(ids)]
    for h in own:
        h = h.flatten(0, 1)[where].bfloat16()
        part, overlap = DistillLoss.apply(h, head, teacher, log_z, kl, tv)
        loss, alpha = loss + part, [*alpha, float(overlap)]
    return loss, alpha, len(where)


@torch.no_grad()
def held_out_alpha(draft, data, head, every=1):
    """Return the mean of sum_x min(p, q) over held-out sequences at temperature 1: [chat or code, 1 + depths].

    The first column is without states. every: 3 takes a third of the sequences.
    """
    total, count = np.zeros((2, 1 + len(DEPTHS))), np.zeros((2, 1))
    for n in data.held[::every]:
        kind = int(data.corpus.kind[data.items[n][0]] in CODE)
        for depths in (0, len(DEPTHS)):
            _, alpha, positions = run_batch(draft, data, [n], head, 1.0, 0.0, depths)
            total[kind, 1 if depths else 0 :][: len(alpha)] += np.array(alpha) * positions
        count[kind] += positions
    return total / count


def first_draft(target, corpus, folder=None, layers=(0, 29)):
    """Return the draft that training begins with: copies of the target's layers, or the draft saved in `folder`.

    Its projection of states is zero, unless the saved draft has one.
    """
    if folder is None:
        return LayerDraft(target, head_ids(corpus, HEAD_SIZE), layers, reads_states=True).copy_layers(target).float()
    saved = LayerDraft.load(folder, target, torch.float32)
    draft = LayerDraft(target, saved.head_ids, saved.layer_ids, reads_states=True).float()
    draft.load_state_dict(saved.state_dict(), strict=saved.state is not None)
    return draft


class Training:
    """A draft, its optimiser and their progress; a checkpoint holds all three.

    share: the layers' share of the learning rate. The projection of states, which begins at zero, has the whole rate.
    """

    def __init__(self, draft, share=1.0):
        self.draft, self.weights = draft, [p for p in draft.parameters() if p.requires_grad]
        own = list(draft.model.parameters())
        groups = [
            {"params": [p for p in own if p.dim() == n], "weight_decay": d, "share": share}
            for n, d in ((2, WEIGHT_DECAY), (1, 0))
        ]
        groups.append({"params": list(draft.state.parameters()), "weight_decay": 0, "share": 1.0})
        self.optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True)
        self.step = self.positions = 0
        self.seconds = 0.0

    def save(self, path):
        parts = {"draft": self.draft.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save({**parts, "progress": [self.step, self.positions, self.seconds]}, path.with_suffix(".tmp"))
        path.with_suffix(".tmp").rename(path)

    def load(self, path, progress=True):
        """Load a checkpoint. progress: False starts another run from its weights and optimiser state."""
        saved = torch.load(path)
        shares = [group["share"] for group in self.optimizer.param_groups]  # this run's, not the saved one's
        self.draft.load_state_dict(saved["draft"]), self.optimizer.load_state_dict(saved["optimizer"])
        for group, share in zip(self.optimizer.param_groups, shares):
            group["share"] = share
        if progress:
            self.step, self.positions, self.seconds = saved["progress"]

    def update(self, data, halves, kl, tv, rate, depths):
        """Take one step -> the alphas of every depth, for each half (chat, code)."""
        head = self.draft.head.weight.detach().bfloat16()
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["share"]
        count, alpha = sum(data.count(numbers) for numbers in halves), []
        for numbers in halves:
            loss, overlap, _ = run_batch(self.draft, data, numbers, head, kl, tv, depths)
            (loss / count).backward()
            alpha.append(overlap)
        torch.nn.utils.clip_grad_norm_(self.weights, 1.0)
        self.optimizer.step(), self.optimizer.zero_grad()
        self.step, self.positions = self.step + 1, self.positions + count
        return alpha


def told(recent):
    """Return as text the mean alphas [without states, depth 1, ...]. recent: (depths, alphas [chat, code]) per step."""
    table = np.full((len(recent), 2, 1 + len(DEPTHS)), np.nan)
    for row, (depths, alpha) in zip(table, recent):
        row[:, slice(1, 1 + depths) if depths else slice(1)] = alpha
    chat, code = np.ma.masked_invalid(table).mean(0).filled(np.nan).round(3).tolist()
    return f"chat {chat} code {code}"


def train(
    data,
    target,
    out,
    steps,
    seed=0,
    init=None,
    checkpoint=None,
    peak=RATE,
    decay=DECAY,
    share=1.0,
    alone=None,
    log_every=50,
):
    """Train a draft and save it in the folder `out`.

    init: the folder of a draft or the checkpoint of an earlier run, to begin with in place of the target's layers.
    checkpoint: a file for the training state, written every `log_every` steps and at the end. If it exists, training
    resumes. peak: the highest learning rate. decay: the share of the steps over which it falls; 0: it never does, so
    that another run may go on from the checkpoint. share: the layers' share of the learning rate. alone: the share of
    steps at the beginning that use KL alone; None: those before the rate falls.
    """
    torch.manual_seed(seed)
    folder = init if init and Path(init).is_dir() else None
    draft = first_draft(target, data.corpus, folder)
    draft.state = Whitened(draft.state, torch.cat([states for _, states, _ in data.items[:200]]))
    run, checkpoint, head = Training(draft, share), Path(checkpoint), draft.head.weight.detach().bfloat16()
    if checkpoint.exists():
        run.load(checkpoint)
    elif init and folder is None:
        run.load(init, progress=False)
    batches, begun, recent = data.epochs(np.random.default_rng(seed)), run.step, []
    for _ in range(begun):
        next(batches)
    spent, alone = run.seconds - time.time(), 1 - decay if alone is None else alone
    for step in track(range(begun, steps), description="training"):
        kl, tv = (1.0, 0.0) if step < alone * steps else (0.2, 2.0)
        luck = np.random.default_rng([seed, step]).random()
        depths = sum(luck < chance for chance in DEPTHS)
        recent.append((depths, run.update(data, next(batches), kl, tv, rate(step, steps, peak, decay), depths)))
        run.seconds = spent + time.time()
        if run.step % log_every == 0 or run.step == steps:
            print(f"step {run.step} {run.seconds:.0f} s, alpha without states and of depths {told(recent)}", flush=True)
            recent.clear()
            run.save(checkpoint)
        if run.step % CURVE == 0 and run.step < steps:
            print("held out, one in three:", held_out_alpha(draft, data, head, 3).round(4).tolist(), flush=True)
    notes = {"seed": seed, "steps": steps, "positions": run.positions, "minutes": round(run.seconds / 60, 1)}
    held_out = held_out_alpha(draft, data, head).round(4).tolist()
    draft.state = draft.state.folded()
    draft.save(out, **notes, held_out_alpha=dict(zip(("chat", "code"), held_out)))
    print(json.dumps({**notes, "held_out_alpha": held_out}))
    return draft
