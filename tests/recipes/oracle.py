#!/usr/bin/env python3
"""Compares what recipes plan and simulate with what they did before.

  oracle.py freeze  FOLDER --binary build/release/moebench [RECIPE...]
  oracle.py compare FOLDER --binary build/release/moebench [--renames FILE] [RECIPE...]
  oracle.py golden  FOLDER --binary build/release/moebench [--write] [RECIPE...]

Recipes run with `--executor simulate` and seed 1; without recipes, all of recipes/ that FOLDER holds
(freeze: all), but for those after --except.

freeze keeps a file NAME.json.xz per recipe: what it prints, results.json without dates and measured
times, and for each plan its hash, its text, its log and the order of each lane. compare shows what
differs from it; use both with a FOLDER outside the tree, before and after a change that should
change nothing. The renames (lines "old new", regular expressions) are applied to the frozen texts
before they are compared; plans are then compared by text, since their hashes contain the names.

golden compares with a file NAME.txt per recipe, which is part of the tests: what the recipe prints,
and a last line with the number of its plans and a digest of their hashes. Of the longest recipes it
runs a part of the sweep. --write makes the files.

Status 1 where something differs.
"""

import argparse
import difflib
import hashlib
import json
import lzma
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PRELUDE = pathlib.Path(__file__).resolve().with_name("plans.lua")
# What depends on the day, the machine and how long planning took.
NOT_SIMULATED = {"date", "machine", "version", "session", "recipe", "lines", "plan_ms",
                 "simulate_ms", "hash_ms", "searched_s", "took_s"}
# What golden runs of the recipes that take longest.
PARTS = {"lancet/fig02": "nodes=2", "lancet/fig06": "size=S", "lina/gains": "size=gpt2",
         "proprophet/planner_gap": "k=2"}
SHOWN = 12  # differing lines by recipe


def without_measured(value):
    if isinstance(value, dict):
        return {k: without_measured(v) for k, v in value.items() if k not in NOT_SIMULATED}
    if isinstance(value, list):
        return [without_measured(v) for v in value]
    return value


def run(binary, recipe, texts, settings):
    """What the recipe plans (`texts`: with the plans' texts), simulates and prints with these
    settings, and how many seconds it took."""
    with tempfile.TemporaryDirectory() as folder:
        plans, out = pathlib.Path(folder, "plans"), pathlib.Path(folder, "out")
        plans.mkdir()
        begin = time.monotonic()
        ran = subprocess.run(
            [binary, "run", str(PRELUDE), "--trust", "--executor", "simulate", "--seed", "1",
             "--workers", "1", "--cache", ":memory:", "--out", str(out), *settings],
            cwd=ROOT, capture_output=True, text=True,
            env=os.environ | {"MOE_RECIPE": str(recipe), "MOE_PLANS": str(plans)}
                | ({"MOE_TEXTS": "1"} if texts else {}))
        took = time.monotonic() - begin
        index = plans / "index.txt"
        results = out / "results.json"
        frozen = {
            "status": ran.returncode,
            "stdout": re.sub(re.escape(folder), "FOLDER", ran.stdout).splitlines(),
            "stderr": re.sub(re.escape(folder), "FOLDER", ran.stderr).splitlines(),
            "plans": index.read_text().split() if index.exists() else [],
            "texts": {f.stem: f.read_text() for f in sorted(plans.glob("*.txt")) if f != index},
            "results": without_measured(json.loads(results.read_text()))
                       if results.exists() else None,
        }
    return frozen, took


def flat(value, path=""):
    """Lines "path = value", by which results are compared."""
    if isinstance(value, dict):
        for k, v in sorted(value.items()):
            yield from flat(v, f"{path}.{k}")
    elif isinstance(value, list):
        for i, v in enumerate(value):
            yield from flat(v, f"{path}[{i}]")
    else:
        yield f"{path} = {value!r}"


def translated(frozen, renames):
    text = json.dumps(frozen)
    for old, new in renames:
        text = re.sub(old, new, text)
    return json.loads(text)


def differences(before, now, by_text):
    """Of two frozen recipes: lists of differing lines, by what differs."""
    def texts(frozen):
        return [frozen["texts"].get(h, h) for h in frozen["plans"]]

    def results(frozen):
        return [line for line in flat(frozen["results"])
                if not (by_text and ".plan_hash = " in line)]

    pairs = {"status": ([str(before["status"])], [str(now["status"])]),
             "stdout": (before["stdout"], now["stdout"]),
             "stderr": (before["stderr"], now["stderr"]),
             "results.json": (results(before), results(now))}
    if not by_text:
        pairs["hashes"] = (before["plans"], now["plans"])
    for i, (a, b) in enumerate(zip(texts(before), texts(now))):
        if a != b:
            pairs[f"plan {i + 1}"] = (a.splitlines(), b.splitlines())
    if len(before["plans"]) != len(now["plans"]):
        pairs["number of plans"] = ([str(len(before["plans"]))], [str(len(now["plans"]))])
    return {what: [line for line in difflib.unified_diff(a, b, lineterm="", n=0)][2:]
            for what, (a, b) in pairs.items() if a != b}


def file_of(folder, recipe, suffix):
    name = str(recipe.relative_to(ROOT / "recipes").with_suffix("")).replace("/", "-")
    return folder / (name + suffix)


def show(name, what, lines):
    print(f"{name}: {what} differs in {len(lines)} lines")
    for line in lines[:SHOWN]:
        print(f"    {line[:200]}")


def compare(before, now, renames, name):
    found = differences(translated(before, renames) if renames else before, now, bool(renames))
    for what, lines in found.items():
        show(name, what, lines)
    return not found


def golden_text(now):
    digest = hashlib.sha256("\n".join(now["plans"]).encode()).hexdigest()[:16]
    return "\n".join(now["stdout"] + [f"plans: {len(now['plans'])}, digest {digest}"]) + "\n"


def matches_golden(file, now, write, name):
    text = golden_text(now)
    if write:
        file.write_text(text)
    lines = list(difflib.unified_diff(file.read_text().splitlines(), text.splitlines(),
                                      lineterm="", n=0))[2:]
    if now["status"] != 0:
        lines += [f"status {now['status']}", *now["stderr"]]
    if lines:
        show(name, file.name, lines)
    return not lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mode", choices=["freeze", "compare", "golden"])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--renames", type=pathlib.Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--except", dest="omitted", nargs="+", type=pathlib.Path, default=[])
    parser.add_argument("recipes", nargs="*", type=pathlib.Path)
    args = parser.parse_intermixed_args()
    binary = str(pathlib.Path(args.binary).resolve())
    suffix = ".txt" if args.mode == "golden" else ".json.xz"
    recipes = [r.resolve() for r in args.recipes]
    if not recipes:
        recipes = [r for r in sorted((ROOT / "recipes").rglob("*.lua"))
                   if r.name != "shared.lua"  # what the recipes of a folder share
                   and (args.mode == "freeze" or file_of(args.folder, r, suffix).exists())]
    recipes = [r for r in recipes if r not in [o.resolve() for o in args.omitted]]
    renames = []
    if args.renames:
        renames = [line.split() for line in args.renames.read_text().splitlines()
                   if line and not line.startswith("#")]
    args.folder.mkdir(parents=True, exist_ok=True)
    equal = 0
    for recipe in recipes:
        file, name = file_of(args.folder, recipe, suffix), recipe.relative_to(ROOT)
        part = PARTS.get(str(recipe.relative_to(ROOT / "recipes").with_suffix("")))
        now, took = run(binary, recipe, args.mode != "golden",
                        ["--set", part] if part and args.mode == "golden" else [])
        if args.mode == "freeze":
            file.write_bytes(lzma.compress(json.dumps(now).encode(), preset=1))
            same = True
        elif args.mode == "compare":
            same = compare(json.loads(lzma.decompress(file.read_bytes())), now, renames, name)
        else:
            same = matches_golden(file, now, args.write, name)
        equal += same
        print(f"{name}: {'' if same else 'DIFFERENT, '}{len(now['plans'])} plans, "
              f"status {now['status']}, {took:.1f} s", flush=True)
    print(f"{equal} of {len(recipes)} recipes {'kept' if args.mode == 'freeze' else 'equal'}")
    return 0 if equal == len(recipes) and recipes else 1


if __name__ == "__main__":
    sys.exit(main())
