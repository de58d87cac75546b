"""Golden values of training with router losses, bias balancing and AdamW, by PyTorch in float64.

An independent implementation of what README, 'Training that routes', says: writes
tests/data/golden_router.json. The model, its initialisation and its tokens are those of
torch_gpt2_moe.py; ranks share the rows of the batch, and each routes its own tokens.

    python3 tests/bench/torch_router_losses.py > tests/data/golden_router.json
"""
import argparse
import json
import math

import torch
import torch.nn.functional as F

from torch_gpt2_moe import Model, tokens

SIZES = dict(vocab=64, layers=4, hidden=32, heads=2, seq=16, batch=8, experts=4,
             capacity_factor=1.0)
STEPS = 5
SGD = dict(name="sgd", lr=0.02, momentum=0.9)
ADAMW = dict(name="adamw", lr=0.002, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1)


def case(ranks, k, optimizer=SGD, balance=None, z=0.0, bias=0.0):
    balance = balance and dict(zip(("coefficient", "count", "over"), balance))
    return dict(ranks=ranks, k=k, optimizer=optimizer, balance_loss=balance, z_loss=z,
                bias_rate=bias)


CASES = {
    "balance_rank": case(2, 1, balance=(0.5, "choices", "rank")),
    "balance_kept_all_z": case(2, 1, balance=(0.5, "kept", "all"), z=0.2),
    "balance_first_z_adamw": case(2, 2, ADAMW, balance=(0.3, "first", "rank"), z=0.1),
    "balance_choices_all": case(4, 2, balance=(0.3, "choices", "all")),
    "bias_adamw": case(1, 2, ADAMW, bias=0.002),
    "bias_balance_z": case(4, 1, bias=0.002, balance=(0.1, "choices", "all"), z=0.1),
    "adamw": case(1, 1, ADAMW),
}


class RoutedModel(Model):
    """The gates switch (k = 1) and top_k (k > 1) on several ranks, with the losses of routers."""

    def __init__(self, case):
        super().__init__(argparse.Namespace(**SIZES), torch.float64)
        self.case = case
        self.bias = {f"b{b}.": torch.zeros(SIZES["experts"], dtype=torch.float64)
                     for b in range(1, SIZES["layers"], 2)}
        self.layers = []

    def experts(self, p, x):
        flat = x.reshape(-1, x.shape[-1])
        outs, self.routed = [], []
        for own in flat.chunk(self.case["ranks"]):
            outs.append(self.rank_experts(p, own))
        self.layers.append(self.layer_losses(p))
        return torch.cat(outs).view_as(x)

    def rank_experts(self, p, x):
        w, k = self.params, self.case["k"]
        n, e = x.shape[0], SIZES["experts"]
        capacity = math.ceil(k * SIZES["capacity_factor"] * n / e)
        logits = x @ w[p + "gate.w"].t()
        prob = torch.softmax(logits, -1)
        choice = torch.topk(prob + self.bias[p], k, dim=-1).indices
        weight = prob.gather(1, choice)
        if k > 1:
            weight = weight / weight.sum(1, keepdim=True)
        kept = torch.zeros(n, k, dtype=torch.bool)
        used = [0] * e
        for j in range(k):  # all first choices before all second ones
            for t in range(n):
                c = int(choice[t, j])
                if used[c] < capacity:
                    used[c] += 1
                    kept[t, j] = True
        y = torch.zeros_like(x)
        for c in range(e):
            t, j = torch.nonzero((choice == c) & kept, as_tuple=True)
            h = F.gelu(F.linear(x[t], w[p + "ex.fc1.w"][c], w[p + "ex.fc1.b"][c]),
                       approximate="tanh")
            out = F.linear(h, w[p + "ex.fc2.w"][c], w[p + "ex.fc2.b"][c])
            y = y.index_add(0, t, out * weight[t, j].unsqueeze(1))
        self.routed.append(dict(logits=logits, prob=prob, choice=choice, kept=kept))
        return y

    def layer_losses(self, p):
        """The losses of one layer, and what its routing did, over all ranks."""
        e, k = SIZES["experts"], self.case["k"]
        count = lambda c: torch.bincount(c.reshape(-1), minlength=e).double()
        load = sum(count(r["choice"]) for r in self.routed)
        dropped = int(sum((~r["kept"]).sum() for r in self.routed))
        balance = z = torch.zeros((), dtype=torch.float64)
        spec = self.case["balance_loss"]
        if spec:
            def share(r):
                if spec["count"] == "first":
                    return count(r["choice"][:, 0]) / len(r["choice"])
                chosen = r["choice"][r["kept"]] if spec["count"] == "kept" else r["choice"]
                return count(chosen) / (k * len(r["choice"]))
            f = [share(r) for r in self.routed]
            mean = [r["prob"].mean(0) for r in self.routed]
            if spec["over"] == "all":
                f, mean = [sum(f) / len(f)], [sum(mean) / len(mean)]
            balance = spec["coefficient"] * e * sum((a * b).sum() for a, b in zip(f, mean)) / len(f)
        if self.case["z_loss"]:
            logits = torch.cat([r["logits"] for r in self.routed])
            z = self.case["z_loss"] * torch.logsumexp(logits, 1).square().mean()
        return dict(block=p, balance=balance, z=z, load=load, dropped=dropped)

    def update_biases(self):
        for layer in self.layers:
            load = layer["load"]
            self.bias[layer["block"]] += self.case["bias_rate"] * torch.sign(load.mean() - load)


def optimizer_of(spec, params):
    if spec["name"] == "sgd":
        return torch.optim.SGD(params.values(), lr=spec["lr"], momentum=spec["momentum"])
    decays = lambda name, w: w.dim() - (".ex." in name) >= 2
    groups = [dict(params=[w for n, w in params.items() if decays(n, w)]),
              dict(params=[w for n, w in params.items() if not decays(n, w)], weight_decay=0.0)]
    return torch.optim.AdamW(groups, lr=spec["lr"], betas=(spec["beta1"], spec["beta2"]),
                             eps=spec["eps"], weight_decay=spec["weight_decay"])


def norms(tensors):
    place = lambda v: torch.arange(v.numel()) % 13 - 6
    return {n: [v.norm().item(), (v.reshape(-1) * place(v)).sum().item()]
            for n, v in tensors.items()}


def train(case):
    model = RoutedModel(case)
    optimizer = optimizer_of(case["optimizer"], model.params)
    losses, layers, gradients = [], [], None
    for step in range(STEPS):
        ids, targets = tokens(step, SIZES["batch"], SIZES["seq"], SIZES["vocab"])
        model.layers = []
        optimizer.zero_grad()
        loss = model.loss(ids, targets)
        (loss + sum(x["balance"] + x["z"] for x in model.layers)).backward()
        if step == 0:
            gradients = norms({n: w.grad for n, w in model.params.items()})
        optimizer.step()
        model.update_biases()
        losses.append(loss.item())
        layers.append([dict(balance_loss=x["balance"].item(), z_loss=x["z"].item(),
                            load=x["load"].long().tolist(), dropped=x["dropped"])
                       for x in model.layers])
    params = norms({n: w.detach() for n, w in model.params.items()})
    return dict(case, losses=losses, layers=layers, first_gradient=gradients, after=params)


def main():
    torch.set_num_threads(1)
    golden = dict(torch=torch.__version__, model=SIZES,
                  cases={name: train(c) for name, c in CASES.items()})
    print(json.dumps(golden, separators=(",", ":")))


if __name__ == "__main__":
    main()
