#!/usr/bin/env python3
"""Writes scripts/moe/gpus/b200_step.times: products of a training step, measured inside a framework.

  python3 -m venv ENV && ENV/bin/pip install numpy pandas pyarrow scipy
  ENV/bin/python scripts/import_simumax.py FILE

FILE is configs/system/b200_bf16_ceperm.json of SimuMax (github.com/MooreThreads/SimuMax, Apache-2.0,
Copyright (c) 2025 MooreThreads), which has shares of the peak rate of scattered sizes: GEMMs forward
(TN), of inputs (NN) and of weights (NT, added to a sum of fp32 or bf16), grouped ones by the same
three stages, and attention forward and backward. Cells of the file are between the rows as
step_tables.py says; attention keeps its own sizes.

An efficiency of attention there is by the flops of the whole square, of which the causal half is
computed; the backward counts 2.5 times the forward's.
"""

import json
import sys

import numpy as np

from import_op_times import save
from step_tables import GEMM, GROUPED, described, gemm_peak, grouped_peak, scattered

FLOPS, MEMORY = 2250e12, 8e12  # B200's data sheet
ABOUT = dict(framework="SimuMax", version="4dcaae5", kernel="in Megatron's layers",
             peak_flops_per_s=FLOPS)


def fields(key):
    return dict(pair.split("=") for pair in key.split(", "))


def gemms(efficiency):
    for op, layout in ("gemm", "TN"), ("gemm_dx", "NN"), ("gemm_dw", "NT"):
        rows = []
        for key, share in efficiency.items():
            f = fields(key)
            if f["layout"] == layout:
                m, n, k = (int(f[name]) for name in "mnk")
                rows.append(((m, n, k), 4 if f["out_dtype"] == "fp32" else 2,
                             2 * m * n * k / FLOPS / share))
        yield scattered(op, ["m", "n", "k"], GEMM, rows, gemm_peak(FLOPS, MEMORY), layout == "NT",
                        ABOUT)


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
        yield scattered(op, ["experts", "rows", "n", "k"], GROUPED, rows,
                        grouped_peak(FLOPS, MEMORY, weights), weights, ABOUT)


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
        yield described(op + name, names, axes, grid, float(np.quantile(off, 0.9)), ABOUT)


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
