#!/usr/bin/env python3
"""Writes scripts/moe/gpus/NAME_step.times from what measure_gpu.py measured on that GPU.

  python3 -m venv ENV && ENV/bin/pip install numpy pandas scipy
  ENV/bin/python scripts/import_gpu_steps.py NAME FILE... [--without OP...]

NAME is a GPU of import_op_times.py. Of rows of one op and size (several kernels, or the products of
experts one by one) the quickest counts; gradients of experts' weights are those of GEMMs one by one,
which add to their sums. Cells are between the rows as step_tables.py says, those of attention too;
gradients of weights that were measured in one type only take the same ratio to the time by peak
rates in the other. Printed last are the times inside a step over those alone of
NAME.times, whose median and 10th and 90th percentile nodes.lua has as `step_ratio` of GPUs of the
same kind.
"""

import argparse
import json
import math
import pathlib

import numpy as np
from scipy.interpolate import interpn

import import_op_times
from import_op_times import GPUS, MISSING, STEPS, save
from step_tables import GEMM, GROUPED, SHORTEST_S, gemm_peak, grouped_peak, scattered

GEMM_NAMES, EXPERT_NAMES = ["m", "n", "k"], ["experts", "rows", "n", "k"]
HEAD_NAMES, LATENT_NAMES = ["batch", "seq", "heads", "kv_heads", "head_dim"], ["batch", "seq", "heads"]
NAMES = {**{op: GEMM_NAMES for op in ("gemm", "gemm_dx", "gemm_dw")},
         **{op: EXPERT_NAMES for op in ("grouped_gemm", "grouped_gemm_dx", "grouped_gemm_dw")},
         "attention": HEAD_NAMES, "attention_dx": HEAD_NAMES,
         "latent_attention": LATENT_NAMES, "latent_attention_dx": LATENT_NAMES}
# The rate of attention follows the length and the head size, and hardly the number of heads.
HEADS = (0.25, 1, 0.25, 0.1, 1)


def quickest(rows):
    """{op: {(sizes, bytes of a gradient's number): seconds}}"""
    times = {}
    for row in rows:
        # PyTorch's grouped product adds to no sum: its gradients take one op more.
        adds = row["op"] != "grouped_gemm_dw" or row["way"] == "loop"
        if row["op"] in NAMES and "median_ns" in row and adds:
            of = times.setdefault(row["op"], {})
            key = tuple(row["sizes"][n] for n in NAMES[row["op"]]), row["sizes"].get("grad_bytes", 0)
            of[key] = min(of.get(key, math.inf), row["median_ns"] / 1e9)
    return times


def peak_of(op, flops, memory):
    if op.startswith("gemm"):
        return gemm_peak(flops, memory)
    if op.startswith("grouped"):
        return grouped_peak(flops, memory, op.endswith("_dw"))
    passes = 2.5 if op.endswith("_dx") else 1

    def attention_s(batch, seq, heads, kv_heads, dim, _):
        work = batch * heads * seq * seq * 2 * dim
        moved = 2 * 2 * batch * seq * dim * (heads + kv_heads)
        return passes * (np.maximum(work / flops, moved / memory) + SHORTEST_S)

    def latent_s(batch, seq, heads, _):
        work, moved = batch * heads * seq * seq * 320, 2 * batch * seq * heads * 640
        return passes * (np.maximum(work / flops, moved / memory) + SHORTEST_S)
    return latent_s if op.startswith("latent") else attention_s


def table(op, times, flops, memory, about):
    peak_s, names = peak_of(op, flops, memory), NAMES[op]
    weights = {3: GEMM, 4: GROUPED, 5: HEADS}[len(names)] if names != LATENT_NAMES else HEADS[:3]
    sums = op.endswith("_dw")
    rows = [(sizes, each, seconds) for (sizes, each), seconds in times.items()]
    for (sizes, each), seconds in times.items() if sums else ():
        other = 6 - each  # bytes: 4 for 2 and 2 for 4
        if (sizes, other) not in times:
            ratio = peak_s(*map(float, sizes), other) / peak_s(*map(float, sizes), each)
            rows.append((sizes, other, seconds * ratio))
    return scattered(op, names, weights, rows, peak_s, sums, about)


def alone(name):
    """The bf16 GEMMs of NAME.times: their time in seconds at given sizes, NaN where a cell is
    missing."""
    content = (import_op_times.OUT / f"{name}.times").read_bytes()
    end = content.index(b"\0")
    header, at = json.loads(content[:end].split(b"\n", 1)[1]), end + 1 + (end + 1) % 2
    of = header["tables"][0]
    axes = [np.log(axis["values"]) for axis in of["axes"]]
    assert (of["op"], of["dtype"]) == ("gemm", "bf16"), of
    cells = np.frombuffer(content, "<u2", math.prod(map(len, axes)), at).astype(float)
    cells[cells == MISSING] = np.nan
    grid = cells.reshape([len(a) for a in axes]) / STEPS
    return lambda sizes: np.exp(interpn(axes, grid, np.log(sizes), bounds_error=False)) / 1e9


def print_ratios(name, times):
    gemm_s = alone(name)
    for ops in (["gemm"], ["gemm_dx"], ["gemm_dw"], ["gemm", "gemm_dx", "gemm_dw"], ["grouped_gemm"],
                ["grouped_gemm_dx"], ["grouped_gemm_dw"]):
        ratios = []
        for op in ops:
            for (sizes, _), seconds in times.get(op, {}).items():
                count, one = (sizes[0], sizes[1:]) if len(sizes) == 4 else (1, sizes)
                if op == "grouped_gemm_dw":
                    one = one[1], one[2], one[0]
                ratios.append(seconds / (count * gemm_s(one)[0]))
        ratios = np.array(ratios)[~np.isnan(ratios)]
        if len(ratios):
            low, median, high = np.quantile(ratios, (0.1, 0.5, 0.9))
            print(f"{', '.join(ops)} inside a step over alone: {median:.2f}, {low:.2f} to "
                  f"{high:.2f}, {len(ratios)} rows")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("name", choices=GPUS)
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--without", nargs="*", default=[], metavar="OP")
    options = parser.parse_args()
    files = [json.loads(pathlib.Path(file).read_text()) for file in options.files]
    measured = files[0]
    _, title, flops, _, memory, link = GPUS[options.name]
    times = quickest(row for file in files for row in file["rows"])
    about = dict(framework="PyTorch", version=measured["torch"], kernel="the quickest of PyTorch's",
                 peak_flops_per_s=flops)
    tables = [table(op, times[op], flops, memory, about) for op in NAMES
              if op in times and op not in options.without]
    source = (f"measured by scripts/measure_gpu.py on one {measured['device']}, {measured['date']}, "
              "sustained clocks")
    save(options.name + "_step", {
        "gpu": title, "source": source, "licence": "that of moebench",
        "peak_memory_bytes_per_s": memory, "peak_link_bytes_per_s": link}, tables)
    print_ratios(options.name, times)


if __name__ == "__main__":
    main()
