#!/usr/bin/env python3
"""style.py CHECK ROOT: one check of the sources; prints what breaks it.

Status 0: kept, 1: broken, 77: the tool that it needs is not here.
"""
import counts
import re
import shutil
import subprocess
import sys
from pathlib import Path

SKIPPED = 77
MAX_COLUMNS = 100
LONG_FILE = 450  # lines

# Which folder of engine/ may include which; itself and base always. Downwards only.
KERNELS = "kernels"
BELOW_PASSES = {"cluster", "dispatch", "graph", "routing", "placement", "ops", "model", "network", "cost",
                "schedule", "timeline", "replay"}
PLAN_HOLDS = BELOW_PASSES | {"passes", "pipeline", "plan"}
MAY_INCLUDE = {
    "base": set(),
    "cluster": set(),
    "pipeline": set(),
    "dispatch": set(),
    "graph": set(),
    "routing": {KERNELS},
    "placement": {"routing", "cluster"},
    "ops": {"graph", "routing", "placement", KERNELS},
    "model": {"graph", "ops", "routing"},
    "network": {"cluster"},
    "cost": {"graph", "cluster", "network", "dispatch"},
    "schedule": {"graph", "cluster", "cost", "pipeline"},
    "timeline": {"graph"},
    "replay": {"schedule", "graph", "cost", "network", "routing", "placement", "timeline"},
    "passes": BELOW_PASSES,
    "plan": PLAN_HOLDS,
    "comm": {"network", "cluster"},
    "exec": PLAN_HOLDS | {"comm", KERNELS},
    "profile": PLAN_HOLDS | {"comm", "exec", KERNELS},
    "analysis": PLAN_HOLDS,
    "sim": PLAN_HOLDS,
    "run": {"plan", "exec", "sim"},
    KERNELS: set(),
}
# The interface that every executor, the simulator among them, implements.
MAY_INCLUDE_HEADER = {("sim", "engine/exec/executor.h"), ("analysis", "engine/exec/executor.h")}
# What keeps Lua and CUDA out of the engine, and slow headers out of headers.
FOREIGN_IN_ENGINE = re.compile(r"^(lua|lauxlib|CLI/)")
FOREIGN_IN_HEADERS = re.compile(r"^(cuda|cublas|cudnn|nccl|mpi\.h|sqlite3|nlohmann/json\.hpp)")


def layer_of(path):
    """'cost' for engine/cost/x.h, 'plan' for engine/plan.h, 'kernels', 'bindings', 'tests'."""
    parts = Path(path).parts
    return Path(parts[1]).stem if parts[0] == "engine" else parts[0]


def include_fault(path, target, quoted):
    """Why the file at `path` may not include `target`, or None."""
    layer = layer_of(path)
    if not quoted:
        if path.startswith("engine/") and FOREIGN_IN_ENGINE.match(target):
            return "Lua and the command line belong to bindings/"
        if path.startswith("engine/") and path.endswith(".h") and FOREIGN_IN_HEADERS.match(target):
            return "belongs in a source file, not in a header"
        return None
    other = layer_of(target)
    if layer == "tests" or other == layer:
        return None
    if other in ("tests", "bindings"):
        return f"nothing includes {other}/"
    if layer == "bindings":
        return None
    if layer not in MAY_INCLUDE or other not in MAY_INCLUDE:
        return f"the list of {Path(__file__).name} does not know '{layer}' or '{other}'"
    if other in MAY_INCLUDE[layer] or (layer, target) in MAY_INCLUDE_HEADER:
        return None
    if other == "base" and layer != KERNELS:
        return None
    return f"{layer} may include {', '.join(sorted(MAY_INCLUDE[layer] | {'base'}))}"


def sources(root, folders, suffixes):
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in suffixes and path.is_file():
                yield path


def cpp_sources(root):
    return sources(root, ("engine", "kernels", "bindings", "tests"), {".h", ".cpp", ".cu", ".cuh"})


def matches(root, files, pattern):
    for path in files:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if match := re.match(pattern, line):
                yield path.relative_to(root).as_posix(), number, match


def check_includes(root):
    # The check itself first: an edge up, one sideways, one down.
    assert include_fault("engine/graph/x.cpp", "engine/cost/cost_model.h", True)
    assert include_fault("kernels/cpu/x.cpp", "engine/base/errors.h", True)
    assert not include_fault("engine/cost/x.cpp", "engine/graph/graph.h", True)
    faults = []
    for path, number, match in matches(root, cpp_sources(root), r'\s*#\s*include\s*([<"])([^>"]+)'):
        quoted, target = match[1] == '"', match[2]
        if quoted and not (root / target).is_file():
            faults.append(f"{path}:{number}: {target}: no such file from the root of the project")
        elif fault := include_fault(path, target, quoted):
            faults.append(f"{path}:{number}: {target}: {fault}")
    return faults


def check_requires(root):
    recipes = sources(root, ("recipes",), {".lua"})
    return [f"{path}:{number}: a recipe requires only 'moe' and files beside it, not '{match[1]}'"
            for path, number, match in
            matches(root, recipes, r""".*\brequire\s*\(?\s*["']([^"']+)["']""")
            if match[1] != "moe" and not (root / path).with_name(match[1] + ".lua").exists()]


def run_tool(command, files):
    if not shutil.which(command[0]):
        print(f"skipped: {command[0]} is not installed")
        sys.exit(SKIPPED)
    files = [str(path) for path in files]
    if not files:
        return []
    result = subprocess.run(command + files, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            text=True, check=False)
    return [result.stdout] if result.returncode else []


def check_format(root):
    """clang-format as Debian 12 has it (the version decides the format), and the columns."""
    tool = "clang-format-14" if shutil.which("clang-format-14") else "clang-format"
    if shutil.which(tool):
        version = subprocess.run([tool, "--version"], capture_output=True, text=True, check=True)
        if " 14." not in version.stdout:
            print(f"skipped: clang-format 14 wanted, here is {version.stdout.strip()}")
            sys.exit(SKIPPED)
    long_lines = [f"{path}:{number}: more than {MAX_COLUMNS} columns" for path, number, _ in
                  matches(root, cpp_sources(root), r".{%d}" % (MAX_COLUMNS + 1))]
    return long_lines + run_tool([tool, "--dry-run", "-Werror"], cpp_sources(root))


def check_lua(root):
    files = sources(root, ("scripts/moe", "recipes", "tests"), {".lua"})
    config = ["--config", str(root / ".luacheckrc"), "--no-color", "--quiet"]
    return run_tool(["luacheck"] + config, files)


def check_shell(root):
    files = list(sources(root, ("scripts", "tests"), {".sh"})) + [root / ".ci" / "run"]
    return run_tool(["shellcheck", "-x", "--source-path", str(root)], files)


def heading_anchor(heading):
    return re.sub(r"[^\w -]", "", heading.strip().lower()).replace(" ", "-")


def dead_links(root):
    """Links of documents to files or headings that are not there."""
    for path in (root / "README.md", *root.glob("[a-z]*/**/*.md")):
        if "build" in path.parts:
            continue
        for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
            name, _, anchor = target.partition("#")
            place = path.parent / name if name else path
            if target.startswith("http"):
                continue
            if not place.exists():
                yield f"{path.relative_to(root)}: {target} is not there"
            elif anchor and anchor not in map(
                    heading_anchor, re.findall(r"^#+ (.*)$", place.read_text(), re.M)):
                yield f"{path.relative_to(root)}: {target} has no such heading"


def check_readme(root):
    """The simulated rows of the README's first table are what lancet_gpt2 prints, and links of all
    documents lead somewhere."""
    block = re.search(r"^```\n(.*?)^Executed on", (root / "README.md").read_text(), re.S | re.M)
    if not block:
        return ["README.md: has no table that ends before 'Executed on'"]
    golden = root / "tests" / "recipes" / "golden" / "lancet_gpt2.txt"
    printed = set(golden.read_text().splitlines())
    return [f"README.md: not in {golden.name}: {line}" for line in block[1].splitlines()
            if line not in printed] + list(dead_links(root))


def check_counts(root):
    """What counts.py counts is not there."""
    return [f"{what}: {place} (see counts.py)" for what, find in counts.COUNTS
            for place in find(root)]


CODE = {".h", ".cpp", ".cu", ".cuh", ".lua", ".py", ".sh"}
CEILINGS = Path("tests/style/ceilings.txt")


def lines_by_folder(root):
    """Lines of code of each folder of the product and of the tests; data files do not count."""
    lines = {}
    for path in counts.files_of(root, counts.PRODUCT + ("recipes", "tests"), CODE | {".txt"}):
        if path.suffix == ".txt" and path.name != "CMakeLists.txt":
            continue
        depth = 3 if path.parts[:2] == ("scripts", "moe") else 2
        folder = "/".join(path.parts[:-1][:depth])
        lines[folder] = lines.get(folder, 0) + len((root / path).read_text().splitlines())
    for total, is_tests in (("product", False), ("all tests", True)):
        lines[total] = sum(n for folder, n in lines.items()
                           if folder not in ("product", "all tests")
                           and folder.startswith("tests") == is_tests)
    return lines


def check_budget(root):
    """No folder has more lines than its ceiling. A commit that needs more raises the ceiling and
    writes the reason behind it."""
    ceilings, faults = {}, []
    for number, line in enumerate((root / CEILINGS).read_text().splitlines(), 1):
        row = re.fullmatch(r"([\w/ ]+?) +(\d+)(?:  .+)?", line)
        if row:
            ceilings[row[1]] = int(row[2])
        elif line and not line.startswith("#"):
            faults.append(f"{CEILINGS}:{number}: give 'FOLDER LINES  REASON'")
    have = lines_by_folder(root)
    for folder, lines in have.items():
        ceiling = ceilings.pop(folder, None)
        print(f"{lines:7} of {ceiling or '-':>7}  {folder}")
        if ceiling is None:
            faults.append(f"{folder} has no ceiling in {CEILINGS}")
        elif lines > ceiling:
            faults.append(f"{folder} has {lines} lines, more than its ceiling of {ceiling}; remove "
                          f"lines, or raise it in {CEILINGS} with the reason")
    faults += [f"{CEILINGS}: there is no folder '{folder}'" for folder in ceilings]
    for path in counts.files_of(root, counts.PRODUCT + ("recipes", "tests"), CODE):
        if (lines := len((root / path).read_text().splitlines())) > LONG_FILE:
            print(f"{path} has {lines} lines, more than {LONG_FILE}")
    return faults


def main():
    checks = {"includes": check_includes, "requires": check_requires, "format": check_format,
              "lua": check_lua, "shell": check_shell, "readme": check_readme, "counts": check_counts,
              "budget": check_budget}
    if len(sys.argv) != 3 or sys.argv[1] not in checks:
        print(f"usage: {sys.argv[0]} {'|'.join(checks)} ROOT", file=sys.stderr)
        return 2
    faults = checks[sys.argv[1]](Path(sys.argv[2]))
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
