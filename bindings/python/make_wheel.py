#!/usr/bin/env python3
"""make_wheel.py [--build FOLDER] [--to FOLDER]: makes the wheel moebench-VERSION-...whl of a build.

The wheel holds the module, the program with its Lua library and recipes (what `cmake --install`
installs), and the shared libraries that the program needs, except those of the C library (glibc),
whose version the wheel's tag names; of pandas pip takes care. Needs: a build of the target
moebench, cmake, ldd, patchelf and Python's wheel (Debian's patchelf and python3-wheel). The user of the wheel needs Python and pip.
Jobs of several processes under MPI need a build on the machine itself.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Of the C library, and of the dynamic linker: never taken along.
SYSTEM = re.compile(r"^(ld-linux.*|lib(c|m|dl|rt|pthread|util|resolv|nsl|anl|mvec))\.so")
LATER = ["libopenblas.so.0"]  # which the program loads when it needs them
METADATA = """Metadata-Version: 2.1
Name: moebench
Version: {version}
Summary: A workbench for Mixture-of-Experts training systems: plans, simulates and executes
License: Apache-2.0
Requires-Python: >=3.9
Requires-Dist: pandas
"""
WHEEL = """Wheel-Version: 1.0
Generator: moebench make_wheel.py
Root-Is-Purelib: false
Tag: {tag}
"""


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def libraries_of(program):
    """The files of the shared libraries that a program or library loads, by name, glibc's left
    out."""
    found = {}
    for name, path in re.findall(r"(\S+) => (\S+)", output("ldd", program)):
        if path == "not":
            raise SystemExit(f"{program}: the library {name} is not installed")
        if not SYSTEM.match(name):
            found[name] = Path(path).resolve()
    return found


def fill(folder, build):
    """Puts the package into the folder."""
    subprocess.run(["cmake", "--install", build, "--prefix", folder, "--strip"], check=True,
                   stdout=subprocess.DEVNULL)
    shutil.copy(ROOT / "bindings/python/moebench.py", folder / "__init__.py")
    shutil.copy(ROOT / "LICENSE", folder)
    (folder / "lib").mkdir(exist_ok=True)
    needed = libraries_of(folder / "bin/moebench")
    for name in LATER:
        path = re.search(rf"{re.escape(name)} .*=> (\S+)", output("/sbin/ldconfig", "-p"))
        if not path:
            raise SystemExit(f"the library {name} is not installed")
        needed |= {name: Path(path.group(1)).resolve(), **libraries_of(path.group(1))}
    for name, path in needed.items():
        shutil.copy(path, folder / "lib" / name)
        os.chmod(folder / "lib" / name, 0o755)
        output("patchelf", "--set-rpath", "$ORIGIN", folder / "lib" / name)
    output("patchelf", "--set-rpath", "$ORIGIN/../lib", folder / "bin/moebench")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("--to", type=Path, default=ROOT / "build")
    given = parser.parse_args()
    version = re.search(r"project\(moebench VERSION (\S+)",
                        (ROOT / "CMakeLists.txt").read_text()).group(1)
    libc = os.confstr("CS_GNU_LIBC_VERSION").split()[1].replace(".", "_")
    tag = f"py3-none-manylinux_{libc}_{os.uname().machine}"
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder) / "moebench", given.build)
        info = Path(folder) / f"moebench-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(METADATA.format(version=version))
        (info / "WHEEL").write_text(WHEEL.format(tag=tag))
        subprocess.run([sys.executable, "-m", "wheel", "pack", folder, "-d", given.to], check=True)


if __name__ == "__main__":
    main()
