#!/usr/bin/env python3
"""Writes a checkpoint of the format that begins with MOEBENCH in the format of today.

  convert_checkpoint.py OLD LIKE NEW
OLD has no shapes: they come from LIKE, a checkpoint of today of the same model, optimizer and
placement, after any step. It takes half a minute for 100 MB.
"""
import json
import struct
import sys


def fnv1a(data):
    value = 14695981039346656037
    for byte in data:
        value = (value ^ byte) * 1099511628211 & 0xFFFFFFFFFFFFFFFF
    return struct.pack("<Q", value)


def content_of(old):
    """Returns the next step and the bytes of each tensor."""
    magic, version, each, step, length = struct.unpack_from("<8sIIqQ", old)
    if magic != b"MOEBENCH" or version not in (1, 2) or fnv1a(old[:-8]) != old[-8:]:
        sys.exit("OLD is damaged, or no checkpoint of version 1 or 2")
    tensors, at = {}, 32 + length
    for line in old[32:at].decode().splitlines():
        kind, *rest = line.split(" ")
        if kind not in ("tensor", "placement"):
            continue  # a field of version 1
        end = at + int(rest[1]) * (each if kind == "tensor" else 4)
        tensors[rest[0] if kind == "tensor" else f"placement.{rest[0]}"] = old[at:end]
        at = end
    return step, tensors


if len(sys.argv) != 4:
    sys.exit(__doc__)
step, tensors = content_of(open(sys.argv[1], "rb").read())
like = open(sys.argv[2], "rb")
header = json.loads(like.read(struct.unpack("<Q", like.read(8))[0]))
header["__metadata__"]["next_step"] = str(step)
ends = {name: header[name]["data_offsets"] for name in header if not name.startswith("_")}
for name in sorted(ends.keys() | tensors.keys()):
    begin, end = ends.get(name, (0, -1))
    if end - begin != len(tensors.get(name, b"")):
        sys.exit(f"{name} is in OLD or LIKE only, or has other sizes in them")
text = json.dumps(header, separators=(",", ":")).encode()
text += b" " * (-len(text) % 8)
data = struct.pack("<Q", len(text)) + text + b"".join(tensors[name] for name in ends)
open(sys.argv[3], "wb").write(data + fnv1a(data))
