"""Tables of products inside a training step from rows of scattered sizes, for the files that
import_op_times.save writes.

A cell, at powers of two, is the mean of the four nearest rows, weighted by the inverse of their
squared distance in octaves, of the logarithm of the ratio to the time by peak rates; cells further
than FAR octaves from a row are missing. Printed are the errors of rows of which half were left out:
the median of the ratio by class, and that of the error.
"""

import numpy as np
from scipy.spatial import cKDTree

from import_op_times import table_of

SHORTEST_S = 4e-6  # PeakRates::shortest_s
NEAREST, SOFT, FAR = 4, 0.05, 2.0
# How much a difference of an octave counts: the number of experts less than their rows.
GEMM, GROUPED = (1, 1, 1), (0.25, 1, 0.5, 0.5)


def nearest(sizes, logs, at, weights):
    """The logarithm of the ratio at the points `at`, and the distance to the nearest row."""
    scale = np.sqrt(weights)
    count = min(NEAREST, len(sizes))
    distance, rows = cKDTree(sizes * scale).query(at * scale, k=range(1, count + 1))
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


def scattered(op, names, weights, rows, peak_s, sums, about):
    """The table of an op. rows: (sizes, bytes of a gradient's number, seconds); sums: whether the
    bytes are an axis; peak_s: of the sizes and these bytes."""
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
        errors.append(left_out(sizes, logs, weights) if len(sizes) > 1 else np.array([np.nan]))
    error = np.concatenate(errors)
    print(f"{op}: {len(rows)} rows; half left out: median ratio {np.median(error):.3f}, error "
          f"median {np.median(abs(error - 1)):.3f}, 90th percentile "
          f"{np.quantile(abs(error - 1), 0.9):.3f}")
    grid = np.stack(grids, -1) if sums else grids[0]
    names, axes = (names + ["grad_bytes"], axes + [[2.0, 4.0]]) if sums else (names, axes)
    spread = float(np.nan_to_num(np.quantile(abs(error - 1), 0.9)))
    return described(op, names, axes, grid, spread, about)


def described(op, names, axes, grid, spread, about):
    """about: what the header says of where the rows are from, and the peak rate."""
    source = {name: about[name] for name in ("framework", "version", "kernel")}
    return table_of(op, "bf16", names, [1] * len(names), axes, grid, **source, dropped={},
                    spread=spread, in_step=True, peak_flops_per_s=about["peak_flops_per_s"],
                    element_bytes=2)


def gemm_peak(flops, memory):
    """The time of a GEMM by peak rates; a sum of gradients is read and written."""
    def peak_s(m, n, k, each):
        moved = 2 * (m * k + n * k) + m * n * (2 * each if each else 2)
        return np.maximum(2 * m * n * k / flops, moved / memory) + SHORTEST_S
    return peak_s


def grouped_peak(flops, memory, weights):
    """That of the products of experts; weights: of the gradient of weights."""
    def peak_s(experts, rows, n, k, each):
        moved = 2 * rows * (n + k) + n * k * 2 * each if weights else 2 * (rows * (n + k) + n * k)
        return np.maximum(2 * experts * rows * n * k / flops, experts * moved / memory) + SHORTEST_S
    return peak_s
