#!/usr/bin/env python3
"""notebook_test.py NOTEBOOK: runs a notebook from top to bottom in this Python, where the wheel,
nbclient and ipykernel are installed, and checks what its cells show. It is no test of ctest, since
it needs packages from PyPI:

  python3 -m venv env; env/bin/pip install WHEEL nbclient ipykernel
  env/bin/python tests/front/notebook_test.py recipes/notebook.ipynb
"""
import os
import shutil
import sys

import nbclient
import nbformat

SHOWN = ["iteration_ms</th>", "<svg", "dropped_choices", "(", "plan 2 "]


def main():
    if shutil.which("g++") or os.environ.get("MOEBENCH"):
        print("note: a compiler or a build is on this machine, too")
    notebook = nbformat.read(sys.argv[1], as_version=4)
    nbclient.NotebookClient(notebook, timeout=300).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(cells) == len(SHOWN), "a cell has no line in SHOWN"
    for cell, wanted in zip(cells, SHOWN):
        texts = [text for out in cell.outputs
                 for text in [out.get("text", ""), *out.get("data", {}).values()]]
        assert any(wanted in text for text in texts), f"{cell.source}\nshows no {wanted}: {texts}"
    print(f"{len(cells)} cells ran; sweep, picture, policy, search and error are as they must be")


if __name__ == "__main__":
    main()
