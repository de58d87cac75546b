#!/usr/bin/env python3
"""Lesson 13. How do I read results in Python? Each run of a recipe is an entry of `runs` in
out/<recipe>/results.json, a plain JSON file; `moebench list stubs` has its fields with their units.

Run it after lesson 2: python3 recipes/lessons/13_results.py  (under a second)
Another folder, as its argument, must have simulated runs of raf and lancet too.
Try next: matplotlib instead of print; runs.jsonl, which has a line per run while it is written.
"""
import json
import sys
from pathlib import Path

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "out/02_sweep")
results = json.loads((folder / "results.json").read_text())

points = {}
for run in results["runs"]:
    if run["executor"] != "simulate":  # executed runs have `points`: all points that they stand for
        continue
    points.setdefault(tuple(run["point"].values()), {})[run["system"]] = run

names = list(results["runs"][0]["point"])
print(*(f"{name:>6}" for name in names), "   exposed of raf's step   of lancet's")
for values, by_system in sorted(points.items()):
    shares = [run["exposed_comm_ms"] / run["iteration_ms"] for run in
              (by_system["raf"], by_system["lancet"])]
    print(*(f"{value:>6}" for value in values), f"{shares[0]:>24.0%} {shares[1]:>13.0%}")

assumed = sorted(results["runs"][0]["assumed"])
print("the times rest on", len(assumed), "assumed constants:", ", ".join(assumed))
