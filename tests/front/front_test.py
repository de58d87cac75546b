#!/usr/bin/env python3
"""front_test.py BINARY [--interrupts COUNT SEED]: sessions through the module for Python, the
prompt, --json, and parts of sweeps. Every check holds for all of some cases, or compares with what
the program does alone."""
import csv
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BINARY = str(Path(sys.argv[1]).resolve())
sys.path.insert(0, str(ROOT / "bindings/python"))
import moebench  # noqa: E402

TINY = """{ vocab = 256, layers = 2, hidden = 32, heads = 4, seq = 16, batch_per_device = 2,
  experts_per_device = 2, gate = %s }"""
PLAN = f"""moe.plan {{ model = moe.model.gpt2_moe {TINY % "'switch'"},
  cluster = moe.cluster.p4de {{ nodes = 2 }}, system = moe.system "lancet" {{}} }}"""
SWEEP = """local moe = require "moe"
local first = moe.policy.schedule { name = "first", apply = function(s, g) end }
return moe.experiment { name = "sweep", over = { nodes = { 1, 2, 4 }, batch = { 1, 2, 3, 4, 5 } },
  case = function(p) return p.nodes * p.batch ~= 8 and {
    model = moe.model.gpt2_moe { layers = 2, hidden = 256, heads = 4, seq = 128, vocab = 512,
      batch_per_device = p.batch, experts_per_device = 2 },
    cluster = moe.cluster.p4de { nodes = p.nodes },
    systems = { moe.system "raf" {}, moe.system "mine" { first {} } } } end }
"""


def program(*arguments, **more):
    return subprocess.run([BINARY, *arguments], capture_output=True, text=True, **more)


def test_values(session):
    """A value comes as it is, and a plan as the program alone makes it."""
    for text, value in [("1 + 1", 2), ("nil", None), ("{ 1, { a = 'b' } }", [1, {"a": "b"}]),
                        ("return 1, true", (1, True)), ("x = 5", None), ("x", 5), ("0 / 0", None),
                        ("{ 1, x = 2 }", {"1": 1, "x": 2}), ("print", None), ("'\\255'", "\\xff")]:
        assert session.eval(text) == value, text
    alone = program("run", "-", input=f'local moe = require "moe" print({PLAN}:info().hash)').stdout
    for _ in range(2):
        assert session.eval(f"return {PLAN}:info()")["hash"] == alone.strip()


def test_errors(session):
    """An error has the line of its text, wherever that is, and leaves the session as it was."""
    for before in range(3):
        for bad, line in [("moe.model.gpt2_moe {\n layer = 2 }", 2), ("nothing.here", 1),
                          ("for", 1), ("error 'no'", 1), ("moe.plan { model = 3 }", 1)]:
            try:
                session.eval("local a\n" * before + "local b = " + bad, name="cell")
            except moebench.Error as error:
                assert (error.source, error.line) == ("cell", before + line), (bad, str(error))
            else:
                raise AssertionError(bad)
    assert session.eval("x") == 5


def test_policy(session):
    """A gate of an earlier text chooses on ranks that evaluate the session again."""
    session.eval("""mine = moe.policy.gate { name = "mine", scope = "batch", weight = "one", k = 1,
      route = function(ctx, s) for t = 1, ctx.tokens do ctx:take(t, 2) end end }""")
    result = session.eval(f"""return moe.train {{ model = moe.model.gpt2_moe {TINY % "mine {}"},
      ranks = 2, steps = 1 }}""")
    assert [load > 0 for load in result["moe"][0][0]["load"]] == [False, True, False, False]


TRAIN = f"moe.train {{ model = moe.model.gpt2_moe {TINY % '%s'}, ranks = 2, steps = 1e8 }}"
ENDLESS = {"loop": "while true do end", "train": TRAIN % "mine {}",
           "caught": "while true do pcall(function() while true do end end) end",
           "plans": f"while true do {PLAN} end", "run": None,
           "search": f"""moe.search {{ model = moe.model.gpt2_moe {TINY % "'switch'"},
             cluster = moe.cluster.p4de {{ nodes = 2 }}, budget_s = 1e4 }}"""}
MOST_S = 10  # on a busy host; on a quiet one it is a second at most


def interrupt(session, kind, delay):
    """Interrupts an endless request `delay` seconds after it is sent; returns how long it took to
    end from then on."""
    begin = []

    def signal_python():
        begin.append(time.time())
        os.kill(os.getpid(), signal.SIGINT)
    timer = threading.Timer(delay, signal_python)
    try:
        timer.start()
        if ENDLESS[kind]:
            session.eval(ENDLESS[kind])
        else:
            session.run(text=f'local moe = require "moe"\n{TRAIN % "nil"}')
    except KeyboardInterrupt as error:  # a plain one came before the request was sent
        assert "interrupted" in str(error) or type(error) is KeyboardInterrupt, (kind, error)
    else:
        raise AssertionError(kind)
    end = time.time()
    timer.join()
    return end - begin[0]


def test_interrupts(session, count, seed):
    """A request of any kind ends when it is interrupted at any time, the session goes on, and one
    at which nothing runs is ignored."""
    draw, took = random.Random(seed), {}
    for i in range(count):
        kind = list(ENDLESS)[i % len(ENDLESS)]
        delay = (0, 0.02, 0.3, 1.5)[i // len(ENDLESS) % 4] * draw.random()
        seconds = interrupt(session, kind, delay)
        assert seconds < MOST_S, (kind, delay, seconds)
        took.setdefault(kind, []).append(seconds)
        if i % 3 == 0:
            session._process.send_signal(signal.SIGINT)
        assert session.eval("x") == 5, (kind, delay)
    for kind, times in took.items():
        print(f"{kind}: {len(times)} interrupts, median {sorted(times)[len(times) // 2]:.2f} s, "
              f"at most {max(times):.2f} s")


def without_times(folder):
    data = json.loads((Path(folder) / "results.json").read_text())
    for run in data["runs"]:
        del run["plan_ms"], run["simulate_ms"]
    traces = {run["trace"]: (Path(folder) / run["trace"]).read_text()
              for run in data["runs"] if "trace" in run}
    return data["runs"], data["experiments"][0]["over"], traces


def run_parts(parts, name, *settings):
    """Runs all parts of the sweep; returns their folders and the command that merges them."""
    folders = [f"{name}.{k}" for k in range(1, parts + 1)]
    for k, folder in enumerate(folders, 1):
        done = program("merge", *folders, "--out", "early")
        assert done.returncode == 1 and not Path("early/results.json").exists()
        run = program("run", "sweep.lua", "--points", f"{k}/{parts}", "--out", folder, "--cache",
                      folder + ".sqlite", *settings)
        assert run.returncode == 0, run.stderr
    merged = program("merge", *reversed(folders), "--out", f"{name}.all", "--caches",
                     *[folder + ".sqlite" for folder in folders], "--cache", f"{name}.all.sqlite")
    assert merged.returncode == 0, merged.stderr
    return f"{name}.all"


def test_parts(session):
    """The merged parts of a sweep are what one run gives, however many there are, also more than
    points."""
    Path("sweep.lua").write_text(SWEEP)
    whole = session.run("sweep.lua", out="whole")
    assert len(whole.data["runs"]) == 2 * 13
    for parts in (1, 2, 3):
        merged = run_parts(parts, f"part{parts}")
        assert without_times(merged) == without_times("whole")
        again = program("run", "sweep.lua", "--out", "again", "--cache", merged + ".sqlite")
        assert "26 of 26 simulations were done before" in again.stdout, again.stdout
    few = ["--set", "nodes=1", "--set", "batch=1,2"]
    assert program("run", "sweep.lua", "--out", "few", *few).returncode == 0
    assert without_times(run_parts(3, "more", *few)) == without_times("few")
    twice = program("merge", "part2.1", "part2.1", "--out", "early")
    assert "are the same part" in twice.stderr, twice.stderr


def test_numbers():
    """The numbers of an export are those of the results, to the last bit."""
    assert program("export", "whole").returncode == 0
    runs = json.loads(Path("whole/results.json").read_text())["runs"]
    with open("whole/figures/sweep-runs.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(runs)
    for row, run in zip(rows, runs):
        numbers = [name for name in row if isinstance(run.get(name), float)]
        assert "iteration_ms" in numbers
        for name in numbers:
            assert float(row[name]) == run[name], (name, row[name], run[name])


def test_end():
    """A session ends and leaves no folder, also with a request at work, when its input is over, its
    reader is gone or it gets SIGTERM."""
    for ends in (lambda p: p.stdin.close(), lambda p: p.stdout.close(), lambda p: p.terminate()):
        for text in ("1", "while true do end"):
            folder = Path("temporary")
            folder.mkdir()
            process = subprocess.Popen([BINARY, "serve", "--stdio"], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                       env={**os.environ, "TMPDIR": str(folder)})
            process.stdin.write(json.dumps({"do": "eval", "text": text}).encode() + b"\n")
            process.stdin.flush()
            for _ in range(2):  # what it is, and that the request has begun
                process.stdout.readline()
            assert list(folder.iterdir())
            ends(process)
            process.stdout.close()
            process.wait(MOST_S)
            folder.rmdir()


def test_json():
    """--json prints results.json and leaves no folder; a failure is an object, too."""
    before = set(os.listdir())
    good = program("run", "sweep.lua", "--json", "--set", "nodes=1")
    assert len(json.loads(good.stdout)["runs"]) == 10 and "iteration ms" in good.stderr
    for text, status in [("error 'no'", 1), ("(", 1), ("return 3", 1)]:
        bad = program("run", "-", "--json", input=text)
        assert bad.returncode == status and json.loads(bad.stdout)["error"]["message"], bad
    assert set(os.listdir()) == before


def test_prompt():
    """A prompt shows what eval gives, goes on over lines and after errors."""
    typed = "1 + 1\nfunction f(a)\nreturn a * 2 end\nf(21)\nwrong(\n\n{ a = 1, b = 'c' }\n"
    shown = program("repl", input=typed).stdout
    assert shown.split() == ["2", "42", *shown.split()[2:-6], "field", "value", "a", "1", "b", "c"]
    assert "prompt:2" in shown


def main():
    os.environ["XDG_CACHE_HOME"] = os.getcwd()
    session = moebench.Session(BINARY)
    for test in (test_values, test_errors, test_policy, test_parts):
        test(session)
    test_interrupts(session, *map(int, sys.argv[3:] or (24, 1)))
    folder = Path(session.run(text=SWEEP, set={"nodes": 1}).folder)
    assert folder.exists()
    session.close()
    assert not folder.exists()
    test_numbers()
    test_end()
    test_json()
    test_prompt()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        main()
