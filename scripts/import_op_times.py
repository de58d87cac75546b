#!/usr/bin/env python3
"""Writes scripts/moe/gpus/NAME.times, the measured op times of one GPU each, from public tables.

  python3 -m venv ENV && ENV/bin/pip install aiconfigurator-core==0.12.0 pandas pyarrow
  ENV/bin/python scripts/import_op_times.py [GPU...]

The tables are those of aiconfigurator-core (NVIDIA, Apache-2.0): Parquet files by GPU, framework and
version. This script is needed only to make the files again; moebench reads the files it wrote.

A file is a line "moebench op times 1", a JSON header, a zero byte, and the cells of all tables as
16-bit logarithms (engine/cost/op_table.h). Where frameworks differ vLLM's row is taken; `spread` in
the header is the 90th percentile of the difference from the other frameworks' rows. What is dropped,
and by which rule, is in the header under `dropped` and is printed.
"""

import importlib.util
import json
import pathlib
import sys

import numpy as np
import pandas

PACKAGE = "aiconfigurator-core 0.12.0"
OUT = pathlib.Path(__file__).resolve().parent / "moe" / "gpus"
STEPS, MISSING = 2048, 0xFFFF  # OpGrid::kSteps, OpGrid::kMissing

# name: (folder, title, bf16 flops per s, fp8 flops per s, memory bytes per s, NVLink bytes per s one
# way), from NVIDIA's data sheets, dense. GB200: per GPU of the superchip.
GPUS = {
    "a100": ("a100_sxm", "A100 SXM 80GB", 312e12, None, 2.039e12, 300e9),
    "h100": ("h100_sxm", "H100 SXM", 989e12, 1979e12, 3.35e12, 450e9),
    "h200": ("h200_sxm", "H200 SXM", 989e12, 1979e12, 4.8e12, 450e9),
    "b200": ("b200_sxm", "B200", 2250e12, 4500e12, 8e12, 900e9),
    "b300": ("b300_sxm", "B300", 2250e12, 4500e12, 8e12, 900e9),
    "gb200": ("gb200", "GB200", 2500e12, 5000e12, 8e12, 900e9),
}
FRAMEWORKS = ("vllm", "sglang", "trtllm")  # the first that has a row gives it
# The name of bf16 and fp8 in the columns of the tables.
BF16, FP8 = "bfloat16", "fp8"


def read(folder, family, framework, file):
    """The newest version's table and that version; (None, None) if there is no table."""
    def key(path):
        text = "".join(c if c.isdigit() else " " for c in path.parent.name)
        return [int(n) for n in text.split()]
    found = sorted((folder / family / framework).glob("*/" + file), key=key)
    if not found:
        return None, None
    return pandas.read_parquet(found[-1]), found[-1].parent.name


def grid_of(rows, names, axes=None):
    """The ascending values of each axis, and the times as an array with NaN where no row is. The
    median is taken of rows with equal axes. With `axes`, rows at other values are left out."""
    if axes is None:
        axes = [np.sort(rows[n].unique()) for n in names]
    rows = rows[np.all([rows[n].isin(a) for n, a in zip(names, axes)], axis=0)]
    rows = rows.groupby(names, as_index=False).ns.median()
    grid = np.full([len(a) for a in axes], np.nan)
    grid[tuple(np.searchsorted(a, rows[n]) for n, a in zip(names, axes))] = rows.ns
    return axes, grid


def spread_of(grid, others):
    """The 90th percentile of |ratio - 1| of the other frameworks' times."""
    off = [np.abs(other / grid - 1)[~np.isnan(other / grid)] for other in others]
    off = np.concatenate(off) if off else np.array([])
    return float(np.quantile(off, 0.9)) if len(off) else 0.0


def drop(rows, good, rule, dropped):
    """The rows that are `good`; the number of the others goes under `rule` into `dropped`."""
    dropped[rule] = int((~good).sum())
    return rows[good].reset_index(drop=True)


def disturbed(rows, grows, same, limit):
    """Marks rows that take `limit` times longer than a row with more of `grows` and equal `same`."""
    rows = rows.sort_values(grows)
    later = rows.groupby(same).ns.transform(lambda x: x[::-1].cummin()[::-1])
    return (rows.ns > limit * later).sort_index()


def by_framework(folder, family, file, names, rows_of):
    """The grid of the first framework that has rows, those of the others on its axes, and the
    first one's name, version and kernels. rows_of(table, first): the rows to take."""
    grids = []
    for framework in FRAMEWORKS:
        table, version = read(folder, family, framework, file)
        rows = None if table is None else rows_of(table, not grids)
        if rows is None or rows.empty:
            continue
        if not grids:
            axes, grid = grid_of(rows, names)
            about = {"framework": framework, "version": version,
                     "kernel": "/".join(sorted(rows.kernel_source.unique()))}
        else:
            _, grid = grid_of(rows, names, axes)
        grids.append(grid)
    return axes, grids, about


def table_of(op, dtype, names, weights, axes, grid, **about):
    return {"op": op, "dtype": dtype, "rows": int((~np.isnan(grid)).sum()), **about,
            "axes": [{"name": n, "values": [float(v) for v in a], "weight": w}
                     for n, a, w in zip(names, axes, weights)]}, grid


def gemm(folder):
    """GEMMs y [m,n] = x [m,k] w [n,k]^T by the library that PyTorch calls."""
    def rows_of(table, first):
        rows = table[table.gemm_dtype == BF16]
        return rows.assign(ns=rows.latency * 1e6)
    names, dropped = ["m", "n", "k"], {}
    axes, grids, about = by_framework(folder, "gemm", "gemm_perf.parquet", names, rows_of)
    grid = grids[0]
    if len(grids) == 3:
        a, b = grids[1:]
        off = (np.abs(a / b - 1) < 0.15) & (((grid > 1.3 * a) & (grid > 1.3 * b)) |
                                            ((1.3 * grid < a) & (1.3 * grid < b)))
        dropped["differs by more than 1.3x from two frameworks that agree"] = int(off.sum())
        grid = np.where(off, np.nan, grid)
    # A missing cell follows k more than n, and n more than m: their errors alone are 2.5%, 4.5% and
    # 4.5 to 6% in the median.
    return table_of("gemm", "bf16", names, [0.5, 1, 4], axes, grid, **about, dropped=dropped,
                    spread=spread_of(grid, grids[1:]))


# GEMMs in fp8, by table: whose rows, as the column gemm_dtype has them, and the times of the casts of
# x that are part of them (aiconfigurator's collectors). fp8, a scale per tensor: finding the scale,
# and the cast. fp8_block, DeepGEMM's kernel, a scale per 128 numbers of a row: a cast of a given
# scale, as no table has theirs.
FP8_ROWS = {
    "fp8": ("trtllm", (("trtllm", "computescale"), ("trtllm", "scale_matrix"))),
    "fp8_block": ("sglang", (("vllm", "scale_matrix"),)),
}


def gemm_fp8(folder, dtype, flops):
    """The product alone. Rows with fewer than 128 rows of x are left out, since their casts take as
    long as they do, as are those that would be quicker than the peak."""
    framework, casts = FP8_ROWS[dtype]
    rows, version = read(folder, "gemm", framework, "gemm_perf.parquet")
    rows, dropped = rows[(rows.gemm_dtype == dtype) & (rows.n >= 128) & (rows.k >= 128)], {}
    axes = [[2 ** i for i in range(7, 16)]] + [np.sort(rows[n].unique()) for n in "nk"]
    rows = drop(rows, rows.m.isin(axes[0]), "m other than powers of 2 from 128 on", dropped)
    ns = rows.latency * 1e6
    for source, name in casts:
        table = read(folder, "quantize", source, name + "_perf.parquet")[0]
        table = table.groupby(["m", "k"]).latency.median().reset_index()
        ns -= rows[["m", "k"]].merge(table, how="left").latency * 1e6
    rows = drop(rows.assign(ns=ns), ns > 2e9 * rows.m * rows.n * rows.k / flops,
                "quicker than the peak", dropped)
    axes, grid = grid_of(rows, ["m", "n", "k"], axes)
    return table_of("gemm", dtype, ["m", "n", "k"], [0.5, 1, 4], axes, grid, framework=framework,
                    version=version, spread=0.0, dropped=dropped,
                    kernel="/".join(sorted(rows.kernel_source.unique())) + " less its casts")


# Gradients of weights, summed in f32, by DeepGEMM's kernel for them alone on an H800: out, in, tokens
# and TFLOP/s. From pull request 95 of deepseek-ai/DeepGEMM (MIT), of whose rows for several experts
# issue 107 there repeats the last two: rows of one expert of four.
GRADIENTS = ((2112, 7168, 4096, 920), (24576, 1536, 4096, 986), (32768, 512, 4096, 878),
             (7168, 16384, 4096, 994), (4096, 7168, 4096, 942), (7168, 2048, 4096, 920),
             (2112, 7168, 8192, 1052), (24576, 1536, 8192, 1092), (32768, 512, 8192, 1014),
             (4096, 7168, 8192, 1044), (7168, 2048, 8192, 1033))


def gemm_dw_block():
    """The gradient of a weight."""
    names = ["m", "n", "k", "grad_bytes"]
    rows = pandas.DataFrame([(m, n, k, 4, 2e-3 * m * n * k / tflops)
                             for m, n, k, tflops in GRADIENTS], columns=[*names, "ns"])
    axes, grid = grid_of(rows, names)
    return table_of("gemm_dw", "fp8_block", names, [1, 1, 1, 1], axes, grid, framework="DeepGEMM",
                    version="pull request 95", kernel="wgrad_gemm_fp8_fp8_fp32_nt on H800",
                    dropped={}, spread=0.0)


def attention(folder):
    """The causal forward of whole prompts: no earlier tokens, no window, a bf16 cache."""
    names = ["batch", "seq", "heads", "kv_heads", "head_dim"]
    dropped = {}

    def rows_of(table, first):
        count = dropped if first else {}
        rows = table.rename(columns={"batch_size": "batch", "isl": "seq", "num_heads": "heads",
                                     "num_key_value_heads": "kv_heads"})
        rows = rows.assign(ns=rows.latency * 1e6).reset_index(drop=True)
        rows = drop(rows, rows.kv_cache_dtype == BF16, "a cache other than bf16", count)
        if "window_size" in rows:
            rows = drop(rows, rows.window_size.fillna(0) == 0, "a window", count)
        rows = drop(rows, (rows.step == 0) & (rows.seq > 1), "earlier tokens or one token", count)
        # Other head counts are left out to keep the file small; they add no accuracy.
        kept = rows.heads.isin([1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96])
        kept &= rows.kv_heads.isin([1, 2, 4, 8, 16, 32, 64]) & (rows.kv_heads <= rows.heads)
        rows = drop(rows, kept, "head counts that the file does not have", count)
        off = disturbed(rows, "seq", ["batch", "heads", "kv_heads", "head_dim"], 1.2)
        return drop(rows, ~off, "slower by a fifth than a longer prompt", count)
    axes, grids, about = by_framework(folder, "attention", "context_attention_perf.parquet", names,
                                      rows_of)
    return table_of("attention", "bf16", names, [1, 1, 1, 1, 0.25], axes, grids[0], **about,
                    dropped=dropped, spread=spread_of(grids[0], grids[1:]))


def latent_attention(folder):
    """Latent attention over whole prompts, the kernel alone (TensorRT-LLM's: vLLM has only times of
    the whole module, whose small rows are not the device's)."""
    names, dropped = ["batch", "seq", "heads"], {}
    rows, version = read(folder, "mla", "trtllm", "context_mla_perf.parquet")
    rows = rows.rename(columns={"batch_size": "batch", "isl": "seq", "num_heads": "heads"})
    rows = rows.assign(ns=rows.latency * 1e6).reset_index(drop=True)
    rows = drop(rows, (rows.kv_cache_dtype == BF16) & (rows.mla_dtype == BF16),
                "a cache or arithmetic other than bf16", dropped)
    rows = drop(rows, rows.seq > 1, "one token", dropped)
    rows = drop(rows, ~disturbed(rows, "seq", ["batch", "heads"], 1.2),
                "slower by a fifth than a longer prompt", dropped)
    axes, grid = grid_of(rows, names)
    return table_of("latent_attention", "bf16", names, [1, 1, 1], axes, grid, framework="trtllm",
                    version=version, kernel="/".join(sorted(rows.kernel_source.unique())),
                    dropped=dropped, spread=0.0)


def collectives(folder):
    """NCCL inside a node. message_size counts elements of a rank's larger buffer, as nccl-tests
    does: read otherwise, the bus bandwidth would exceed NVLink's, or be a tenth of it."""
    files = sorted(folder.glob("comm/*/*/nccl_perf.parquet"))
    table = pandas.concat([pandas.read_parquet(f) for f in files], ignore_index=True)
    table = table[table.version.notna()]
    # Folders of older versions hold repeats of the newest, by their column.
    version = max(table.version.unique(), key=lambda v: [int(n) for n in v.split(".")])
    names = ["ranks", "bytes"]
    for op, name in (("all_to_all", "alltoall"), ("all_reduce", "all_reduce"),
                     ("all_gather", "all_gather"), ("reduce_scatter", "reduce_scatter")):
        dropped = {}
        rows = table[table.op_name == name]
        rows = drop(rows, rows.version == version, "other versions", dropped)
        rows = drop(rows, rows.nccl_dtype == "half", "int8", dropped)
        rows = rows.assign(ranks=rows.num_gpus, bytes=2 * rows.message_size,
                           ns=rows.latency * 1e6)
        repeats = np.abs(rows.ns / rows.groupby(names).ns.transform("median") - 1)
        dropped["repeats, of which the median counts"] = len(rows)
        rows = rows.groupby(names, as_index=False).ns.median()
        dropped["repeats, of which the median counts"] -= len(rows)
        rows = drop(rows, ~disturbed(rows, "bytes", ["ranks"], 1.05),
                    "slower by 5 percent than a larger message", dropped)
        axes, grid = grid_of(rows, names)
        yield table_of(op, "bf16", names, [0.25, 1], axes, grid, framework="nccl",
                       version=version, kernel="NCCL", dropped=dropped,
                       # Of repeats of one row; A100 has none, and gets what the others have.
                       spread=float(np.quantile(repeats, 0.9)) or 0.06)


def deepep(name, folder):
    """DeepEP's normal kernels, tuned for each number of SMs. A row is one call by all ranks of
    whole nodes, each with `tokens` tokens: fp8 with scales out, bf16 back. The number of experts
    counts only through the ranks that a token reaches, which the law by peak rates has from topk.
    Between nodes the time has the kernel `notify` too, in which ranks wait for each other."""
    file, names = "wideep_deepep_normal_perf.parquet", ["nodes", "sms", "tokens", "hidden", "topk"]
    table, version = read(folder, "comm", "sglang", file)
    if table is None:
        return
    about = {"framework": "sglang", "version": version, "kernel": "deepep normal",
             "node_ranks": 4 if name == "gb200" else 8}
    if name == "h100":
        # Only this older table has more than one node. H200's is a copy of it.
        old = pandas.read_parquet(folder / "comm" / "sglang" / "0.5.6.post2" / file)
        about["version"] += f" (2 to 8 nodes: {old.version[0]})"
        table = pandas.concat([table, old], ignore_index=True)
    for op, dtype in (("dispatch", FP8), ("combine", "bf16")):
        dropped = {}
        rows = table.rename(columns={"node_num": "nodes", op + "_sms": "sms", "num_topk": "topk",
                                     "num_token": "tokens", "hidden_size": "hidden"})
        rows = rows.assign(ns=1e3 * (rows[op + "_transmit_us"] + rows[op + "_notify_us"]))
        rows = drop(rows, (rows.nodes > 1) | (rows.version == version),
                    "one node of an older version", dropped)
        off = disturbed(rows, "tokens", ["nodes", "sms", "hidden", "topk", "num_experts"], 1.2)
        rows = drop(rows, ~off, "slower by a fifth than a larger batch", dropped)
        same = rows.groupby(names).ns
        repeats = np.abs(rows.ns / same.transform("median") - 1)[same.transform("size") > 1]
        dropped["other numbers of experts, of which the median counts"] = len(rows) - len(same)
        axes, grid = grid_of(rows, names)
        yield table_of(op, dtype, names, [0.01, 1, 1, 1, 1], axes, grid, **about,
                       dropped=dropped, spread=float(np.quantile(repeats, 0.9)))


LOADS = ["balanced", "power_law_1.01", "power_law_1.2"]
# hidden and inner of layers whose first GEMM is not gated (Nemotron); vLLM 0.14 took them as gated.
NOT_GATED = {(2688, 1856), (2048, 5120), (1024, 2688), (4096, 2688)}


def experts(name, folder):
    """Fused expert kernels. A row is one call of the routed experts of one rank: num_tokens counts
    the tokens of the whole expert-parallel group, inter_size is before the division by tp, and a
    power-law row is that of the rank with most rows, a mean over five draws."""
    shape = ["hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size"]
    key = shape + ["distribution", "num_tokens"]
    parts, dropped = [], {}
    for framework in ("vllm", "sglang") if name == "a100" else ("vllm",):
        table, version = read(folder, "moe", framework, "moe_perf.parquet")
        if framework == "vllm":
            about = {"framework": framework, "version": version}
        rows = table[(table.moe_dtype == BF16) & table.distribution.isin(LOADS)]
        if framework == "sglang":  # its rows with ep > 1 take as long as one rank with all experts
            rows = drop(rows, rows.moe_ep_size == 1, "sglang's rows with ep > 1", dropped)
        # Kernels work on ragged tiles there, which no other row predicts.
        rows = drop(rows, rows.inter_size // rows.moe_tp_size % 16 == 0,
                    f"{framework}: a width per rank that 16 does not divide", dropped)
        parts.append(rows)
    rows = pandas.concat(parts)
    rows = rows.assign(ns=rows.latency * 1e6)
    rows = rows.drop_duplicates(key)
    other, _ = read(folder, "moe", "sglang", "moe_perf.parquet")
    other = other[(other.moe_dtype == BF16) & (other.moe_ep_size == 1)].groupby(key).latency.median()
    off = np.abs(1e6 * other / rows.set_index(key).ns - 1).dropna()
    usual = rows.kernel_source.value_counts().index[0]
    kernels = rows.groupby(shape).kernel_source.first()
    tokens = np.sort(rows.num_tokens.unique())
    layers = sorted(kernels.index)
    number = {layer: i for i, layer in enumerate(layers)}
    grid = np.full((len(layers), len(LOADS), len(tokens)), np.nan)
    grid[[number[x] for x in zip(*(rows[c] for c in shape))],
         [LOADS.index(x) for x in rows.distribution],
         np.searchsorted(tokens, rows.num_tokens)] = rows.ns
    # A row far off the line between both neighbours in tokens; of adjacent ones only the worst.
    x, y = np.log(tokens), np.log(grid)
    w = (x[1:-1] - x[:-2]) / (x[2:] - x[:-2])
    off = np.zeros(grid.shape)
    off[..., 1:-1] = np.nan_to_num(np.abs(y[..., 1:-1] - y[..., :-2] * (1 - w) - y[..., 2:] * w))
    worst = (off[..., 1:-1] >= off[..., :-2]) & (off[..., 1:-1] >= off[..., 2:])
    spikes = np.zeros(grid.shape, bool)
    spikes[..., 1:-1] = worst & (off[..., 1:-1] > np.log(1.5))
    dropped["1.5 times off the line between both neighbours in tokens"] = int(spikes.sum())
    grid[spikes] = np.nan
    gated = [1 if (l[0], l[1]) in NOT_GATED and name != "a100" else 2 for l in layers]
    # A layer that another kernel family ran, for an activation that the usual one lacks, answers
    # only for itself.
    alone = [int(("cutlass" in kernels[l]) != ("cutlass" in usual)) for l in layers]
    return {"op": "experts", "dtype": "bf16", "rows": int((~np.isnan(grid)).sum()), **about,
            "kernel": usual, "dropped": dropped, "loads": LOADS,
            "spread": float(np.quantile(off, 0.9)) if len(off) else 0.0,
            # Triton moves the rows of all ranks through the activation and the sum.
            "moves_all": "triton" in usual, "tokens": [float(t) for t in tokens],
            # hidden, width per rank, experts, k, ep, gates, alone
            "layers": [[float(l[0]), l[1] / l[4], float(l[3]), float(l[2]), float(l[5]), float(g),
                        float(a)] for l, g, a in zip(layers, gated, alone)]}, grid


def cells_of(grid):
    cells = np.full(grid.shape, MISSING, dtype="<u2")
    known = ~np.isnan(grid)
    cells[known] = np.round(STEPS * np.log(grid[known]))
    return cells.tobytes()


def save(name, header, tables):
    """Writes the file of a GPU. tables: what table_of returns, with their peaks in them."""
    header = {**header, "tables": [table for table, _ in tables]}
    text = b"moebench op times 1\n" + json.dumps(header, separators=(",", ":")).encode() + b"\0"
    text += b"\0" * (len(text) % 2)
    OUT.mkdir(exist_ok=True)
    file = OUT / (name + ".times")
    file.write_bytes(text + b"".join(cells_of(grid) for _, grid in tables))
    print(f"{name}: {file.stat().st_size} bytes")


def write(name):
    folder, title, bf16, fp8, memory, link = GPUS[name]
    package = importlib.util.find_spec("aiconfigurator_core")
    data = pathlib.Path(package.submodule_search_locations[0]) / "systems" / "data" / folder
    tables = [gemm(data)]
    tables += [gemm_fp8(data, dtype, fp8) for dtype in FP8_ROWS if fp8]
    tables += [attention(data), latent_attention(data), *collectives(data), experts(name, data)]
    tables += deepep(name, data)
    tables += [gemm_dw_block()] if name in ("h100", "h200") else []
    header = {"gpu": title, "source": PACKAGE,
              "licence": "Apache-2.0, Copyright (c) 2025-2026 NVIDIA CORPORATION & AFFILIATES",
              "peak_memory_bytes_per_s": memory, "peak_link_bytes_per_s": link}
    for table, grid in tables:
        half = table["dtype"] == "bf16"
        table.update(peak_flops_per_s=bf16 if half else fp8, element_bytes=2 if half else 1)
        print(f"{name} {table['op']} {table['dtype']}: {table['rows']} of {grid.size} cells, "
              f"{table['framework']} {table['version']} {table['kernel']}, "
              f"spread {table['spread']:.3f}, dropped {table['dropped']}")
    save(name, header, tables)


if __name__ == "__main__":
    for gpu in sys.argv[1:] or GPUS:
        write(gpu)
