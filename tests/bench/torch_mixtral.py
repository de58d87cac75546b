#!/usr/bin/env python3
"""Step time of a small model of Mixtral's shape, on one thread in float32: moebench against PyTorch.

    python3 -m venv v && v/bin/pip install torch transformers safetensors
    v/bin/python tests/bench/torch_mixtral.py --binary build/release/moebench

A step is forward, backward and plain SGD of the same random checkpoint on the same tokens. PyTorch
runs transformers' model: eager with its loop over experts ("eager"), eager with its batched products
of experts ("grouped_mm"), and the better of both under torch.compile, each with fused attention.
Runs of all of them take turns; printed are medians with the range, and the ratio to the best. The
losses of all must agree. For a figure leave the machine idle."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import torch
from transformers import AutoConfig, AutoModelForCausalLM, logging

logging.disable_progress_bar()
logging.set_verbosity_error()

LR, SEQ, BATCH, VOCAB = 0.05, 128, 8, 8192
SIZES = dict(vocab_size=VOCAB, hidden_size=256, num_hidden_layers=4, num_attention_heads=8,
             num_key_value_heads=2, intermediate_size=896, num_local_experts=8,
             num_experts_per_tok=2, max_position_embeddings=SEQ, tie_word_embeddings=False,
             pad_token_id=None, bos_token_id=None, eos_token_id=None)
RECIPE = """
local moe = require "moe"
local r = moe.train {{ model = moe.model.from_config "config.json" {{ seq = {seq}, batch = {batch} }},
  parameters = "model.safetensors", tokens = "tokens.json", ranks = 1, steps = {steps},
  system = moe.system "raf_rows" {{}}, optimizer = {{ name = "sgd", lr = {lr}, momentum = 0 }} }}
for i, loss in ipairs(r.losses) do print(("step %.9g %.9g"):format(loss, r.samples_ms[i])) end
"""


def make(folder):
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("mixtral", **SIZES),
                                             dtype=torch.float32)
    model.save_pretrained(folder)
    tokens = torch.randint(0, VOCAB, (BATCH, SEQ + 1)).tolist()
    with open(os.path.join(folder, "tokens.json"), "w", encoding="utf-8") as f:
        json.dump(tokens, f)
    return torch.tensor(tokens)


def ours(binary, folder, steps):
    recipe = os.path.join(folder, "recipe.lua")
    with open(recipe, "w", encoding="utf-8") as f:
        f.write(RECIPE.format(seq=SEQ, batch=BATCH, lr=LR, steps=steps))
    run = subprocess.run([binary, "run", recipe, "--out", os.path.join(folder, "out")],
                         capture_output=True, text=True, check=False)
    rows = [line.split()[1:] for line in run.stdout.splitlines() if line.startswith("step")]
    if run.returncode != 0 or len(rows) != steps:
        sys.exit(run.stdout + run.stderr)
    return [float(loss) for loss, _ in rows], [float(ms) for _, ms in rows]


class Theirs:
    """transformers' model with a way of computing experts, compiled or not."""

    def __init__(self, folder, experts, compiled):
        self.model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="sdpa", experts_implementation=experts)
        self.call = torch.compile(self.model) if compiled else self.model
        self.start = {name: p.detach().clone() for name, p in self.model.named_parameters()}

    def steps(self, tokens, steps):
        with torch.no_grad():
            for name, p in self.model.named_parameters():
                p.copy_(self.start[name])
        optimizer = torch.optim.SGD(self.model.parameters(), lr=LR)
        losses, ms = [], []
        for _ in range(steps):
            begin = time.perf_counter()
            optimizer.zero_grad()
            logits = self.call(input_ids=tokens[:, :-1], use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB),
                                                     tokens[:, 1:].reshape(-1))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            ms.append(1e3 * (time.perf_counter() - begin))
        return losses, ms


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--binary", default="build/release/moebench")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6, help="per run; the first is not counted")
    args = parser.parse_args()
    torch.set_num_threads(1)
    binary = os.path.abspath(args.binary)
    with tempfile.TemporaryDirectory() as folder:
        tokens = make(folder)
        sides = {"moebench": lambda n: ours(binary, folder, n)}
        for name, experts, compiled in (("eager", "eager", False),
                                        ("grouped_mm", "grouped_mm", False),
                                        ("eager, compiled", "eager", True),
                                        ("grouped_mm, compiled", "grouped_mm", True)):
            side = Theirs(folder, experts, compiled)
            try:
                side.steps(tokens, 2)  # compiles
            except Exception as error:
                print(f"{name}: left out, {str(error).splitlines()[0]}")
                continue
            sides[name] = lambda n, side=side: side.steps(tokens, n)
        ms = {name: [] for name in sides}
        for _ in range(args.runs):
            losses = {}
            for name, steps in sides.items():
                losses[name], took = steps(args.steps)
                ms[name] += took[1:]
            spread = max(abs(a - b) for one in losses.values()
                         for a, b in zip(one, losses["moebench"]))
            if spread > 1e-4:
                sys.exit(f"the losses differ by {spread}: {losses}")
    print(f"{SIZES['num_hidden_layers']} layers, hidden {SIZES['hidden_size']}, "
          f"{SIZES['num_local_experts']} experts, {BATCH} x {SEQ} tokens, PyTorch {torch.__version__}")
    best = min(statistics.median(took) for name, took in ms.items() if name != "moebench")
    for name, took in ms.items():
        middle = statistics.median(took)
        print(f"  {name:22} {middle:8.1f} ms ({min(took):.1f} to {max(took):.1f})  "
              f"{1e3 * BATCH * SEQ / middle:8.0f} tokens/s")
    print(f"  moebench has {best / statistics.median(ms['moebench']):.2f} times the tokens/s of the "
          "best other")


if __name__ == "__main__":
    main()
