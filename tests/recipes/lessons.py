#!/usr/bin/env python3
"""Runs the recipes of recipes/lessons and recipes/course and compares what they print with what
the lessons' README shows and course.md, beside this file, which has the answers.

  lessons.py --binary build/release/moebench [--mpi] [--write]

Each command of a ```sh block that a ```text block follows runs in a copy of the folder, in the
file's order, as from a fresh clone: the cache of measured times and the output folder are empty.
All lines are compared literally but these:

* rows of executed times: a number of the right form is enough, as they depend on the machine; the
  system's name and the peak of memory stay, and so do losses and drops, which are the same on all
  kernel sets at the digits shown;
* digests of parameters, which depend on the kernel set. Commands of one block must print the same.

Every lesson and exercise must have a command there with the time that it takes, which its own
header has too. --write puts what is printed into the files. --mpi: mpirun is there and the program uses it.
Status 1 where something differs.
"""

import argparse
import difflib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Of each folder the file with its commands and what they print.
SHOWN = {pathlib.Path("recipes/lessons"): ROOT / "recipes/lessons/README.md",
         pathlib.Path("recipes/course"): ROOT / "tests/recipes/course.md"}

BLOCK = re.compile(r"^```sh\n(.*?)^```\n+```text\n(.*?)^```$", re.S | re.M)
NUMBER = r"-?[\d.]+"
DIFFERENCE = rf"(?:-|{NUMBER}(?: \({NUMBER}\.\.{NUMBER}\))?(?: ~)?)"
TIMES = re.compile(rf"(?P<name>\S.*?)  +{NUMBER}  +{NUMBER}\.\.{NUMBER}(?: !)?  +{DIFFERENCE}"
                   rf"  +{NUMBER}(?: \+-{NUMBER}%)?  +[+-]{NUMBER}%(?: \?)?"
                   rf"(?:  +{NUMBER}){{4}}  +(?P<peak>{NUMBER})")
NOISE = ("! a spread above", "? ")  # lines of a busy machine
BUSY = "Nothing in this table but its memory can be trusted"  # the same, above a table
MEASURED = re.compile(rf"(over \d+ runs: |Compute took ){NUMBER}%?")
DIGEST = re.compile(r"\b[0-9a-f]{16}\b")


def masked(text):
    """The lines of a lesson's output without what differs between machines."""
    lines, times = [], False
    for line in text.splitlines():
        times = bool(line) and (times or line.startswith("system ") and " spread " in line)
        row = TIMES.fullmatch(line) if times else None
        if line.startswith(BUSY) or times and line.startswith(NOISE):
            continue
        if row:
            line = f"{row['name']} TIMES {row['peak']}"
        elif times:
            line = " ".join(MEASURED.sub(r"\1MEASURED", line).split())
        lines.append(DIGEST.sub("DIGEST", line))
    return lines


def commands_of(block):
    """(command, time) of each line of a ```sh block."""
    for line in block.splitlines():
        command, _, takes = line.partition("#")
        yield " ".join(command.split()), takes.strip()


def run(command, folder):
    """What it prints, or None; the failure is printed."""
    environment = os.environ | {
        "XDG_CACHE_HOME": str(folder / "cache"), "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
    ran = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True,
                         text=True, env=environment)
    if ran.returncode == 0:
        return ran.stdout
    print(f"status {ran.returncode}\n{ran.stdout}{ran.stderr}")
    return None


def differences(wanted, outputs):
    """Lines of a block that are not as printed by one of its commands."""
    for output in outputs:
        if found := list(difflib.unified_diff(masked(wanted), masked(output), "shown",
                                              "printed", lineterm="", n=0)):
            return found
    return ["the commands print different digests"] if len(set(outputs)) > 1 else []


def headers_without(folder, readme):
    """Lessons that the file does not run, or whose header says it otherwise."""
    commands = [c for block in BLOCK.finditer(readme) for c in commands_of(block[1])]
    for lesson in sorted((ROOT / folder).glob("[0-9][0-9]_*")):
        head = lesson.read_text().split("import " if lesson.suffix == ".py" else "require")[0]
        head = " ".join(re.sub(r"^--", "", head, flags=re.M).split())
        own = [f"{c} ({takes})" for c, takes in commands
               if takes and str(folder / lesson.name) in c]
        if not own:
            yield f"{lesson.name}: no command with its time and output is shown"
        for wanted in own:
            if wanted not in head:
                yield f"{lesson.name}: its header does not say: {wanted}"


def compare_all(readme, folder, with_mpi):
    """Runs every block; returns the file with what was printed, and whether all is equal."""
    equal, written, at = True, "", 0
    for block in BLOCK.finditer(readme):
        outputs = []
        for command, _ in commands_of(block[1]):
            if command.startswith("mpirun") and not with_mpi:
                print(f"skipped without MPI: {command}")
                continue
            begin = time.monotonic()
            output = run(command, folder)
            print(f"{time.monotonic() - begin:5.1f} s  {command}", flush=True)
            equal = equal and output is not None
            outputs += [output] if output is not None else []
        if found := differences(block[2], outputs):
            equal = False
            print("\n".join("    " + line for line in found))
        written += readme[at:block.start(2)] + (outputs[0] if outputs else block[2])
        at = block.end(2)
    return written + readme[at:], equal


def hold(folder, args):
    """Whether the recipes of a folder print what its file shows, and say how they are run."""
    file = SHOWN[folder]
    readme = file.read_text()
    faults = list(headers_without(folder, readme))
    print("\n".join(faults), end="\n" if faults else "")
    with tempfile.TemporaryDirectory() as name:
        place = pathlib.Path(name)
        shutil.copytree(ROOT / folder, place / folder)
        (place / "build/release").mkdir(parents=True)
        (place / "build/release/moebench").symlink_to(args.binary.resolve())
        written, equal = compare_all(readme, place, args.mpi)
    if args.write:
        file.write_text(written)
    return equal and not faults


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", required=True, type=pathlib.Path)
    parser.add_argument("--mpi", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--folder", choices=[f.name for f in SHOWN], help="default: all")
    args = parser.parse_args()
    held = [hold(f, args) for f in SHOWN if args.folder in (None, f.name)]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
