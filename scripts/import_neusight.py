#!/usr/bin/env python3
"""Writes scripts/moe/gpus/v100.times, float32 products measured on a V100, from public rows.

  python3 -m venv ENV && ENV/bin/pip install numpy scipy
  ENV/bin/python scripts/import_neusight.py FOLDER

FOLDER is scripts/asplos/data/dataset/train/collect/.../V100-PCIE-32GB of NeuSight (ASPLOS 2025, MIT,
Copyright (c) 2025 Georgia Institute of Technology and Microsoft Corporation): one CSV per op of
PyTorch 2.1 with CUDA 12.1, whose kernels are volta_sgemm, without tensor cores. The sizes are
scattered. A cell of the file, at powers of two, is what a plane in the logarithms of the sizes,
fitted to the 16 nearest rows, says of the ratio to the time by peak rates. `spread` in the header is
the 90th percentile of the error of rows that were left out. Printed are also the shares of the memory
rate that elementwise kernels reach, which scripts/moe/clusters/p3dn.lua quotes.
"""

import csv
import gzip
import json
import pathlib
import sys

import numpy as np
from scipy.spatial import cKDTree

OUT = pathlib.Path(__file__).resolve().parent / "moe" / "gpus" / "v100.times"
STEPS, MISSING = 2048, 0xFFFF  # OpGrid::kSteps, OpGrid::kMissing
# NVIDIA's data sheet of V100, PCIe: flops and bytes per second; PeakRates::shortest_s.
FLOPS, MEMORY, SHORTEST_S = 14e12, 900e9, 4e-6
FLOOR_MS = 0.07  # the harness of the rows does not time shorter ones
NEAREST, FAR = 16, 1.5  # rows of a plane; octaves to the nearest row from which a cell is missing
AXES = {"m": 2.0 ** np.arange(5, 14), "n": 2.0 ** np.arange(5, 17), "k": 2.0 ** np.arange(5, 17)}


def rows_of(folder, op):
    path = next(pathlib.Path(folder).glob(op + ".csv*"))
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt") as file:
        return list(csv.DictReader(file))


def peak_s(m, n, k):
    return np.maximum(2 * m * n * k / FLOPS, 4 * (m * n + m * k + n * k) / MEMORY) + SHORTEST_S


def plane(sizes, ratios, at):
    """The logarithms of the ratio at the points `at`, and the distance to the nearest row."""
    distance, near = cKDTree(sizes).query(at, k=NEAREST)
    out = np.empty(len(at))
    for i, (d, rows) in enumerate(zip(distance, near)):
        weight = np.exp(-(d / (0.6 * d[-1])) ** 2 / 2)[:, None]
        terms = np.c_[np.ones(NEAREST), sizes[rows] - at[i]]
        # Slopes are held back where the rows do not tell them.
        held = np.diag([0, 0.3, 0.3, 0.3])
        out[i] = np.linalg.lstsq(np.r_[terms * weight, held],
                                 np.r_[ratios[rows] * weight[:, 0], np.zeros(4)], rcond=None)[0][0]
    return out, distance[:, 0]


def left_out(sizes, ratios):
    """The relative errors of rows that the planes have not seen, a fifth of them at a time."""
    part = np.random.default_rng(0).integers(0, 5, len(sizes))
    return np.concatenate([np.abs(np.exp(
        plane(sizes[part != p], ratios[part != p], sizes[part == p])[0] - ratios[part == p]) - 1)
        for p in range(5)])


def products(folder):
    rows = rows_of(folder, "linear")
    shape = np.array([[float(r[x]) for x in "MNK"] for r in rows])
    ms = np.array([float(r["Latency"]) for r in rows])
    kept = ms > FLOOR_MS
    sizes = np.log2(shape[kept])
    ratios = np.log(ms[kept] * 1e-3 / peak_s(*shape[kept].T))
    error = left_out(sizes, ratios)
    points = np.stack(np.meshgrid(*AXES.values(), indexing="ij"), -1).reshape(-1, 3)
    ratio, distance = plane(sizes, ratios, np.log2(points))
    ns = np.where(distance > FAR, np.nan, 1e9 * np.exp(ratio) * peak_s(*points.T))
    print(f"gemm: {kept.sum()} of {len(rows)} rows, errors of rows left out: median "
          f"{np.median(error):.3f}, 90th percentile {np.quantile(error, 0.9):.3f}; "
          f"{np.isfinite(ns).sum()} of {len(ns)} cells")
    return ns, {"shorter than the harness times": int((~kept).sum())}, np.quantile(error, 0.9)


def print_memory_shares(folder):
    """Of rows of 0.1 GB and more; each reads its operands and writes its result once."""
    for op, passes in (("add", 3), ("mul", 3), ("gelu", 2), ("relu", 2), ("softmax", 2), ("ln", 2)):
        bytes_ms = np.array([[4 * passes * float(r["B"]) * float(r["H"]), float(r["Latency"])]
                             for r in rows_of(folder, op)])
        large = bytes_ms[bytes_ms[:, 0] > 1e8]
        share = large[:, 0] / large[:, 1] * 1e3 / MEMORY
        print(f"{op}: {np.quantile(share, 0.1):.2f} {np.median(share):.2f} "
              f"{np.quantile(share, 0.9):.2f} of the memory rate")


def main(folder):
    ns, dropped, spread = products(folder)
    header = {"gpu": "V100 PCIe 32GB", "source": "NeuSight (ASPLOS 2025)",
              "licence": "MIT, Copyright (c) 2025 Georgia Institute of Technology and Microsoft "
                         "Corporation",
              "peak_memory_bytes_per_s": MEMORY, "peak_link_bytes_per_s": 16e9,  # PCIe 3.0 x16
              "tables": [{"op": "gemm", "dtype": "f32", "rows": int(np.isfinite(ns).sum()),
                          "framework": "pytorch", "version": "2.1", "kernel": "volta_sgemm",
                          "dropped": dropped, "spread": float(spread), "peak_flops_per_s": FLOPS,
                          "element_bytes": 4,
                          "axes": [{"name": n, "values": [float(v) for v in a], "weight": 1}
                                   for n, a in AXES.items()]}]}
    cells = np.full(len(ns), MISSING, dtype="<u2")
    known = np.isfinite(ns)
    cells[known] = np.round(STEPS * np.log(ns[known]))
    text = b"moebench op times 1\n" + json.dumps(header, separators=(",", ":")).encode() + b"\0"
    text += b"\0" * (len(text) % 2)
    OUT.write_bytes(text + cells.tobytes())
    print(f"v100: {OUT.stat().st_size} bytes")
    print_memory_shares(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
