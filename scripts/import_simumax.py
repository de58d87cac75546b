#!/usr/bin/env python3
"""Writes scripts/moe/gpus/b200_step.times: products of a training step, measured inside a framework.

  python3 -m venv ENV && ENV/bin/pip install numpy pandas pyarrow scipy
  ENV/bin/python scripts/import_simumax.py FILE

FILE is configs/system/b200_bf16_ceperm.json of SimuMax (github.com/MooreThreads/SimuMax, Apache-2.0,
Copyright (c) 2025 MooreThreads), which has shares of the peak rate of scattered sizes: GEMMs forward
(TN), of inputs (NN) and of weights (NT, added to a sum of fp32 or bf16), grouped ones by the same
three stages, and attention forward and backward. A cell of the file, at powers of two, is the mean of
the four nearest rows, weighted by the inverse of their squared distance in octaves, of the logarithm
of the ratio to the time by peak rates; cells further than FAR octaves from a row are missing.
Attention keeps its own sizes. Printed are the errors of rows of which half were left out: the median
of the ratio by class, and that of the error.

An efficiency of attention there is by the flops of the whole square, of which the causal half is
computed; the backward counts 2.5 times the forward's.
"""

import json
import sys

import numpy as np
from scipy.spatial import cKDTree

from import_op_times import save, table_of

FLOPS, MEMORY, SHORTEST_S = 2250e12, 8e12, 4e-6  # B200's data sheet; PeakRates::shortest_s
NEAREST, SOFT, FAR = 4, 0.05, 2.0
# How much a difference of an octave counts: the number of experts less than their rows.
GEMM, GROUPED = (1, 1, 1), (0.25, 1, 0.5, 0.5)


def fields(key):
    return dict(pair.split("=") for pair in key.split(", "))


def nearest(sizes, logs, at, weights):
    """The logarithm of the ratio at the points `at`, and the distance to the nearest row."""
    scale = np.sqrt(weights)
    distance, rows = cKDTree(sizes * scale).query(at * scale, k=NEAREST)
    share = 1 / (distance ** 2 + SOFT)
    return (share * logs[rows]).sum(1) / share.sum(1), distance[:, 0]


def left_out(sizes, logs, weights):
    """Ratios of predicted to measured times, each half of the rows from the other half, 20 times."""
    ratios, random = [], np.random.default_rng(0)
    for _ in range(20):
        half = random.permutation(len(sizes)) < len(sizes) // 2
        for seen in half, ~half:
            ratios.append(np.exp(nearest(sizes[seen], logs[seen], sizes[~seen], weights)[0] -
                                 logs[~seen]))
    return np.concatenate(ratios)


def octaves(sizes):
    return [2.0 ** np.arange(np.floor(low), np.ceil(high) + 1)
            for low, high in zip(sizes.min(0), sizes.max(0))]


def scattered(op, names, weights, rows, peak_s, sums):
    """The table of an op. rows: (sizes, bytes of a gradient's number, seconds); sums: whether the
    bytes are an axis."""
    every = np.log2(np.array([size for size, _, _ in rows], float))
    axes, grids, errors = octaves(every), [], []
    for each in (2, 4) if sums else (0,):
        kept = [i for i, row in enumerate(rows) if row[1] == each or not sums]
        sizes, seconds = every[kept], np.array([rows[i][2] for i in kept])
        logs = np.log(seconds / peak_s(*(2 ** sizes).T, each))
        points = np.stack(np.meshgrid(*axes, indexing="ij"), -1)
        log, distance = nearest(sizes, logs, np.log2(points).reshape(-1, len(names)), weights)
        ns = 1e9 * np.exp(log) * peak_s(*points.reshape(-1, len(names)).T, each)
        ns[distance > FAR] = np.nan
        grids.append(ns.reshape(points.shape[:-1]))
        errors.append(left_out(sizes, logs, weights))
    error = np.concatenate(errors)
    print(f"{op}: {len(rows)} rows; half left out: median ratio {np.median(error):.3f}, error "
          f"median {np.median(abs(error - 1)):.3f}, 90th percentile "
          f"{np.quantile(abs(error - 1), 0.9):.3f}")
    grid = np.stack(grids, -1) if sums else grids[0]
    names, axes = (names + ["grad_bytes"], axes + [[2.0, 4.0]]) if sums else (names, axes)
    return described(op, names, axes, grid, float(np.quantile(abs(error - 1), 0.9)))


def described(op, names, axes, grid, spread):
    return table_of(op, "bf16", names, [1] * len(names), axes, grid, framework="SimuMax",
                    version="4dcaae5", kernel="in Megatron's layers", dropped={}, spread=spread,
                    in_step=True, peak_flops_per_s=FLOPS, element_bytes=2)


def gemms(efficiency):
    for op, layout in ("gemm", "TN"), ("gemm_dx", "NN"), ("gemm_dw", "NT"):
        rows = []
        for key, share in efficiency.items():
            f = fields(key)
            if f["layout"] == layout:
                m, n, k = (int(f[name]) for name in "mnk")
                rows.append(((m, n, k), 4 if f["out_dtype"] == "fp32" else 2,
                             2 * m * n * k / FLOPS / share))

        def peak_s(m, n, k, each):
            moved = 2 * (m * k + n * k) + m * n * (2 * each if each else 2)
            return np.maximum(2 * m * n * k / FLOPS, moved / MEMORY) + SHORTEST_S
        yield scattered(op, ["m", "n", "k"], GEMM, rows, peak_s, layout == "NT")


def grouped(efficiency):
    for op, stage in (("grouped_gemm", "fwd"), ("grouped_gemm_dx", "bwd_grad_act"),
                      ("grouped_gemm_dw", "bwd_grad_w")):
        weights, rows = stage == "bwd_grad_w", []
        for key, share in efficiency.items():
            f = fields(key)
            if f["stage"] != stage:
                continue
            experts, m, n, k = (int(f[name]) for name in ("ng", "M", "N", "K"))
            # N and K are those of the forward, whose k and n the gradient of rows swaps.
            size = (experts, m, k, n) if stage == "bwd_grad_act" else (experts, m, n, k)
            rows.append((size, 4 if f["main_grad_dtype"] == "fp32" else 2,
                         2 * experts * m * n * k / FLOPS / share))

        def peak_s(experts, m, n, k, each):
            moved = 2 * (m * n + m * k) + n * k * (2 * each if each else 2)
            return np.maximum(2 * experts * m * n * k / FLOPS,
                              experts * moved / MEMORY) + SHORTEST_S
        yield scattered(op, ["experts", "rows", "n", "k"], GROUPED, rows, peak_s, weights)


def attention(name, efficiency, flops):
    """Both kinds of attention; of rows that differ in how q, k and v lie, the mean."""
    for latent, op in (False, "attention"), (True, "latent_attention"):
        times = {}
        for key, share in efficiency.items():
            f = fields(key)
            b, s, h, kv, qk, v = (int(f[field]) for field in (
                "batch", "seq_len", "head_num", "kv_head_num", "qk_head_dim", "v_head_dim"))
            if latent == (qk == 192):
                point = (b, s, h) if latent else (b, s, h, kv, qk)
                times.setdefault(point, []).append(
                    2 * flops * b * h * s * s * (qk + v) / FLOPS / share)
        axes = [sorted({float(p[i]) for p in times}) for i in range(3 if latent else 5)]
        grid, off = np.full([len(a) for a in axes], np.nan), []
        for point, seconds in times.items():
            at = tuple(a.index(p) for a, p in zip(axes, point))
            grid[at] = 1e9 * np.mean(seconds)
            off += [abs(s / np.mean(seconds) - 1) for s in seconds if len(seconds) > 1]
        print(f"{op}{name}: {len(times)} sizes")
        names = ["batch", "seq", "heads", "kv_heads", "head_dim"][:len(axes)]
        yield described(op + name, names, axes, grid, float(np.quantile(off, 0.9)))


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        ops = json.load(file)["accelerator"]["op"]
    ops = {name: op["accurate_efficient_factor"] for name, op in ops.items()
           if "accurate_efficient_factor" in op}
    tables = [*gemms(ops["matmul"]), *grouped(ops["group_matmul"]),
              *attention("", ops["sdp_fwd"], 1), *attention("_dx", ops["sdp_bwd"], 2.5)]
    save("b200_step", {"gpu": "B200", "source": "SimuMax 4dcaae5, b200_bf16_ceperm.json",
                       "licence": "Apache-2.0, Copyright (c) 2025 MooreThreads",
                       "peak_memory_bytes_per_s": MEMORY, "peak_link_bytes_per_s": 900e9}, tables)


if __name__ == "__main__":
    main()
