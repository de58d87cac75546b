"""The reference GPT-2-MoE (Switch gate) in PyTorch on one CPU thread: the peer of bench_step.

The same model, initialisation, tokens and update as the project's reference (README, 'Reference
model'). Prints one JSON line: losses, and milliseconds per step (all samples).

    python3 torch_gpt2_moe.py --vocab 512 --layers 4 --hidden 128 --heads 4 --seq 64 --batch 8 \
        --experts 4 --steps 12 [--dtype f64] [--experts-by rows|padded]
"""
import argparse
import json
import math
import time

import numpy as np
import torch
import torch.nn.functional as F


def mix(x):
    x = x.astype(np.uint32)
    x ^= x >> np.uint32(16)
    x = (x * np.uint32(0x85EBCA6B)).astype(np.uint32)
    x ^= x >> np.uint32(13)
    x = (x * np.uint32(0xC2B2AE35)).astype(np.uint32)
    return x ^ (x >> np.uint32(16))


def random24(index, stream):
    index = index.astype(np.uint32)
    base = np.uint32((int(stream) + 1) * 0x85EBCA77 % 2**32)
    return mix((index + np.uint32(1)) * np.uint32(0x9E3779B1) + base) >> np.uint32(8)


def tokens(step, batch, seq, vocab):
    n = step * batch * (seq + 1) + np.arange(batch * (seq + 1), dtype=np.uint64)
    r = random24(n, 1000003).astype(np.uint64)
    token = (((r * r) >> np.uint64(24)) * np.uint64(vocab)) >> np.uint64(24)
    token = torch.from_numpy(token.astype(np.int64)).view(batch, seq + 1)
    return token[:, :-1].contiguous(), token[:, 1:].contiguous()


class Model:
    def __init__(self, a, dtype):
        self.a, self.params, self.number = a, {}, 0
        self.dtype = dtype
        d, h, e = a.hidden, 4 * a.hidden, a.experts
        self.add("wte", (a.vocab, d))
        self.add("wpe", (a.seq, d))
        for b in range(a.layers):
            p = f"b{b}."
            self.norm(p + "ln1", d)
            self.linear(p + "attn.qkv", 3 * d, d)
            self.linear(p + "attn.out", d, d)
            self.norm(p + "ln2", d)
            if b % 2 == 0:
                self.linear(p + "fc1", h, d)
                self.linear(p + "fc2", d, h)
            else:
                self.add(p + "gate.w", (e, d))
                self.linear(p + "ex.fc1", h, d, (e,))
                self.linear(p + "ex.fc2", d, h, (e,))
        self.norm("lnf", d)

    def add(self, name, shape, value=None):
        n = math.prod(shape)
        if value is None:
            w = (random24(np.arange(n), self.number).astype(np.int64) - 8388608) * 2.0**-28
        else:
            w = np.full(n, value)
        t = torch.from_numpy(np.asarray(w, dtype=np.float64)).view(shape).to(self.dtype)
        self.params[name] = t.clone().requires_grad_(True)
        self.number += 1

    def linear(self, name, out, inp, lead=()):
        self.add(name + ".w", (*lead, out, inp))
        self.add(name + ".b", (*lead, out), 0.0)

    def norm(self, name, d):
        self.add(name + ".w", (d,), 1.0)
        self.add(name + ".b", (d,), 0.0)

    def attention(self, p, x):
        a, w = self.a, self.params
        b, s, d = x.shape
        qkv = F.linear(x, w[p + "attn.qkv.w"], w[p + "attn.qkv.b"])
        q, k, v = (t.view(b, s, a.heads, d // a.heads).transpose(1, 2) for t in qkv.split(d, 2))
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            score = (q @ k.transpose(2, 3)) * (d // a.heads) ** -0.5
            y = torch.softmax(score.masked_fill(self.mask, float("-inf")), -1) @ v
        y = y.transpose(1, 2).reshape(b, s, d)
        return F.linear(y, w[p + "attn.out.w"], w[p + "attn.out.b"])

    def experts(self, p, x):
        """Switch: the best expert, the first `capacity` tokens of each in token order."""
        a, w = self.a, self.params
        flat = x.reshape(-1, x.shape[-1])
        n, e = flat.shape[0], a.experts
        capacity = math.ceil(a.capacity_factor * n / e)
        prob = torch.softmax(flat @ w[p + "gate.w"].t(), -1)
        top, choice = prob.max(-1)
        rows = [torch.nonzero(choice == i).squeeze(1)[:capacity] for i in range(e)]
        fc1, b1 = w[p + "ex.fc1.w"], w[p + "ex.fc1.b"]
        fc2, b2 = w[p + "ex.fc2.w"], w[p + "ex.fc2.b"]
        if a.experts_by == "padded":
            slots = torch.full((e, capacity), n, dtype=torch.int64)
            for i, r in enumerate(rows):
                slots[i, : len(r)] = r
            padded = torch.cat([flat, flat.new_zeros(1, flat.shape[1])])[slots]
            h = F.gelu(torch.baddbmm(b1.unsqueeze(1), padded, fc1.transpose(1, 2)),
                       approximate="tanh")
            y = torch.baddbmm(b2.unsqueeze(1), h, fc2.transpose(1, 2))
            index, out = slots.view(-1), y.view(e * capacity, -1)
            keep = index < n
            index, out = index[keep], out[keep]
        else:
            out = torch.cat([F.linear(F.gelu(F.linear(flat[r], fc1[i], b1[i]), approximate="tanh"),
                                      fc2[i], b2[i]) for i, r in enumerate(rows)])
            index = torch.cat(rows)
        y = torch.zeros_like(flat).index_copy(0, index, out * top[index].unsqueeze(1))
        return y.view_as(x)

    def loss(self, ids, targets):
        a, w = self.a, self.params
        self.mask = torch.ones(a.seq, a.seq, dtype=torch.bool).triu(1)
        norm = lambda x, n: F.layer_norm(x, (a.hidden,), w[n + ".w"], w[n + ".b"])
        x = w["wte"][ids] + w["wpe"]
        for b in range(a.layers):
            p = f"b{b}."
            x = x + self.attention(p, norm(x, p + "ln1"))
            u = norm(x, p + "ln2")
            if b % 2 == 0:
                h = F.gelu(F.linear(u, w[p + "fc1.w"], w[p + "fc1.b"]), approximate="tanh")
                x = x + F.linear(h, w[p + "fc2.w"], w[p + "fc2.b"])
            else:
                x = x + self.experts(p, u)
        logits = F.linear(norm(x, "lnf"), w["wte"])
        return F.cross_entropy(logits.view(-1, a.vocab), targets.view(-1))


def main():
    parser = argparse.ArgumentParser()
    for name, value in dict(vocab=512, layers=4, hidden=128, heads=4, seq=64, batch=8, experts=4,
                            steps=10).items():
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--capacity_factor", type=float, default=1.25)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--dtype", choices=["f32", "f64"], default="f32")
    parser.add_argument("--experts-by", choices=["rows", "padded"], default="rows")
    a = parser.parse_args()
    torch.set_num_threads(1)
    model = Model(a, torch.float32 if a.dtype == "f32" else torch.float64)
    optimizer = torch.optim.SGD(model.params.values(), lr=a.lr, momentum=a.momentum)
    losses, times = [], []
    for step in range(a.steps):
        ids, targets = tokens(step, a.batch, a.seq, a.vocab)
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = model.loss(ids, targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        times.append(1e3 * (time.perf_counter() - start))
    print(json.dumps(dict(torch=torch.__version__, losses=losses, ms=times)))


if __name__ == "__main__":
    main()
