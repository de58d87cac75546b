#!/usr/bin/env python3
"""counts.py ROOT: how far the sources are from what is wanted of them; prints a line per count.

* op kinds: string literals that are the name of an op, outside engine/ops and engine/model. Code
  there asks for a property of OpDef, and makes ops of its constants. Literals that mean something
  else are listed in OTHER_NAMES.
* ops: definitions that MOE_OPS does not list, which nothing would find.
* types: those that two headers define under one name in one namespace.
* fields: those of a table of fields (engine/base/field.h) whose type, range or conversion is
  written once more: a field list of the Lua library that says their types again, or bindings that
  read or write their members by hand. Single fields have namesakes elsewhere, so two of one struct
  within NEAR lines are counted.
* folders: those with more than 36 source files or 4,500 lines; engine/ops has one file per op.
* functions: those of more than 50 lines, tables apart, by the indentation of clang-format.
* phrases: "rows a rank" for "rows per rank", in every text of the project.

--details lists what was counted.
"""
import re
import sys
from collections import Counter
from pathlib import Path

# Literals that are also the name of an op and mean something else there: an attribute, a field, a
# segment, a pass or its option, an op of the program.
OTHER_NAMES = {
    "bindings/api/calibrate.cpp": "all_reduce all_to_all",
    "bindings/api/dispatch.cpp": "combine dispatch",
    "bindings/api/graph.cpp": "split",
    "bindings/api/network.cpp": "all_to_all",
    "bindings/api/pipeline.cpp": "send",
    "bindings/policy/placed.cpp": "migrate",
    "bindings/api/plan.cpp": "gate",
    "bindings/api/run.cpp": "balance_loss z_loss",
    "bindings/policy/gate.cpp": "gate",
    "bindings/policy/graph_session.cpp": "gate",
    "bindings/policy/placement.cpp": "place",
    "bindings/plan_spec.cpp": "adamw all_reduce all_to_all balance_loss gate z_loss",
    "bindings/tables.cpp": "adamw all_reduce gate sgd",
    "engine/analysis/step_summary.cpp": "send",
    "engine/cluster/cluster.h": "all_reduce",
    "engine/comm/communicator.h": "all_gather all_reduce all_to_all reduce_scatter",
    "engine/dispatch/route.h": "combine dispatch",
    "engine/exec/device/ops.cpp": "gate",
    "engine/exec/results/gate_stats.cpp": "gate",
    "engine/profile/profiler.cpp": "gate",
    "engine/profile/predict.cpp": "gate",
    "engine/graph/graph.h": "combine dispatch gate",
    "engine/graph/row_use.cpp": "round",
    "engine/exec/results/run_result.h": "balance_loss z_loss",
    "engine/network/all_reduce.cpp": "all_reduce",
    "engine/network/closed_form.cpp": "all_reduce all_to_all",
    "engine/passes/partition/axes.cpp": "gate",
    "engine/passes/order/chunked.cpp": "all_reduce",
    "engine/passes/capacity/fastermoe_pipeline.cpp": "round",
    "engine/passes/device/fuse_gelu.cpp": "gelu round",
    "engine/passes/placement/lina_inference.cpp": "fine_tune place_expected slot_rows swap_in",
    "engine/passes/table.cpp": "all_reduce all_to_all split",
    "engine/passes/placement/place_experts.cpp": "place slot_rows split",
    "engine/passes/placement/place_updates.cpp": "commit migrate",
    "engine/routing/gates.cpp": "gate",
    "engine/timeline/metrics.h": "all_reduce",
    "engine/sim/routed_step.cpp": "round",
    "engine/cost/op_table.h": "all_gather all_reduce all_to_all combine dispatch "
        "reduce_scatter",
    "engine/cost/roofline.cpp": "place",
}
MAX_FILES, MAX_LINES, MAX_FUNCTION = 36, 4500, 50
PRODUCT = ("engine", "kernels", "bindings", "scripts")
SOURCES = {".h", ".cpp", ".cu", ".cuh", ".lua"}


def files_of(root, folders, suffixes):
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in suffixes and path.is_file():
                yield path.relative_to(root)


def op_kinds(root):
    names = set()
    for path in files_of(root, ("engine/ops",), {".cpp"}):
        names |= set(re.findall(r'\.name = "(\w+)"', (root / path).read_text()))
    assert len(names) > 40, "the ops' names are not found"
    for path in files_of(root, ("engine", "bindings"), {".h", ".cpp"}):
        if path.parts[:2] in {("engine", "ops"), ("engine", "model")}:
            continue
        for number, line in enumerate((root / path).read_text().splitlines(), 1):
            code = line.split("//")[0]
            for name in re.findall(r'"(\w+)"', code):
                if name in names and name not in OTHER_NAMES.get(path.as_posix(), "").split():
                    yield f'{path}:{number}: "{name}"'


ROW = re.compile(r'\bfield\(\s*"(\w+)",\s*&(\w+)::(\w+)')
NEAR = 6
# Two fields near each other that are of something else: a machine's file, a model, lines that were
# fitted, the gate's context, a routing's query, a gate, a number of a recipe.
NAMESAKES = {"scripts/moe/results/sensitivity.lua": "value",
             "scripts/moe/formats/machine.lua": "ranks", "scripts/moe/spec/model.lua": "z_loss",
             "bindings/api/calibrate.cpp": "memory", "bindings/api/gate.cpp": "layer",
             "bindings/api/routing.cpp": "k ep", "bindings/api/lina.cpp": "k",
             "scripts/moe/spec/policy.lua": "weight", "scripts/moe/spec/routing.lua": "k ep", "bindings/policy/gate.cpp": "k weight",
             "bindings/tables.cpp": "weight"}


def declared_in(line):
    """(name, member or None) of fields that a line declares or converts."""
    yield from ((name, None) for name in re.findall(r"\b(\w+) = \{ *type = \"", line))
    yield from re.findall(r'\{"(\w+)",[^}]*[.>](\w+)\b(?!\()', line)
    yield from ((name, member) for member, name in re.findall(r'[.>](\w+) = .*\("(\w+)"', line))


def fields_declared_twice(root):
    structs = {}
    for path in files_of(root, ("engine",), {".h"}):
        for name, struct, member in ROW.findall((root / path).read_text()):
            structs.setdefault(struct, {})[name] = member
    assert len(structs) > 8, "the tables of fields are not found"
    for path in files_of(root, ("scripts", "bindings"), {".lua", ".cpp", ".h"}):
        seen = {}  # struct -> (line, name) of the last field of it
        for number, line in enumerate((root / path).read_text().splitlines(), 1):
            for name, member in declared_in(line):
                for struct, fields in structs.items():
                    known = name in fields and name not in NAMESAKES.get(path.as_posix(), "").split()
                    if not known or member not in (None, fields[name]):
                        continue
                    last = seen.get(struct, (-NEAR, name))
                    if last[1] != name and number - last[0] < NEAR:
                        yield f"{path}:{number}: {name} of {struct}, after {last[1]}"
                    seen[struct] = (number, name)


def unlisted_ops(root):
    listed = set(re.findall(r"X\((\w+)\)", (root / "engine/ops/defs.h").read_text()))
    for path in files_of(root, ("engine/ops",), {".cpp"}):
        for name in re.findall(r"^const OpDef k(\w+)", (root / path).read_text(), re.M):
            if name not in listed:
                yield f"{path}: k{name} is not in MOE_OPS"


def types_of_one_name(root):
    """Types that two headers define in one namespace: the linker would take either for both."""
    places = {}
    for path in files_of(root, ("engine", "kernels", "bindings"), {".h"}):
        scope = []
        for line in (root / path).read_text().splitlines():
            opened = re.match(r"namespace ?([\w:]*) ?\{$", line)
            defined = re.match(r"(?:struct|class|enum class) (\w+)(?: [^<;]*)?\{", line)
            if opened:
                scope.append(opened[1])
            elif line.startswith("}  // namespace"):
                scope.pop()
            elif defined:
                places.setdefault("::".join(scope + [defined[1]]), set()).add(path.as_posix())
    for name, found in sorted(places.items()):
        if len(found) > 1:
            yield f"{name}: {', '.join(sorted(found))}"


def large_folders(root):
    files, lines = Counter(), Counter()
    for path in files_of(root, PRODUCT + ("recipes", "tests"), SOURCES | {".py"}):
        folder = path.parent.as_posix()
        if folder == "engine/ops":
            continue
        files[folder] += 1
        lines[folder] += len((root / path).read_text().splitlines())
    for folder in sorted(files):
        if files[folder] > MAX_FILES or lines[folder] > MAX_LINES:
            yield f"{folder}: {files[folder]} files, {lines[folder]} lines"


CPP_END = re.compile(r"^( *)\}")
NOT_A_FUNCTION = re.compile(r"^ *//|\b(namespace|struct|class|enum|union|extern)\b|= *\{$|\breturn\b")


def cpp_functions(lines):
    """(line, length, head) of what looks like a function: a line that ends with `{` at an indentation
    of 0 or 2 (in a class) up to the brace of the same indentation, with a parameter list."""
    for i, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if indent > 2 or not line.rstrip().endswith("{") or NOT_A_FUNCTION.search(line):
            continue
        head = i
        while head > 0 and "(" not in "".join(lines[head:i + 1]) and lines[head - 1].strip():
            head -= 1
        if "(" not in "".join(lines[head:i + 1]) or line.lstrip().startswith("}"):
            continue
        if re.match(r"\s*(if|for|while|switch|do|else|try|catch)\b", line):
            continue
        for j in range(i + 1, len(lines)):
            end = CPP_END.match(lines[j])
            if end and len(end[1]) == indent:
                yield head + 1, j - head + 1, lines[head].strip()
                break


def lua_functions(lines):
    for i, line in enumerate(lines):
        starts = re.match(r"(local )?function\b|(\w+[.\w]* = )function\b", line)
        if not starts or line.rstrip().endswith(" end"):
            continue
        for j in range(i + 1, len(lines)):
            if lines[j].startswith("end"):
                yield i + 1, j - i + 1, line.strip()
                break


def is_table(lines):
    """Most of the lines are rows or calls that add one."""
    rows = sum(line.lstrip().startswith(("{", '"')) or line.endswith(",") for line in lines)
    return rows > len(lines) / 2


def long_functions(root):
    for path in files_of(root, PRODUCT, SOURCES):
        lines = (root / path).read_text().splitlines()
        functions = lua_functions(lines) if path.suffix == ".lua" else cpp_functions(lines)
        for number, length, head in functions:
            if length > MAX_FUNCTION and not is_table(lines[number:number + length]):
                yield f"{path}:{number}: {length} lines: {head[:60]}"


# What is counted per unit: a plural, or a number or an article with one word that is no preposition
# and no verb.
NO_NOUN = "of|in|on|at|by|for|from|with|over|within|inside|without|to|as|than|is|has|was|where|when|take"
COUNTED = (r"(?:rows|slots|bytes|experts|choices|tokens|files|elements|members|ms|ns|us|floats|peers|"
           r"products|ops|devices|ranks|blocks|lanes|numbers|entries|residents|copies|shadows|parts|"
           r"chunks|rounds|values|words|threads|streams|warps|columns|heads|layers|GPUs|NICs|nodes|"
           r"batches|steps|samples|transfers|messages|calls|collectives|gradients|weights|parameters|"
           r"sources|links|pairs|buffers|(?:milli|micro|nano)?seconds|flops|[KMG]i?B|once|twice|bias|"
           r"(?:one|two|three|\d+|an?) (?!(?:%s)\b)[\w-]+)" % NO_NOUN)
UNITS = (r"(?:rank|device|GPU|node|expert|layer|step|token|op|lane|process|tensor|row|head|parameter|"
         r"group|batch|collective|transfer|pair|thread|gradient|iteration|second|block|link|choice|"
         r"slot|part|chunk|point|turn|byte|element|column|stream|warp|machine|NIC|peer|member|source|"
         r"destination|matrix|bucket|round|entry|direction|count|message)")
PHRASE = re.compile(r"\b%s an? %s\b" % (COUNTED, UNITS))
TEXTS = SOURCES | {".md", ".py", ".sh"}


def phrases(root):
    for path in (Path("README.md"), *files_of(root, PRODUCT + ("recipes", "tests"), TEXTS)):
        if path.name == "counts.py":
            continue
        text = re.sub(r"\n *(?://+|--+|#|\*)? *", "\n", (root / path).read_text(errors="replace"))
        for found in PHRASE.finditer(text.replace("\n", " ")):
            yield f"{path}:{text.count(chr(10), 0, found.start()) + 1}: {found[0]}"


COUNTS = (("literals of op kinds", op_kinds), ("ops that are not listed", unlisted_ops),
          ("fields declared twice", fields_declared_twice),
          ("types of one name", types_of_one_name), ("large folders", large_folders),
          ("functions over 50 lines", long_functions), ("phrases such as 'rows a rank'", phrases))


def main():
    details = "--details" in sys.argv
    root = Path(next(a for a in sys.argv[1:] if not a.startswith("--")))
    for what, find in COUNTS:
        found = list(find(root))
        print(f"{what}: {len(found)}")
        if details:
            print("\n".join("  " + line for line in found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
