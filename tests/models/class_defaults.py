#!/usr/bin/env python3
"""Writes scripts/moe/models/class_defaults.json: what the configuration classes of transformers say
of each model_type of scripts/moe/models/types.lua, which moe/models/configs.lua reads.

    python3 -m venv v && v/bin/pip install torch transformers==5.24.0
    v/bin/python tests/models/class_defaults.py > scripts/moe/models/class_defaults.json
"""
import dataclasses
import json
import re
import sys
from pathlib import Path

import transformers
from transformers import CONFIG_MAPPING, PreTrainedConfig

ROOT = Path(__file__).resolve().parents[2]
TYPES = ROOT / "scripts/moe/models/types.lua"
# Fields that change neither parameters nor logits nor the loss of a training step.
HARMLESS = """
    cla_share_factor class_num dense_list experts_per_token initial_context_length max_model_len
    mlp_intermediate_size num_media_embeds org_vocab_size pool_type shared_moe_mode
    _attn_implementation _name_or_path add_cross_attention architectures attn_implementation
    auto_map aux_loss_alpha bad_words_ids begin_suppress_tokens bos_token_id
    chunk_size_feed_forward cross_attention_hidden_size decoder_start_token_id diversity_penalty
    do_sample dtype early_stopping enable_moe_fp32_combine encoder_no_repeat_ngram_size
    eod_token_id eos_token_id ep_size exponential_decay_length_penalty finetuning_task
    forced_bos_token_id forced_eos_token_id id2label im_end_id im_newline_id im_start_id
    image_token_id initializer_range is_decoder is_encoder_decoder label2id length_penalty
    max_length min_length model_type no_repeat_ngram_size num_beam_groups num_beams
    num_mtp_layers num_nextn_predict_layers num_return_sequences output_attentions
    output_hidden_states output_scores pad_id pad_token_id prefix pretraining_tp problem_type
    pruned_heads quantization_config remove_invalid_values repetition_penalty return_dict
    return_dict_in_generate router_aux_loss_coef sep_token_id seq_aux suppress_tokens
    task_specific_params temperature text_len tie_encoder_decoder tf_legacy_loss tokenizer_class
    time_step_limit top_k top_p torch_dtype torchscript transformers_version typical_p use_bfloat16 use_cache
"""
LAYERS = (24, 35, 100)  # a list of one entry per layer is a pattern if it is one for all of these


def pattern(kind, key):
    """The shortest list that, repeated, is the field's value for every number of layers, or None."""
    lists = [getattr(kind(num_hidden_layers=n), key) for n in LAYERS]
    for period in range(1, 9):
        if all(x == lists[0][i % period] for one in lists for i, x in enumerate(one)):
            return lists[0][:period]
    return None


def row(kind, harmless):
    """Field -> class default. What is computed from other fields, and is no pattern, is null."""
    made, out, names = kind(), {}, kind.attribute_map or {}
    base = {f.name for f in dataclasses.fields(PreTrainedConfig)} - {"tie_word_embeddings"}
    for f in dataclasses.fields(kind):
        if f.name in base or f.name in harmless or f.name.startswith("base_model_"):
            continue
        value = f.default_factory() if f.default is dataclasses.MISSING else f.default
        if value is None and isinstance(getattr(made, f.name, None), list):
            value = pattern(kind, f.name)
        if isinstance(value, (type(None), bool, int, float, str, list, tuple, dict)):
            out[names.get(f.name, f.name)] = value
    out["rope_parameters"] = getattr(made, "rope_parameters", None)
    for name in set(made.to_dict()) - set(out) - base - harmless:  # computed, whatever is given
        out[name] = None
    return out


def main():
    if transformers.__version__ != "5.24.0":
        sys.exit(f"needs transformers 5.24.0, not {transformers.__version__}")
    names = re.findall(r"^  (\w+) = ", TYPES.read_text().split("local TYPES")[1], re.M)
    harmless = set(HARMLESS.split())
    rows = {"HARMLESS": sorted(harmless)}
    for name in names:
        if name in CONFIG_MAPPING:
            kind = CONFIG_MAPPING[name]
            rows[name] = {"fields": row(kind, harmless), "names": kind.attribute_map or {}}
    print("{" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in rows.items()) + "}")


if __name__ == "__main__":
    main()
