#!/usr/bin/env python3
"""spills.py NVCC ROOT: compiles every kernel of kernels/cuda for sm_90a, warnings as errors, and
refuses one that spills registers or keeps an array on the stack. Nothing is run.

Status 0: kept, 1: broken.
"""
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ENTRY = re.compile(r"Compiling entry function '(\w+)'")
MEMORY = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
WORKERS = 2


def faults_of(listing):
    """The kernels of a listing of ptxas, and those among them that use local memory."""
    kernels, faults = [], []
    for line in listing.splitlines():
        if match := ENTRY.search(line):
            kernels.append(match[1])
        elif (match := MEMORY.search(line)) and any(int(size) for size in match.groups()):
            faults.append(f"{kernels[-1] if kernels else '?'}: {line.strip()}")
    return kernels, faults


def compile_one(nvcc, root, source, folder):
    command = [nvcc, "-std=c++20", "-arch=sm_90a", "-cubin", "-I", str(root), "-Werror",
               "all-warnings", "-Xptxas", "-v", "-o", str(Path(folder) / (source.stem + ".cubin")),
               str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    listing = done.stdout + done.stderr
    if done.returncode:
        return 0, [f"{source.name}: does not compile", listing]
    kernels, faults = faults_of(listing)
    return len(kernels), [f"{source.name}: {fault}" for fault in faults]


def main():
    # The check itself first.
    spilled = ("Compiling entry function '_Z1kv' for 'sm_90a'\n"
               "    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads\n")
    assert faults_of(spilled)[1] and not faults_of(re.sub(r"\d bytes", "0 bytes", spilled))[1]
    nvcc, root = sys.argv[1], Path(sys.argv[2])
    sources = sorted((root / "kernels" / "cuda").rglob("*.cu"))
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(WORKERS) as pool:
        results = list(pool.map(lambda s: compile_one(nvcc, root, s, folder), sources))
    faults = [fault for _, some in results for fault in some]
    print("\n".join(faults))
    print(f"{sum(count for count, _ in results)} kernels of {len(sources)} files compiled, none run")
    return 1 if faults or not sources else 0


if __name__ == "__main__":
    sys.exit(main())
