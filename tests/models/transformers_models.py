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
import shutil
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, logging

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
    "qwen3_vl_moe": ("qwen3_vl_moe", dict(
        text_config=dict(COMMON, **MOE, num_experts=4, head_dim=8,
                         rope_parameters=dict(rope_type="default", rope_theta=5e6,
                                              mrope_section=[2, 1, 1], mrope_interleaved=True)),
        vision_config=dict(depth=1, hidden_size=8, intermediate_size=8, num_heads=2, patch_size=2,
                           out_hidden_size=16, num_position_embeddings=4,
                           deepstack_visual_indexes=[]))),
    "olmoe": ("olmoe", dict(intermediate_size=8, num_experts=4, num_experts_per_tok=3)),
    "deepseek_v2": ("deepseek_v2", dict(MOE, **{**LATENT, "q_lora_rank": None, "norm_topk_prob": False},
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
    "glm4_moe_lite": ("glm4_moe_lite", dict(MOE, **{**LATENT, "n_group": 1, "n_shared_experts": 1,
                                                    "rms_norm_eps": 1e-2})),
    "solar_open": ("solar_open", dict(MOE, n_routed_experts=4, head_dim=8, n_shared_experts=1)),
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

# The published models: name of moe.model -> (checkpoint, what else than sizes its config.json on the hub
# states of logits). Models that share a checkpoint differ in these alone.
DEEPSEEK = dict(rope_theta=10000, rms_norm_eps=1e-6, hidden_act="silu", attention_bias=False,
                tie_word_embeddings=False, moe_layer_freq=1, first_k_dense_replace=1)
SIGMOID = dict(DEEPSEEK, scoring_func="sigmoid", topk_method="noaux_tc", norm_topk_prob=True)


def yarn(factor, mscale, beta_fast):
    return dict(type="yarn", factor=factor, beta_fast=beta_fast, beta_slow=1, mscale=mscale,
                mscale_all_dim=mscale, original_max_position_embeddings=4096)


MIXTRAL = dict(rope_theta=1000000.0, rms_norm_eps=1e-5, sliding_window=None, hidden_act="silu",
               tie_word_embeddings=False)
QWEN2 = dict(rope_theta=1000000.0, rms_norm_eps=1e-6, use_sliding_window=False, sliding_window=65536,
             norm_topk_prob=False, decoder_sparse_step=1, tie_word_embeddings=False)
QWEN3 = dict(rope_theta=1000000.0, rms_norm_eps=1e-6, use_sliding_window=False, sliding_window=None,
             norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[], attention_bias=False,
             rope_scaling=None, tie_word_embeddings=False)
GPT_OSS = dict(rope_theta=150000, rms_norm_eps=1e-5, sliding_window=128, swiglu_limit=7.0,
               attention_bias=True, tie_word_embeddings=False,
               layer_types=["sliding_attention", "full_attention"],
               rope_scaling=dict(beta_fast=32.0, beta_slow=1.0, factor=32.0, rope_type="yarn",
                                 original_max_position_embeddings=4096, truncate=False))
GLM = dict(rope_theta=1000000, rms_norm_eps=1e-5, partial_rotary_factor=0.5, norm_topk_prob=True,
           n_group=1, topk_group=1, first_k_dense_replace=1, attention_bias=True, rope_scaling=None,
           tie_word_embeddings=False)
GRANITE = dict(rms_norm_eps=1e-6, attention_bias=False, embedding_multiplier=12.0,
               residual_multiplier=0.22, logits_scaling=6.0, attention_multiplier=0.015625,
               rope_scaling=None, tie_word_embeddings=True)
NAMED = {
    "mixtral_8x7b": ("mixtral", MIXTRAL),
    "mixtral_8x22b": ("mixtral", MIXTRAL),
    "deepseek_v2_lite": ("deepseek_v2", dict(DEEPSEEK, topk_method="greedy", n_group=1, topk_group=1,
                                             norm_topk_prob=False, routed_scaling_factor=1.0,
                                             scoring_func="softmax", q_lora_rank=None,
                                             rope_scaling=yarn(40, 0.707, 32))),
    "deepseek_v3": ("deepseek_v3", dict(SIGMOID, n_group=8, topk_group=4, routed_scaling_factor=2.5,
                                        rope_scaling=yarn(40, 1.0, 32))),
    "kimi_k2": ("deepseek_v3", dict(SIGMOID, model_type="kimi_k2", n_group=1, topk_group=1,
                                    routed_scaling_factor=2.827, rope_theta=50000.0,
                                    rope_scaling=yarn(32.0, 1.0, 1.0))),
    "moonlight_16b_a3b": ("moonlight", dict(SIGMOID, n_group=1, topk_group=1, q_lora_rank=None,
                                            routed_scaling_factor=2.446, rope_theta=50000.0,
                                            rms_norm_eps=1e-5)),
    "qwen1_5_moe_a2_7b": ("qwen2_moe", QWEN2),
    "qwen2_57b_a14b": ("qwen2_moe", QWEN2),
    "qwen3_30b_a3b": ("qwen3_moe", QWEN3),
    "qwen3_235b_a22b": ("qwen3_moe", QWEN3),
    "gpt_oss_20b": ("gpt_oss", GPT_OSS),
    "gpt_oss_120b": ("gpt_oss", GPT_OSS),
    "glm_4_5": ("glm4_moe", dict(GLM, use_qk_norm=True, routed_scaling_factor=2.5)),
    "glm_4_5_air": ("glm4_moe_air", dict(GLM, use_qk_norm=False, routed_scaling_factor=1.0)),
    "olmoe_1b_7b": ("olmoe", dict(rope_theta=10000.0, rms_norm_eps=1e-5, norm_topk_prob=False,
                                  clip_qkv=None, attention_bias=False, rope_scaling=None,
                                  tie_word_embeddings=False)),
    "granite_3_1b_a400m": ("granitemoe", dict(GRANITE, rope_theta=10000)),
    "granite_3_3b_a800m": ("granitemoe", dict(GRANITE, rope_theta=10000000.0)),
    "minimax_m2": ("minimax_m2", dict(rope_theta=5000000, rms_norm_eps=1e-6, rotary_dim=4,
                                      use_qk_norm=True, qk_norm_type="per_layer",
                                      tie_word_embeddings=False)),
    "hunyuan_a13b": ("hunyuan_v1_moe", dict(rope_theta=10000.0, rms_norm_eps=1e-5, moe_topk=[2, 2],
                                            num_shared_expert=[1, 1], moe_intermediate_size=[8, 8],
                                            use_qk_norm=True, attention_bias=False,
                                            tie_word_embeddings=True,
                                            rope_scaling=dict(alpha=1000.0, beta_fast=32, beta_slow=1,
                                                              factor=1.0, mscale=1.0,
                                                              mscale_all_dim=1.0, type="dynamic"))),
}
EXPERTS = dict(intermediate_size=8, num_local_experts=4, num_experts_per_tok=2)
TINY_LATENT = dict(moe_intermediate_size=4, intermediate_size=12, num_experts_per_tok=3,
                   num_key_value_heads=4, q_lora_rank=12, kv_lora_rank=8, qk_nope_head_dim=6,
                   qk_rope_head_dim=4, v_head_dim=5, n_routed_experts=16, n_shared_experts=1)
GLM_SIZES = dict(MOE, n_routed_experts=4, head_dim=8, n_shared_experts=1)
# The sizes of the checkpoints of NAMED.
SIZES = {
    "mixtral": ("mixtral", EXPERTS),
    "deepseek_v2": ("deepseek_v2", dict(TINY_LATENT, n_routed_experts=4, n_shared_experts=2)),
    "deepseek_v3": ("deepseek_v3", TINY_LATENT),
    "moonlight": ("deepseek_v3", dict(TINY_LATENT, n_routed_experts=4, n_shared_experts=2)),
    "qwen2_moe": ("qwen2_moe", dict(MOE, num_experts=4, shared_expert_intermediate_size=10)),
    "qwen3_moe": ("qwen3_moe", dict(MOE, num_experts=4, head_dim=8)),
    "gpt_oss": ("gpt_oss", dict(EXPERTS, head_dim=8)),
    "glm4_moe": ("glm4_moe", GLM_SIZES),
    "glm4_moe_air": ("glm4_moe", GLM_SIZES),
    "olmoe": ("olmoe", dict(intermediate_size=8, num_experts=4, num_experts_per_tok=3)),
    "granitemoe": ("granitemoe", EXPERTS),
    "minimax_m2": ("minimax_m2", dict(EXPERTS, head_dim=8)),
    "hunyuan_v1_moe": ("hunyuan_v1_moe", dict(intermediate_size=8, num_experts=4, head_dim=8)),
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
    common = {} if "text_config" in fields else COMMON
    config = AutoConfig.for_model(model_type, **{**common, **fields})
    fill(folder, config)
    return load(folder), torch.tensor(write_tokens(folder))


def class_of(config):
    """The class with the whole model: one that also sees images has its text model in a part."""
    return AutoModelForImageTextToText if hasattr(config, "text_config") else AutoModelForCausalLM


def fill(folder, config):
    """Writes a random checkpoint of the config."""
    torch.manual_seed(7)
    model = class_of(config).from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, p in list(model.named_parameters()) + list(model.named_buffers()):
            if "inv_freq" in name:
                continue
            noise = torch.randn_like(p, dtype=torch.float32)
            p.copy_(1 + 0.2 * noise if "norm" in name and p.dim() == 1 else 0.25 * noise)
    model.to(torch.bfloat16).save_pretrained(folder)


def write_tokens(folder):
    tokens = torch.randint(0, COMMON["vocab_size"], (4, 25)).tolist()
    with open(os.path.join(folder, "tokens.json"), "w", encoding="utf-8") as f:
        json.dump(tokens, f)
    return tokens


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
    model = class_of(config).from_pretrained(folder, dtype=torch.float64,
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
        json.dump(config, f, indent=1)
    with open(os.path.join(folder, "losses.json"), "w", encoding="utf-8") as f:
        json.dump(losses, f)
    print(name, losses)


def write_named(folder):
    """Writes the published models, shrunk: models.json, with their configs in the hub's form and the
    losses of transformers, tokens.json, and a file of parameters for each of SIZES."""
    rows, tokens = {}, None
    for name, (file, published) in NAMED.items():
        model_type, sizes = SIZES[file]
        common = {k: v for k, v in COMMON.items() if not k.endswith("token_id")}
        config = {"model_type": model_type, **common, **sizes, **published}
        with tempfile.TemporaryDirectory() as scratch:
            with open(os.path.join(scratch, "config.json"), "w", encoding="utf-8") as f:
                json.dump({**config, "model_type": model_type, "pad_token_id": None}, f)
            target = os.path.join(folder, file + ".safetensors")
            if not os.path.exists(target):
                fill(os.path.join(scratch, "made"), AutoConfig.from_pretrained(scratch))
                os.replace(os.path.join(scratch, "made", "model.safetensors"), target)
            tokens = tokens or write_tokens(folder)
            shutil.copy(target, os.path.join(scratch, "model.safetensors"))
            losses, _ = theirs(load(scratch), torch.tensor(tokens), scratch)
        rows[name] = {"file": file + ".safetensors", "config": config, "losses": losses}
        print(name, losses, flush=True)
    with open(os.path.join(folder, "models.json"), "w", encoding="utf-8") as f:
        f.write("{" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in rows.items()) + "}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--binary", default="build/release/moebench")
    parser.add_argument("--models", default=",".join(MODELS), help="comma-separated")
    parser.add_argument("--as-is", action="store_true", help="leave float32 in transformers")
    parser.add_argument("--write", help="write the models of the project's tests to this folder")
    parser.add_argument("--write-named", help="write the published models, shrunk, to this folder")
    args = parser.parse_args()
    if args.write_named:
        write_named(args.write_named)
        return
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
