#!/usr/bin/env python3
"""A training step of GPT2-S with experts in PyTorch on one GPU: what the project's step is held to.

The model of the project's reference (README, 'Reference model'): GPT-2 with pre-LayerNorm, tied
head and no dropout, in every odd block an MoE FFN of 8 experts behind a Switch gate of capacity
factor 1.25. Weights in float32, products in bfloat16 (autocast), fused AdamW, scaled dot-product
attention, torch.compile. Every shape is static, so nothing waits for the host.

The experts run in two ways, one JSON line each, with the milliseconds of every step:
  index_add    rows padded to capacity, one batched product for all experts
  grouped_mm   only the rows that there are, by torch's grouped product

    python3 torch_step.py [--quick] [--experts-by index_add|grouped_mm] [--no-compile]

Status: 0, 1 something failed, 77 without PyTorch or a GPU for it ('skipped: ...').
"""
import argparse
import json
import math
import statistics
import sys

SKIPPED = 77
SIZES = dict(vocab=50257, layers=12, hidden=768, heads=12, batch=24, seq=512, experts=8,
             capacity_factor=1.25)
WARM_UP_STEPS = 6

try:
    import torch
    from torch import nn
    import torch.nn.functional as F
except ImportError:
    print("skipped: python3 has no PyTorch")
    sys.exit(SKIPPED)


# Under the name that this version has, or None.
GROUPED_PRODUCT = getattr(F, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)


class Attention(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)

    def forward(self, x):
        batch, seq, hidden = x.shape
        q, k, v = (t.view(batch, seq, self.heads, -1).transpose(1, 2)
                   for t in self.qkv(x).split(hidden, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, seq, hidden))


class Dense(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.fc1 = nn.Linear(hidden, 4 * hidden)
        self.fc2 = nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class Experts(nn.Module):
    """A Switch layer: a token goes to its best expert, which takes its first `capacity` tokens."""

    def __init__(self, hidden, experts, capacity, experts_by):
        super().__init__()
        self.experts, self.capacity = experts, capacity
        self.experts_by = experts_by
        self.gate = nn.Linear(hidden, experts, bias=False)
        self.w1 = nn.Parameter(torch.empty(experts, 4 * hidden, hidden))
        self.b1 = nn.Parameter(torch.zeros(experts, 4 * hidden))
        self.w2 = nn.Parameter(torch.empty(experts, hidden, 4 * hidden))
        self.b2 = nn.Parameter(torch.zeros(experts, hidden))

    def forward(self, x):
        rows = x.reshape(-1, x.shape[-1])
        weight, expert = torch.softmax(self.gate(rows).float(), dim=-1).max(dim=-1)
        chosen = F.one_hot(expert, self.experts)
        place = (chosen.cumsum(0) * chosen).sum(-1) - 1
        kept = place < self.capacity
        run = self.padded if self.experts_by == "index_add" else self.ragged
        y = run(rows.bfloat16(), weight.bfloat16(), expert, place, kept)
        return y.view(x.shape), (~kept).sum()

    def padded(self, x, weight, expert, place, kept):
        """All slots of all experts; the token of an empty slot is one beyond the last, and 0."""
        tokens, slots = x.shape[0], self.experts * self.capacity
        slot = torch.where(kept, expert * self.capacity + place, slots)
        token = torch.full((slots + 1,), tokens, device=x.device)
        token = token.scatter(0, slot, torch.arange(tokens, device=x.device))[:slots]
        inputs = torch.cat([x, x.new_zeros(1, x.shape[1])])[token]
        inputs = inputs.view(self.experts, self.capacity, -1)
        h = torch.baddbmm(self.b1.bfloat16()[:, None], inputs, self.w1.bfloat16().transpose(1, 2))
        h = F.gelu(h, approximate="tanh")
        y = torch.baddbmm(self.b2.bfloat16()[:, None], h, self.w2.bfloat16().transpose(1, 2))
        y = y.view(slots, -1) * torch.cat([weight, weight.new_zeros(1)])[token][:, None]
        return x.new_zeros(tokens + 1, x.shape[1]).index_add(0, token, y)[:tokens]

    def ragged(self, x, weight, expert, place, kept):
        """Rows by expert, those that were dropped last, and a few more since the product wants its
        groups to end before the rows do. What it leaves in these, and in their gradient, is
        anything, NaN too, hence the masks."""
        pad = 8
        group = torch.where(kept, expert, self.experts)
        order = torch.cat([torch.argsort(group, stable=True), group.new_zeros(pad)])
        ends = F.one_hot(group, self.experts + 1).sum(0)[:self.experts].cumsum(0).to(torch.int32)
        used = torch.arange(order.shape[0], device=x.device) < ends[-1]
        of_row = torch.where(used, expert[order], 0)

        def multiply(rows, w):
            product = GROUPED_PRODUCT(torch.where(used[:, None], rows, 0), w, offs=ends)
            return torch.where(used[:, None], product, 0)

        h = multiply(x[order], self.w1.bfloat16().transpose(1, 2)) + self.b1.bfloat16()[of_row]
        h = F.gelu(h, approximate="tanh")
        y = multiply(h, self.w2.bfloat16().transpose(1, 2)) + self.b2.bfloat16()[of_row]
        y = y * torch.where(used, weight[order], 0)[:, None]
        return torch.zeros_like(x).index_add(0, order, y)


class Block(nn.Module):
    def __init__(self, sizes, number, experts_by):
        super().__init__()
        hidden = sizes["hidden"]
        self.ln1, self.ln2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.attention = Attention(hidden, sizes["heads"])
        self.has_experts = number % 2 == 1
        if self.has_experts:
            tokens = sizes["batch"] * sizes["seq"]
            capacity = math.ceil(sizes["capacity_factor"] * tokens / sizes["experts"])
            self.ffn = Experts(hidden, sizes["experts"], capacity, experts_by)
        else:
            self.ffn = Dense(hidden)

    def forward(self, x):
        x = x + self.attention(self.ln1(x))
        if not self.has_experts:
            return x + self.ffn(self.ln2(x)), 0
        y, dropped = self.ffn(self.ln2(x))
        return x + y, dropped


class Model(nn.Module):
    def __init__(self, sizes, experts_by):
        super().__init__()
        self.wte = nn.Embedding(sizes["vocab"], sizes["hidden"])
        self.wpe = nn.Embedding(sizes["seq"], sizes["hidden"])
        self.blocks = nn.ModuleList(Block(sizes, b, experts_by) for b in range(sizes["layers"]))
        self.norm = nn.LayerNorm(sizes["hidden"])
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
        for name, parameter in self.named_parameters():
            if name.endswith(("b1", "b2")):
                nn.init.zeros_(parameter)

    def forward(self, ids, targets):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        dropped = 0
        for block in self.blocks:
            x, here = block(x)
            dropped = dropped + here
        logits = F.linear(self.norm(x), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten()), dropped


def train(sizes, experts_by, compiled, steps):
    """What the JSON line says of `steps` steps after a warm-up."""
    torch.manual_seed(1)
    model = Model(sizes, experts_by).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    run = torch.compile(model) if compiled else model
    generator = torch.Generator().manual_seed(2)
    losses, times = [], []
    dropped = 0
    torch.cuda.reset_peak_memory_stats()
    for _ in range(WARM_UP_STEPS + steps):
        ids = torch.randint(sizes["vocab"], (sizes["batch"], sizes["seq"] + 1), generator=generator)
        ids = ids.cuda()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss, dropped = run(ids[:, :-1], ids[:, 1:])
        loss.backward()
        optimizer.step()
        end.record()
        torch.cuda.synchronize()
        losses.append(loss.item())
        times.append(start.elapsed_time(end))
    if not all(math.isfinite(loss) for loss in losses):
        raise RuntimeError(f"a loss is not finite: {losses}")
    tokens = sizes["batch"] * sizes["seq"]
    samples = times[WARM_UP_STEPS:]
    return dict(
        tokens_per_s=1e3 * tokens / statistics.median(samples), samples_ms=samples, losses=losses,
        dropped_of_choices=int(dropped) / (tokens * (sizes["layers"] // 2)),
        peak_memory_bytes=torch.cuda.max_memory_allocated())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--experts-by", choices=["index_add", "grouped_mm"])
    parser.add_argument("--no-compile", action="store_true")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("skipped: PyTorch sees no GPU")
        return SKIPPED
    status = 0
    ways = [options.experts_by] if options.experts_by else ["index_add", "grouped_mm"]
    for experts_by in ways:
        line = dict(baseline="PyTorch", torch=torch.__version__, cuda=torch.version.cuda,
                    device=torch.cuda.get_device_name(), dtype="bfloat16", sizes=SIZES,
                    experts_by=experts_by, compiled=not options.no_compile)
        if experts_by == "grouped_mm" and GROUPED_PRODUCT is None:
            line["skipped"] = "this version has no grouped product"
        else:
            try:
                line.update(train(SIZES, experts_by, not options.no_compile,
                                  5 if options.quick else 21))
            except Exception as error:  # of the compiler's many kinds; the other way still runs
                line["failed"] = f"{type(error).__name__}: {str(error)[:1000]}"
                status = 1
        print(json.dumps(line), flush=True)
        torch.cuda.empty_cache()
        torch.compiler.reset()
    return status


if __name__ == "__main__":
    sys.exit(main())
