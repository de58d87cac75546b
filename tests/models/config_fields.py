#!/usr/bin/env python3
"""Holds what moe.model.from_config reads of a config.json against transformers.

    python3 -m venv v && v/bin/pip install torch transformers==5.24.0 safetensors
    v/bin/python tests/models/config_fields.py --binary build/release/moebench --random 1000
    v/bin/python tests/models/config_fields.py --classes     # class defaults, as transformers says them

--random: tiny configs of each model_type that is known, of which fields are left out, renamed and
changed; the number of parameters must be that of transformers, and the loss of random parameters
too where the model is small, or the config must be refused. --classes: each model_type with experts
at its class defaults, on the meta device. Exit status 1: one is read as another model."""
import argparse
import collections
import importlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import types

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, CONFIG_MAPPING, PreTrainedModel, logging
from transformers_models import FLOAT32_ROUTERS, loss_of, widen, write_tokens

logging.set_verbosity_error()
logging.disable_progress_bar()
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SMALL = 300_000  # parameters of a model whose loss is compared

# field -> values; the first is that of most configs.
SIZES = {
    "vocab_size": [32], "hidden_size": [16, 32], "num_hidden_layers": [2, 3, 4],
    "num_attention_heads": [4, 2], "num_key_value_heads": [2, 4, 1], "head_dim": [8, 4],
    "intermediate_size": [12, 20], "moe_intermediate_size": [8, 6], "max_position_embeddings": [64],
    "num_local_experts": [4, 8], "num_experts": [4, 8], "n_routed_experts": [4, 8],
    "moe_num_experts": [4, 8], "num_experts_per_tok": [2, 1, 3], "moe_topk": [2, 1], "moe_k": [2, 1],
    "n_shared_experts": [1, 2], "num_shared_experts": [1, 2], "moe_num_shared_experts": [1, 2],
    "shared_expert_intermediate_size": [10], "shared_intermediate_size": [0, 6], "n_group": [1, 2],
    "topk_group": [1], "kv_lora_rank": [8], "q_lora_rank": [12, None], "qk_nope_head_dim": [6],
    "qk_rope_head_dim": [4], "v_head_dim": [8, 5], "sliding_window": [8, 5, None],
    "first_k_dense_replace": [1, 0, 2], "num_dense_layers": [1, 0], "moe_layer_start_index": [1, 0],
    "moe_layer_interval": [1, 2], "decoder_sparse_step": [1, 2], "mlp_only_layers": [[], [0], [1]],
    "dense_intermediate_size": [12, 20], "max_window_layers": [62, 1], "global_attn_every_n_layers": [4, 2],
    "rope_parameters": [{"rope_type": "default", "rope_theta": 1e4}, {"rope_type": "default",
        "rope_theta": 500.0}, {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
        {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0,
         "original_max_position_embeddings": 16}],
}
# What is not in the class, or another value than the class's: read by other code, or nonsense.
OTHERS = {"rope_theta": [1e4, 777.0], "moe_layer_freq": [1, 2], "scoring_func": ["sigmoid", "softmax"],
          "topk_method": ["noaux_tc", "greedy"], "norm_topk_prob": [True, False], "use_qk_norm":
          [True, False], "attention_bias": [True, False], "partial_rotary_factor": [1.0, 0.5],
          "head_dim": [8, 4], "rope_scaling": [None, {"rope_type": "linear", "factor": 2.0}],
          "qk_layernorm": [True], "use_sliding_window": [True, False], "rotary_dim": [4],
          "n_shared_experts": [1], "num_experts": [4], "moe_router_logit_softcapping": [3.0]}
FLOATS = [0.5, 1.0, 2.0, 2.5]


def known_types():
    text = open(os.path.join(ROOT, "scripts/moe/models/types.lua"), encoding="utf-8").read()
    return re.findall(r"^  (\w+) = ", text.split("local TYPES")[1], re.M)


def fields_of(name):
    kind = CONFIG_MAPPING[name]
    base = set(CONFIG_MAPPING["llama"]().to_dict()) - set(SIZES) - {"tie_word_embeddings",
                                                                    "attention_bias", "mlp_bias"}
    return {k: v for k, v in kind().to_dict().items() if k not in base and "token" not in k
            or k in SIZES or k == "rms_norm_eps"}


def changed(rng, key, value, layers):
    if key in SIZES:
        return rng.choice(SIZES[key])
    if key == "layer_types" and value:
        return [rng.choice(sorted(set(value))) for _ in range(layers)]
    if key == "mlp_layer_types":
        return [rng.choice(["dense", "sparse"]) for _ in range(layers)]
    if isinstance(value, bool):
        return not value
    if isinstance(value, float):
        return rng.choice(FLOATS)
    return value


def draw(rng, name):
    """A random config of the type: fields at tiny sizes, some changed, left out or renamed."""
    fields, config = fields_of(name), {"model_type": name, "pad_token_id": None}
    layers = rng.choice(SIZES["num_hidden_layers"])
    fields.pop("qk_head_dim", None)  # computed
    fields.pop("per_layer_config", None)
    if name == "minimax_m3_vl_text":
        fields["rotary_dim"] = 4
    if "ocr" in name:
        fields.pop("head_dim")  # computed, too
    for key, value in fields.items():
        if name == "glm4v_moe_text" and key == "rope_parameters":
            value = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5,
                     "mrope_section": [1, 0, 0]}
        elif name == "minimax_m3_vl_text" and key == "rope_parameters":
            value = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
        elif key in ("head_dim", "num_key_value_heads") and "kv_lora_rank" in fields:
            value = SIZES["num_attention_heads"][0] if key != "head_dim" else 10 if name == "mistral4" else 4
        elif key == "layer_types":
            value = value or ["full_attention"]
            value = [value[i % len(value)] for i in range(layers)]
        elif key == "mlp_layer_types":
            value = ["dense"] + ["sparse"] * (layers - 1)
        elif key in SIZES:
            own = key == "rope_parameters" and ("full_attention" in value or name == "mistral4")
            value = value if own else SIZES[key][0]
            if name == "mistral4" and own:
                value = {**value, "partial_rotary_factor": 0.4}  # qk_rope_head_dim's share
        config[key] = value
    config["num_hidden_layers"] = layers
    left = [k for k in config if k not in ("model_type", "num_hidden_layers", "vocab_size",
                                           "hidden_size")]
    for key in rng.sample(left, rng.choice([0, 0, 1, 1, 2])):
        del config[key]
    for key in rng.sample(sorted(k for k in fields if k in config), rng.choice([0, 1, 1, 2])):
        config[key] = changed(rng, key, fields[key], layers)
    names = {v: k for k, v in (CONFIG_MAPPING[name].attribute_map or {}).items()}
    for key in [k for k in names if k in config and rng.random() < 0.3]:
        config[names[key]] = config.pop(key)
    for key in rng.sample(sorted(OTHERS), rng.choice([0, 0, 0, 1, 1])):
        config.setdefault(key, rng.choice(OTHERS[key]))
    return json.loads(json.dumps(config))


def theirs(config, folder):
    """(parameters, loss or None) of transformers, and the checkpoint in `folder`; or the error."""
    try:
        given = json.loads(json.dumps(config))
        made = CONFIG_MAPPING[given.pop("model_type")](**given)
        with torch.device("meta"):
            count, whole = parameters(made)
        if count > SMALL:
            return count, None
        torch.manual_seed(7)
        if whole:
            model = AutoModelForCausalLM.from_config(made, dtype=torch.float32,
                                                     experts_implementation="eager")
        else:
            made._experts_implementation = "eager"
            model = Headed(made)
        with torch.no_grad():
            for name, p in list(model.named_parameters()) + list(model.named_buffers()):
                if "inv_freq" not in name:
                    noise = torch.randn_like(p, dtype=torch.float32)
                    p.copy_(1 + 0.2 * noise if "norm" in name and p.dim() == 1 else 0.25 * noise)
        model.save_pretrained(folder)
        os.remove(os.path.join(folder, "config.json"))
        if made.model_type not in FLOAT32_ROUTERS:
            model = widen(model.double())
        (model if whole else model.model).set_attn_implementation("eager")
        return count, loss_of(model, torch.tensor(write_tokens(folder))).item()
    except Exception as error:  # whatever transformers refuses
        return None, f"{type(error).__name__}: {error}"


def parameters(made):
    """The trained parameters on the meta device with those of a head, and whether it has its own."""
    try:
        model, whole = AutoModelForCausalLM.from_config(made), True
    except ValueError:
        model, whole = text_model(type(made))(made), False
    count = sum(p.numel() for p in model.parameters() if p.requires_grad)
    if not whole and not getattr(made, "tie_word_embeddings", False):
        count += made.vocab_size * made.hidden_size
    return count, whole


def text_model(kind):
    """The class of a text model that no AutoModel makes."""
    module = importlib.import_module(kind.__module__.replace("configuration_", "modeling_"))
    for one in vars(module).values():
        if (isinstance(one, type) and issubclass(one, PreTrainedModel) and one.config_class is kind
                and one.__name__.endswith("Model") and "PreTrained" not in one.__name__):
            return one
    raise ValueError(f"no model of {kind.__name__}")


class Headed(torch.nn.Module):
    """A text model with a head."""

    def __init__(self, made):
        super().__init__()
        self.model = text_model(type(made))(made)
        self.lm_head = torch.nn.Linear(made.hidden_size, made.vocab_size, bias=False)
        if getattr(made, "tie_word_embeddings", False):
            self.lm_head.weight = self.model.get_input_embeddings().weight

    def forward(self, input_ids):
        hidden = self.model(input_ids=input_ids).last_hidden_state
        return types.SimpleNamespace(logits=self.lm_head(hidden))

    def save_pretrained(self, folder):
        self.model.save_pretrained(folder)
        file = os.path.join(folder, "model.safetensors")
        saved = {"model." + k.removeprefix("model."): v for k, v in load_file(file).items()}
        save_file({**saved, "lm_head.weight": self.lm_head.weight.detach().clone()}, file)


RECIPE = """
local moe = require "moe"
-- The model of a config; where it needs a stand-in, with one of the part that the error names.
local function read(name, stand_in)
  local ok, m = pcall(function()
    return moe.model.from_config(name .. "/config.json", {{ stand_in = stand_in }}) {{ seq = 24,
      batch = 4 }}
  end)
  local part = not ok and tostring(m):match "stand_in = {{ ([%w_]+) = "
  if not part or (stand_in or {{}})[part] then return ok, m end
  local more = {{ [part] = {{ flops = 1e6, bytes = 1e4 }} }}
  for key, value in pairs(stand_in or {{}}) do more[key] = value end
  return read(name, more)
end
for _, name in ipairs {{ {names} }} do
  local ok, m = read(name)
  if not ok then
    print(name, "refused", (tostring(m):gsub("%s+", " ")))
  else
    local counted, n = pcall(function() return m:parameters() end)
    local loss
    if moe.read_json(name .. "/expected.json").loss then
      local trained, r = pcall(moe.train, {{ model = m, parameters = name .. "/model.safetensors",
        tokens = name .. "/tokens.json", precision = "f64", ranks = 1, steps = 1 }})
      loss = trained and r.losses[1] or (tostring(r):gsub("%s+", " "))
    end
    print(name, counted and ("%.0f"):format(n) or "error " .. tostring(n), loss or "")
  end
end
"""


def ours(binary, folder, names):
    """name -> (parameters or None, loss, or the refusal)."""
    with open(os.path.join(folder, "recipe.lua"), "w", encoding="utf-8") as f:
        f.write(RECIPE.format(names=", ".join(f'"{n}"' for n in names)))
    run = subprocess.run([binary, "run", os.path.join(folder, "recipe.lua"), "--trust"],
                         capture_output=True, text=True, check=False)
    out = {}
    for line in run.stdout.splitlines():
        parts = line.split("\t")
        if len(parts) == 3:
            out[parts[0]] = (int(parts[1]), parts[2]) if parts[1].isdigit() else (None, parts[1] + parts[2])
    for name in names:
        out.setdefault(name, (None, "no answer: " + run.stderr[-300:]))
    return out


def compare(binary, configs, show):
    """configs: name -> config. Returns how many are equal, refused, and read as something else."""
    counts = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        right = {}
        for name, config in configs.items():
            one = os.path.join(folder, name)
            os.makedirs(one)
            right[name] = theirs(config, one)
            with open(os.path.join(one, "config.json"), "w", encoding="utf-8") as f:
                json.dump(config, f)
            with open(os.path.join(one, "expected.json"), "w", encoding="utf-8") as f:
                json.dump({"loss": right[name][1]} if isinstance(right[name][1], float) else {}, f)
        mine = ours(binary, folder, list(configs))
    for name, config in configs.items():
        (count, loss), (n, said) = right[name], mine[name]
        if count is None:
            verdict = "both refuse" if n is None else "only theirs refuses"
        elif n is None:
            verdict = "refused"
        elif n != count:
            verdict = "DIFFERENT parameters"
        elif "which is simulated only" in said:
            verdict = "equal parameters"
        elif isinstance(loss, float) and not (said[:1].isdigit() and abs(float(said) - loss) < 3e-6):
            verdict = "DIFFERENT loss" if said[:1].isdigit() else "checkpoint refused"
        else:
            verdict = "equal" if isinstance(loss, float) else "equal parameters"
        counts[verdict] += 1
        if show != "faults" or verdict not in ("equal", "equal parameters", "both refuse", "refused"):
            print(f"{name:28} {verdict}: theirs {count} {str(loss)[:150]} ours {n} {said[:200]}",
                  flush=True)
            if show != "classes":
                print("   " + json.dumps(config))
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--binary", default="build/release/moebench")
    parser.add_argument("--random", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--types", default="", help="comma-separated; default: all that are known")
    parser.add_argument("--classes", action="store_true")
    parser.add_argument("--show", default="faults", choices=["faults", "all"])
    args = parser.parse_args()
    binary, rng = os.path.abspath(args.binary), random.Random(args.seed)
    known = [t for t in known_types() if t in CONFIG_MAPPING]
    if args.classes:
        names = args.types.split(",") if args.types else known
        configs = {n: json.loads(CONFIG_MAPPING[n]().to_json_string(use_diff=False)) for n in names}
        for config in configs.values():
            config.pop("time_step_limit", None)  # infinite, which its own class does not read back
        counts = compare(binary, configs, "classes")
    else:
        names = args.types.split(",") if args.types else known
        counts = collections.Counter()
        for first in range(0, args.random, 50):
            part = {f"c{i}": draw(rng, names[i % len(names)])
                    for i in range(first, min(first + 50, args.random))}
            counts += compare(binary, part, args.show)
    print(dict(counts))
    sys.exit(any(k.startswith("DIFF") for k in counts))


if __name__ == "__main__":
    main()
