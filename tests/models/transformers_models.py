#!/usr/bin/env python3
"""Holds models of moe.model.from_config against transformers: tiny random models of each model_type
are trained by both for three steps of plain SGD in float64, from one checkpoint.

    python3 -m venv v && v/bin/pip install torch transformers safetensors
    v/bin/python tests/models/transformers_models.py --binary build/release/moebench

Compared are the losses of the steps (on 1, 2 and 4 ranks), the gradient of every tensor of the
checkpoint in the first step, and the loss that transformers computes from the file that moebench
writes. transformers computes norms and routers in float32, whatever the model's type; here its
modules take float64 for that (--as-is leaves them, and losses then differ by up to 1e-7). Exit status
1: a difference above the limits."""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, logging

logging.disable_progress_bar()
logging.set_verbosity_error()

LR = 0.05
AS_IS = "--as-is" in sys.argv
LOSS_LIMIT, GRADIENT_LIMIT, RANKS_LIMIT = 3e-6, 1e-5, 1e-9
# Their routers take only float32, so the steps of the router's weights are rounded to it.
FLOAT32_ROUTERS = {"hunyuan_v1_moe": 1e-4}

COMMON = dict(vocab_size=32, hidden_size=16, num_hidden_layers=2, num_attention_heads=4,
              num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=False,
              pad_token_id=None, bos_token_id=None, eos_token_id=None)
MOE = dict(moe_intermediate_size=8, intermediate_size=12, num_experts_per_tok=2)
LATENT = dict(num_key_value_heads=4, q_lora_rank=12, kv_lora_rank=8, qk_nope_head_dim=6,
              qk_rope_head_dim=4, v_head_dim=5, n_routed_experts=4, n_shared_experts=2,
              first_k_dense_replace=1, n_group=2, topk_group=1, norm_topk_prob=True)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=16,
            mscale=1.0, mscale_all_dim=0.7)

# name -> (model_type, fields)
MODELS = {
    "mixtral": ("mixtral", dict(intermediate_size=8, num_local_experts=4, num_experts_per_tok=2,
                                sliding_window=7)),
    "qwen2_moe": ("qwen2_moe", dict(MOE, num_experts=4, shared_expert_intermediate_size=10,
                                    decoder_sparse_step=2, norm_topk_prob=False)),
    "qwen3_moe": ("qwen3_moe", dict(MOE, num_experts=4, head_dim=8, norm_topk_prob=True,
                                    tie_word_embeddings=True, attention_bias=True)),
    "olmoe": ("olmoe", dict(intermediate_size=8, num_experts=4, num_experts_per_tok=3)),
    "deepseek_v2": ("deepseek_v2", dict(MOE, **{**LATENT, "q_lora_rank": None},
                                        topk_method="group_limited_greedy",
                                        routed_scaling_factor=2.0)),
    "deepseek_v3": ("deepseek_v3", dict(MOE, **LATENT, routed_scaling_factor=2.5)),
    "deepseek_v3_yarn": ("deepseek_v3", dict(MOE, **LATENT, rope_parameters=YARN)),
    "glm4_moe": ("glm4_moe", dict(MOE, n_routed_experts=4, head_dim=8, attention_bias=True,
                                  use_qk_norm=True, n_group=1, topk_group=1, n_shared_experts=1,
                                  first_k_dense_replace=1, routed_scaling_factor=1.5)),
    "dots1": ("dots1", dict(MOE, n_routed_experts=4, head_dim=8, n_group=2, topk_group=1,
                            n_shared_experts=1, first_k_dense_replace=1, norm_topk_prob=True,
                            routed_scaling_factor=2.5)),
    "gpt_oss": ("gpt_oss", dict(intermediate_size=8, num_local_experts=4, num_experts_per_tok=2,
                                head_dim=8, sliding_window=8)),
    "granitemoe": ("granitemoe", dict(intermediate_size=8, num_local_experts=4,
                                      num_experts_per_tok=3, embedding_multiplier=3.0,
                                      residual_multiplier=0.4, logits_scaling=2.0,
                                      attention_multiplier=0.2)),
    "hunyuan_v1_moe": ("hunyuan_v1_moe", dict(intermediate_size=8, moe_intermediate_size=8,
                                              num_experts=4, moe_topk=2, head_dim=8)),
    "minimax_m2": ("minimax_m2", dict(intermediate_size=8, num_local_experts=4,
                                      num_experts_per_tok=2, head_dim=8, rotary_dim=4)),
}

RECIPE = """
local moe = require "moe"
local r = moe.train {{ model = moe.model.from_config "config.json" {{ seq = 24, batch = 4 }},
  parameters = "model.safetensors", tokens = "tokens.json", precision = "{precision}", ranks = {ranks},
  optimizer = {{ name = "sgd", lr = {lr}, momentum = 0 }}, steps = {steps},
  parameters_to = "written.safetensors" }}
for _, loss in ipairs(r.losses) do print(("loss %.17g"):format(loss)) end
"""


def make(folder, model_type, fields):
    """Writes a random model and tokens; returns the model in float64 and the tokens."""
    torch.manual_seed(7)
    config = AutoConfig.for_model(model_type, **{**COMMON, **fields})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, p in list(model.named_parameters()) + list(model.named_buffers()):
            if "inv_freq" in name:
                continue
            noise = torch.randn_like(p, dtype=torch.float32)
            p.copy_(1 + 0.2 * noise if "norm" in name and p.dim() == 1 else 0.25 * noise)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokens = torch.randint(0, COMMON["vocab_size"], (4, 25)).tolist()
    with open(os.path.join(folder, "tokens.json"), "w", encoding="utf-8") as f:
        json.dump(tokens, f)
    return load(folder), torch.tensor(tokens)


class WideTorch:
    """The module torch with float64 in the place of float32."""

    float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


def widen(model):
    """Makes the modules that define the model compute in float64 where they ask for float32."""
    for module in {type(m).__module__ for m in model.modules()}:
        if module.startswith("transformers.models"):
            sys.modules[module].torch = WideTorch()
    return model


def load(folder, file=None):
    """Returns the model of the folder in float64, with the parameters of `file` if given."""
    config = AutoConfig.from_pretrained(folder)
    if file:
        target = os.path.join(folder, "again")
        os.makedirs(target, exist_ok=True)
        config.save_pretrained(target)
        os.replace(file, os.path.join(target, "model.safetensors"))
        folder = target
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64,
                                                 attn_implementation="eager",
                                                 experts_implementation="eager")
    if config.model_type in FLOAT32_ROUTERS:
        return model
    model = model.double()  # some models keep their routers in float32
    return model if AS_IS else widen(model)


def loss_of(model, tokens):
    logits = model(input_ids=tokens[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]),
                                             tokens[:, 1:].reshape(-1))


def theirs(model, tokens, folder):
    """Returns the losses of three steps, and the checkpoint before and after the first."""
    losses, saved = [], []
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for step in range(3):
        optimizer.zero_grad()
        loss = loss_of(model, tokens)
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        if step == 0:
            model.save_pretrained(os.path.join(folder, "step"))
            saved = load_file(os.path.join(folder, "step", "model.safetensors"))
    return losses, saved


def ours(binary, folder, ranks, steps, precision="f64"):
    recipe = os.path.join(folder, "recipe.lua")
    with open(recipe, "w", encoding="utf-8") as f:
        f.write(RECIPE.format(ranks=ranks, steps=steps, lr=LR, precision=precision))
    run = subprocess.run([binary, "run", recipe, "--out", os.path.join(folder, "out")],
                         capture_output=True, text=True, check=False)
    losses = [float(line.split()[1]) for line in run.stdout.splitlines() if line.startswith("loss")]
    if run.returncode != 0 or len(losses) != steps:
        raise RuntimeError(run.stdout + run.stderr)
    return losses, os.path.join(folder, "out", "written.safetensors")


def check(binary, name):
    model_type, fields = MODELS[name]
    faults = []
    with tempfile.TemporaryDirectory() as folder:
        model, tokens = make(folder, model_type, fields)
        first = load_file(os.path.join(folder, "model.safetensors"))
        losses, after = theirs(model, tokens, folder)
        mine, _ = ours(binary, folder, 1, 3)
        worst = max(abs(a - b) for a, b in zip(losses, mine))
        single, _ = ours(binary, folder, 1, 3, "f32")
        worst_f32 = max(abs(a - b) for a, b in zip(losses, single))
        _, file = ours(binary, folder, 1, 1)
        written = load_file(file)
        gradients = {}
        for key, value in written.items():
            a = (first[key].double() - value.double()) / LR
            b = (first[key].double() - after[key].double()) / LR
            gradients[key] = ((a - b).norm() / b.norm().clamp_min(1e-12)).item()
        again = loss_of(load(folder, file), tokens).item()
        spread = 0.0
        for ranks in (2, 4):
            other, _ = ours(binary, folder, ranks, 3)
            spread = max(spread, max(abs(a - b) for a, b in zip(mine, other)))
    key = max(gradients, key=gradients.get)
    if worst > LOSS_LIMIT or worst_f32 > 1e-5:
        faults.append("loss")
    if gradients[key] > FLOAT32_ROUTERS.get(model_type, GRADIENT_LIMIT):
        faults.append("gradient of " + key)
    if spread > RANKS_LIMIT:
        faults.append("ranks")
    if abs(again - losses[1]) > LOSS_LIMIT:
        faults.append("written checkpoint")
    print(f"{name:18} loss {worst:.1e} (f32 {worst_f32:.1e})  gradient {gradients[key]:.1e}  ranks "
          f"{spread:.1e}  written {abs(again - losses[1]):.1e}  {', '.join(faults) or 'ok'}", flush=True)
    return not faults


def write(folder, name):
    """Writes the checkpoint, the tokens and what transformers computes, for the project's tests."""
    folder = os.path.join(folder, name)
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        model, tokens = make(scratch, *MODELS[name])
        losses, _ = theirs(model, tokens, scratch)
        for file in ("model.safetensors", "tokens.json"):
            os.replace(os.path.join(scratch, file), os.path.join(folder, file))
        with open(os.path.join(scratch, "config.json"), encoding="utf-8") as f:
            config = json.load(f)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump({k: v for k, v in config.items() if v is not None}, f, indent=1)
    with open(os.path.join(folder, "losses.json"), "w", encoding="utf-8") as f:
        json.dump(losses, f)
    print(name, losses)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--binary", default="build/release/moebench")
    parser.add_argument("--models", default=",".join(MODELS), help="comma-separated")
    parser.add_argument("--as-is", action="store_true", help="leave float32 in transformers")
    parser.add_argument("--write", help="write the models of the project's tests to this folder")
    args = parser.parse_args()
    good = True
    for name in args.models.split(",") if args.write else []:
        write(args.write, name)
    if args.write:
        return
    for name in args.models.split(","):
        try:
            good = check(os.path.abspath(args.binary), name) and good
        except Exception as error:  # the other models are still checked
            good = False
            print(f"{name:18} {str(error)[-1500:]}", flush=True)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
