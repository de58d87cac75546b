#!/usr/bin/env python3
"""step_tables_test.py ROOT: import_gpu_steps.py makes of rows that take 1.5 times their time by peak
rates tables whose cells all do, and takes no row of other kinds. Status 77: without NumPy or SciPy."""
import json
import math
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(sys.argv[1]) / "scripts"))
sys.dont_write_bytecode = True
try:
    import import_op_times
    import import_gpu_steps
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

FLOPS, MEMORY = 989e12, 4.8e12


def peak_ns(op, at):
    if op.startswith("attention"):
        b, s, h, kv, d = at
        flops, moved, times = 2 * b * h * s * s * d, 4 * b * s * d * (h + kv), 1
        times = 2.5 if op == "attention_dx" else 1
    else:
        e, m, n, k = at[:4] if op.startswith("grouped") else (1, *at[:3])
        parts, times = [n * k, m * n, m * k], 1
        if op.endswith("_dw"):  # the gradient is [n,k] of experts, [m,n] of a GEMM
            parts[0 if e > 1 else 1] *= at[-1]  # twice its bytes, of elements of two
        flops, moved = 2 * e * m * n * k, 2 * e * sum(parts)
    return times * (1e9 * max(flops / FLOPS, moved / MEMORY) + 4e3)


def row(op, names, at, times=1.5, **more):
    return dict(op=op, sizes=dict(zip(names.split(), at)), median_ns=times * peak_ns(op, at), **more)


rows = [dict(op="gemm", sizes=dict(m=1, n=1, k=1), failed="no"),
        dict(op="gemm_beside", sizes=dict(m=2, n=2, k=2), median_ns=1)]
for m, n, k in (4096, 768, 2048), (1000, 4096, 4096), (16384, 3072, 1024), (512, 900, 7168):
    rows += [row(op, "m n k", (m, n, k), times) for op in ("gemm", "gemm_dx") for times in (3, 1.5)]
    rows.append(row("gemm_dw", "m n k grad_bytes", (m, n, k, 2 if m == 512 else 4)))
    rows += [row("grouped_gemm", "experts rows n k", (8, m, n, k)),
             row("grouped_gemm_dw", "experts rows n k grad_bytes", (8, m, n, k, 4))]
rows += [row("attention_dx", "batch seq heads kv_heads head_dim", at)
         for at in ((2, 4096, 32, 8, 128), (24, 512, 12, 12, 64))]
with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    alone = import_op_times.OUT / "h200.times"
    (folder / "h200.times").write_bytes(alone.read_bytes())
    import_op_times.OUT = folder
    (folder / "rows").write_text(json.dumps(dict(torch="2", device="a", date="b", rows=rows)))
    sys.argv = ["", "h200", str(folder / "rows"), "--without", "grouped_gemm"]
    import_gpu_steps.main()
    content = (folder / "h200_step.times").read_bytes()
end = content.index(b"\0")
cells = memoryview(content[end + 1 + (end + 1) % 2:]).cast("H")
tables = json.loads(content[20:end])["tables"]
assert [t["op"] for t in tables] == ["gemm", "gemm_dx", "gemm_dw", "grouped_gemm_dw",
                                     "attention_dx"], tables
begin = 0
for table in tables:
    axes = [axis["values"] for axis in table["axes"]]
    count, known = math.prod(map(len, axes)), 0
    for i in range(count):
        at, rest = [], i
        for axis in reversed(axes):
            at, rest = [axis[rest % len(axis)], *at], rest // len(axis)
        if cells[begin + i] != 0xFFFF:
            known += 1
            ns = math.exp(cells[begin + i] / 2048)
            assert abs(ns / peak_ns(table["op"], at) / 1.5 - 1) < 1e-3, (table["op"], at, ns)
    assert known == table["rows"] > 8 and table["in_step"], table
    begin += count
assert begin == len(cells)
