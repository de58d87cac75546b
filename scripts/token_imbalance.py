#!/usr/bin/env python3
"""Converts traces of the token-imbalance benchmark to files of Megatron-LM's RouterTracer, and back.

  token_imbalance.py import PREFIX MANIFEST...
  token_imbalance.py export FOLDER FILE...

The benchmark is that proposed for Megatron-LM (trace v1 of pull request 7488,
benchmarks/moe/token_imbalance/trace.py): a folder per step and layer with manifest.json and tensors
of torch.save, of which expert_ids [tokens, topk] and source_rank [tokens] are read. `import` writes
PREFIX_rank0.jsonl, .. for moe.trace.import { format = "megatron", experts = num_experts }; lost are
gates, seed and workload. `export` reads a file per rank, as moe.trace.export { format = "megatron" }
writes them, and writes FOLDER/step0_layer1, .. of each step and layer. The number of experts is one
more than the highest that occurs. The gates of a token are equal, since a trace has none;
hidden_size and seed are 0.
"""
import array
import hashlib
import json
import pathlib
import struct
import sys
import zipfile

MOST = 1 << 28  # tokens, and choices


def elements(where, manifest, name, dtype, code, count):
    """The elements of a tensor, checked against the manifest's checksum, type and size."""
    tensor = manifest.get("tensors", {}).get(name)
    for field in ("file", "sha256", "dtype"):
        if not isinstance(tensor, dict) or not isinstance(tensor.get(field), str):
            sys.exit(f"{where}: the tensor '{name}' has no field '{field}'")
    file = where.parent / tensor["file"]
    if hashlib.sha256(file.read_bytes()).hexdigest() != tensor["sha256"]:
        sys.exit(f"{where}: the checksum of {tensor['file']} is not the one that it states")
    try:
        with zipfile.ZipFile(file) as archive:
            parts = {entry.split("/", 1)[-1]: entry for entry in archive.namelist()}
            order = archive.read(parts["byteorder"]) if "byteorder" in parts else b"little"
            content = archive.read(parts["data/0"])
    except (zipfile.BadZipFile, KeyError) as e:
        sys.exit(f"{file}: is no archive of torch.save, or is damaged: {e}")
    values = array.array(code)
    if order != b"little" or tensor["dtype"] != dtype or len(content) != count * values.itemsize:
        sys.exit(f"{file}: {len(content)} bytes of {tensor['dtype']}, {order.decode()} endian; "
                 f"expected {count} little-endian elements of {dtype}")
    values.frombytes(content)
    if sys.byteorder != "little":
        values.byteswap()
    return values


def sizes_of(where, manifest):
    """schema_version, logical_num_tokens, num_experts, topk, world_size, step_id, layer."""
    most = {"schema_version": (1, 1), "logical_num_tokens": (1, MOST), "num_experts": (1, 65534),
            "topk": (1, manifest.get("num_experts")), "world_size": (1, 1 << 20),
            "step_id": (0, 1 << 53), "logical_layer_id": (0, 1000000)}
    for field, (least, highest) in most.items():
        value = manifest.get(field)
        if type(value) is not int or not least <= value <= highest:
            sys.exit(f"{where}: field '{field}' is {value}; allowed: {least} to {highest}")
    return [manifest[field] for field in most]


def import_trace(prefix, manifests):
    seen, first, lines = set(), None, {}
    for where in map(pathlib.Path, manifests):
        try:
            manifest = json.loads(where.read_bytes())
        except ValueError as e:
            sys.exit(f"{where}: is not JSON: {e}")
        if not isinstance(manifest, dict) or not isinstance(manifest.get("tensors", {}), dict):
            sys.exit(f"{where}: is no JSON object with an object 'tensors'")
        _, tokens, experts, k, ranks, step, layer = sizes_of(where, manifest)
        first = first or (experts, k, ranks)
        if (experts, k, ranks) != first:
            sys.exit(f"{where}: has {experts} experts, topk {k} and {ranks} ranks, but "
                     f"{manifests[0]} has {first[0]}, {first[1]} and {first[2]}")
        if (step, layer) in seen:
            sys.exit(f"{where}: step {step}, layer {layer} is there twice")
        seen.add((step, layer))
        ids = elements(where, manifest, "expert_ids", "int64", "q", tokens * k)
        rows = {rank: [] for rank in range(ranks)}
        for t, rank in enumerate(elements(where, manifest, "source_rank", "int32", "i", tokens)):
            chosen = ids[t * k:(t + 1) * k].tolist()
            if rank not in rows:
                sys.exit(f"{where}: token {t} is of rank {rank}; world_size is {ranks}")
            if min(chosen) < 0 or max(chosen) >= experts:
                sys.exit(f"{where}: token {t} has the experts {chosen}; allowed: 0 to {experts - 1}")
            rows[rank].append(chosen)
        for rank, chosen in rows.items():
            lines.setdefault(rank, []).append(json.dumps(
                {"step": step, "stage": "pre_dispatch", "block": "decoder", "layer": layer,
                 "rank": rank, "num_tokens": len(chosen), "topk": k, "top_indices": chosen}))
    for rank, text in lines.items():
        pathlib.Path(f"{prefix}_rank{rank}.jsonl").write_text("\n".join(text) + "\n")


def pickle_of(storage, shape):
    """Pickle (protocol 2) of torch._utils._rebuild_tensor_v2(storage, 0, shape, strides, False,
    OrderedDict()), where the storage is the persistent id ("storage", class, "0", "cpu", size)."""
    def text(word):
        return b"X" + struct.pack("<I", len(word)) + word.encode()

    def number(value):
        return b"J" + struct.pack("<i", value)

    strides, size = [], 1
    for extent in reversed(shape):
        strides.insert(0, size)
        size *= extent
    return (b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage")
            + f"ctorch\n{storage}\n".encode() + text("0") + text("cpu") + number(size) + b"tQ"
            + number(0) + b"(" + b"".join(map(number, shape)) + b"t("
            + b"".join(map(number, strides)) + b"t\x89ccollections\nOrderedDict\n)RtR.")


TYPES = {"q": ("int64", "LongStorage"), "i": ("int32", "IntStorage"),
         "f": ("float32", "FloatStorage")}


def write_tensor(folder, name, code, shape, values):
    """Writes tensors/name.pt as torch.save does; returns the manifest's entry of it."""
    dtype, storage = TYPES[code]
    file = folder / "tensors" / f"{name}.pt"
    file.parent.mkdir(parents=True, exist_ok=True)
    content = array.array(code, values)
    if sys.byteorder != "little":
        content.byteswap()
    with zipfile.ZipFile(file, "w") as archive:
        for entry, part in (("data.pkl", pickle_of(storage, shape)), ("byteorder", b"little"),
                            ("data/0", content.tobytes()), ("version", b"3\n")):
            archive.writestr(f"{name}/{entry}", part)
    return {"file": f"tensors/{name}.pt", "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
            "shape": shape, "dtype": dtype}


def export_trace(folder, files):
    records = {}  # (step, layer) -> records by rank
    for file in files:
        for line in pathlib.Path(file).read_text().splitlines():
            record = json.loads(line)
            records.setdefault((record["step"], record["layer"]), []).append(record)
    experts = 1 + max(max(row, default=0) for parts in records.values() for record in parts
                      for row in record["top_indices"])
    for (step, layer), parts in records.items():
        parts.sort(key=lambda record: record["rank"])
        ids = [e for record in parts for row in record["top_indices"] for e in row]
        ranks = [record["rank"] for record in parts for _ in record["top_indices"]]
        k, to = parts[0]["topk"], pathlib.Path(folder) / f"step{step}_layer{layer}"
        if not ranks:
            sys.exit(f"no token has choices in step {step}, layer {layer}")
        tensors = {"token_ids": write_tensor(to, "token_ids", "q", [len(ranks), k], ids),
                   "gates": write_tensor(to, "gates", "f", [len(ranks), k], [1 / k] * len(ids)),
                   "source_rank": write_tensor(to, "source_rank", "i", [len(ranks)], ranks),
                   "expert_ids": write_tensor(to, "expert_ids", "q", [len(ranks), k], ids)}
        checksum = hashlib.sha256(array.array("q", ids).tobytes()).hexdigest()[:16]
        (to / "manifest.json").write_text(json.dumps(
            {"schema_version": 1, "producer_commit": "moebench", "seed": 0,
             "logical_layer_id": layer, "step_id": step, "microbatch_id": 0,
             "logical_num_tokens": len(ranks), "num_experts": experts, "topk": k,
             "hidden_size": 0, "world_size": len(files),
             "original_partition": "rank-major, contiguous per source rank",
             "workload_id": "recorded", "workload_checksum": checksum, "tensors": tensors,
             "extra": {}}, indent=2) + "\n")


if len(sys.argv) < 4 or sys.argv[1] not in ("import", "export"):
    sys.exit(__doc__)
(import_trace if sys.argv[1] == "import" else export_trace)(sys.argv[2], sys.argv[3:])
