#!/usr/bin/env python3
"""make_wheel.py [--build FOLDER] [--to FOLDER]: makes the wheel moebench-VERSION-...whl of a build.

The wheel holds the module, the program with its Lua library and recipes (what `cmake --install`
installs), and the shared libraries that the program needs, except those of the C library (glibc),
whose version the wheel's tag names; of pandas pip takes care. Needs: a build of the target
moebench, cmake, ldd and patchelf (Debian's package). The user of the wheel needs Python and pip.
Jobs of several processes under MPI need a build on the machine itself.
"""
import argparse
import base64
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import zipfile
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


def pack(folder, wheel, version, tag):
    """Writes the files of the folder, and what a wheel says of itself, into the file `wheel`."""
    info, records = f"moebench-{version}.dist-info", []
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        def add(name, data, mode=0o644):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr, entry.compress_type = (0o100000 | mode) << 16, zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            records.append(f"{name},sha256={digest},{len(data)}\n")

        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            add(f"moebench/{path.relative_to(folder)}", path.read_bytes(),
                path.stat().st_mode & 0o777)
        add(f"{info}/METADATA", METADATA.format(version=version).encode())
        add(f"{info}/WHEEL", WHEEL.format(tag=tag).encode())
        add(f"{info}/RECORD", ("".join(records) + f"{info}/RECORD,,\n").encode())


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
        fill(Path(folder), given.build)
        given.to.mkdir(parents=True, exist_ok=True)
        wheel = given.to / f"moebench-{version}-{tag}.whl"
        pack(Path(folder), wheel, version, tag)
    print(wheel)


if __name__ == "__main__":
    main()
