#!/usr/bin/env python3
"""Writes scripts/moe/gpus/v100.times, float32 products measured on a V100, from public rows.

  python3 -m venv ENV && ENV/bin/pip install pandas scipy
  ENV/bin/python scripts/import_neusight.py FOLDER

FOLDER is scripts/asplos/data/dataset/train/collect/.../V100-PCIE-32GB of NeuSight (ASPLOS 2025, MIT,
Copyright (c) 2025 Georgia Institute of Technology and Microsoft Corporation): one CSV per op of
PyTorch 2.1 with CUDA 12.1, whose kernels are volta_sgemm, without tensor cores. The sizes are
scattered. A cell of the file, at powers of two, is what a plane in the logarithms of the sizes,
fitted to the 16 nearest rows, says of the ratio to the time by peak rates. `spread` in the header is
the 90th percentile of the error of rows that were left out. Printed are also the shares of the memory
rate that elementwise kernels reach, which scripts/moe/clusters/p3dn.lua quotes.
"""

import pathlib
import sys

import numpy as np
import pandas
from scipy.spatial import cKDTree

from import_op_times import save, table_of

# NVIDIA's data sheet of V100, PCIe: flops and bytes per second; PeakRates::shortest_s.
FLOPS, MEMORY, SHORTEST_S = 14e12, 900e9, 4e-6
FLOOR_MS = 0.07  # the harness of the rows does not time shorter ones
NEAREST, FAR = 16, 1.5  # rows of a plane; octaves to the nearest row from which a cell is missing
AXES = [2.0 ** np.arange(5, 14), 2.0 ** np.arange(5, 17), 2.0 ** np.arange(5, 17)]  # m, n, k


def rows_of(folder, op):
    return pandas.read_csv(next(pathlib.Path(folder).glob(op + ".csv*")))


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
    shape, ms = rows[["M", "N", "K"]].to_numpy(float), rows["Latency"].to_numpy(float)
    kept = ms > FLOOR_MS
    sizes = np.log2(shape[kept])
    ratios = np.log(ms[kept] * 1e-3 / peak_s(*shape[kept].T))
    error = left_out(sizes, ratios)
    points = np.stack(np.meshgrid(*AXES, indexing="ij"), -1)
    ratio, distance = plane(sizes, ratios, np.log2(points).reshape(-1, 3))
    ns = 1e9 * np.exp(ratio).reshape(points.shape[:3]) * peak_s(*np.moveaxis(points, -1, 0))
    ns[distance.reshape(ns.shape) > FAR] = np.nan
    print(f"gemm: {kept.sum()} of {len(rows)} rows, errors of rows left out: median "
          f"{np.median(error):.3f}, 90th percentile {np.quantile(error, 0.9):.3f}")
    return table_of("gemm", "f32", "mnk", (1, 1, 1), AXES, ns, framework="pytorch", version="2.1",
                    kernel="volta_sgemm", dropped={"shorter than the harness times":
                                                   int((~kept).sum())},
                    spread=float(np.quantile(error, 0.9)), peak_flops_per_s=FLOPS, element_bytes=4)


def print_memory_shares(folder):
    """Of rows of 0.1 GB and more; each reads its operands and writes its result once."""
    for op, passes in (("add", 3), ("mul", 3), ("gelu", 2), ("relu", 2), ("softmax", 2), ("ln", 2)):
        rows = rows_of(folder, op)
        moved = 4 * passes * rows["B"].astype(float) * rows["H"]
        share = (moved / rows["Latency"])[moved > 1e8] * 1e3 / MEMORY
        print(f"{op}: {share.quantile(0.1):.2f} {share.median():.2f} {share.quantile(0.9):.2f} of "
              "the memory rate")


if __name__ == "__main__":
    save("v100", {"gpu": "V100 PCIe 32GB", "source": "NeuSight (ASPLOS 2025)",
                  "licence": "MIT, Copyright (c) 2025 Georgia Institute of Technology and Microsoft "
                             "Corporation", "peak_memory_bytes_per_s": MEMORY,
                  "peak_link_bytes_per_s": 16e9}, [products(sys.argv[1])])  # PCIe 3.0 x16
    print_memory_shares(sys.argv[1])
