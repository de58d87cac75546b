#!/usr/bin/env python3
"""token_imbalance_script.py ROOT: scripts/token_imbalance.py on files that PyTorch wrote
(tests/data/token_imbalance), on its own, and on damaged ones."""
import hashlib
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(sys.argv[1])
DATA = ROOT / "tests" / "data" / "token_imbalance"
CHOICES = [[[0, 1], [2, 3], [1, 3]], [[0, 2], [1, 2], [0, 3]]]  # by rank


def run(*arguments):
    done = subprocess.run([sys.executable, ROOT / "scripts" / "token_imbalance.py", *arguments],
                          stderr=subprocess.PIPE, text=True)
    return done.stderr if done.returncode else None


def refused(message, *arguments):
    text = run("import", folder / "x", *arguments)
    assert text and message in text and "Traceback" not in text, (message, text)


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    assert run("import", folder / "a", DATA / "manifest.json") is None
    files = [folder / f"a_rank{rank}.jsonl" for rank in range(2)]
    for rank, file in enumerate(files):
        assert json.loads(file.read_text()) == {
            "step": 0, "stage": "pre_dispatch", "block": "decoder", "layer": 1, "rank": rank,
            "num_tokens": 3, "topk": 2, "top_indices": CHOICES[rank]}
    assert run("export", folder / "b", *files) is None
    assert run("import", folder / "c", folder / "b" / "step0_layer1" / "manifest.json") is None
    for rank, file in enumerate(files):
        assert (folder / f"c_rank{rank}.jsonl").read_text() == file.read_text()

    bad = shutil.copytree(DATA, folder / "bad") / "manifest.json"
    good = json.loads(bad.read_text())
    for field, value, message in (
            ("schema_version", 2, "'schema_version' is 2; allowed: 1 to 1"),
            ("num_experts", 3, "token 1 has the experts [2, 3]; allowed: 0 to 2"),
            ("world_size", 1, "token 3 is of rank 1; world_size is 1"),
            ("topk", 1, "expected 6 little-endian elements of int64"),
            ("topk", "2", "'topk' is 2; allowed: 1 to 4"),
            ("tensors", 7, "is no JSON object with an object 'tensors'"),
            ("tensors", {"expert_ids": 7}, "the tensor 'expert_ids' has no field 'file'")):
        bad.write_text(json.dumps({**good, field: value}))
        refused(message, bad)
    bad.write_text("{")
    refused("is not JSON", bad)
    bad.write_text(json.dumps(good))
    refused("step 0, layer 1 is there twice", DATA / "manifest.json", bad)
    archive = folder / "bad" / "tensors" / "expert_ids.pt"
    whole = archive.read_bytes()
    archive.write_bytes(whole[:-1])
    refused("the checksum of tensors/expert_ids.pt is not the one that it states", bad)
    for content in (whole[:200], b"", whole.replace(b"data/0", b"data/1")):
        archive.write_bytes(content)
        tensors = {**good["tensors"], "expert_ids": {
            **good["tensors"]["expert_ids"], "sha256": hashlib.sha256(content).hexdigest()}}
        bad.write_text(json.dumps({**good, "tensors": tensors}))
        refused("is no archive of torch.save, or is damaged", bad)
