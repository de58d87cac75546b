#!/usr/bin/env python3
"""Writes scripts/moe/models/class_defaults.json: what the configuration classes of transformers say of
each model_type of scripts/moe/models/types.lua, which moe/models/configs.lua reads.

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
HARMLESS = re.compile(r"local HARMLESS = \[\[(.*?)\]\]", re.S)
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
    out["rope_parameters"] = made.rope_parameters
    for name in set(made.to_dict()) - set(out) - base - harmless:  # computed, whatever is given
        out[name] = None
    return out


def main():
    if transformers.__version__ != "5.24.0":
        sys.exit(f"needs transformers 5.24.0, not {transformers.__version__}")
    names = re.findall(r"^  (\w+) = ", TYPES.read_text().split("local TYPES")[1], re.M)
    harmless = set(HARMLESS.search(TYPES.read_text())[1].split())
    rows = {}
    for name in names:
        if name in CONFIG_MAPPING:
            kind = CONFIG_MAPPING[name]
            rows[name] = {"fields": row(kind, harmless), "names": kind.attribute_map or {}}
    print("{" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in rows.items()) + "}")


if __name__ == "__main__":
    main()
