#!/usr/bin/env python3
"""Interrupts at random instants: sends SIGINT, SIGTERM or SIGHUP to runs of the program and checks
that what was finished is kept.

    tests/interrupts/interrupts.py --binary build/release/moebench --seed 1 --count 200

Kinds of runs, in turn (--kinds names some): a sweep of 300 simulations, a script of simulations
one by one, a training on CPU ranks, a script that trains by itself, and two processes by MPI,
where the signal goes to one of the ranks or to mpirun. After each: the exit status is 3, or 0
where the run was through, or that of the signal where it came before anything began; every run
that was finished before the signal stands in what was written; `moebench report` works on it; no
process is left. It prints the times from the signal to the exit, and exits with 1 where a check
failed. Apart from ctest, as it takes a while.
"""
import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
MODEL = """local moe = require "moe"
local function model(layers)
  return moe.model.gpt2_moe { vocab = 256, layers = layers or 2, hidden = 64, heads = 4, seq = 32,
    batch_per_device = 4, experts_per_device = 2, gate = "switch" }
end
"""
RECIPES = {
    "sweep": MODEL + """
local layers = {}
for i = 1, 100 do layers[i] = i end
return moe.experiment { name = "sweep", over = { nodes = { 1, 2, 4 }, layers = layers },
  case = function(p) return { model = model(p.layers),
    cluster = moe.cluster.p4de { nodes = p.nodes }, systems = { moe.system "raf" {} } } end }
""",
    "script": MODEL + """
for i = 1, 150 do
  moe.run(moe.experiment { name = "point" .. i, model = model(i),
    cluster = moe.cluster.p4de { nodes = 2 }, systems = { moe.system "raf" {} } })
  io.stderr:write(("finished %d\\n"):format(i))
end
""",
    "train": MODEL + """
return moe.experiment { name = "train", model = model(), systems = { moe.system "raf" {},
    moe.system "deepspeed" {}, moe.system "raf_irregular" {}, moe.system "lina_fixed" {} },
  run = { { "cpu", ranks = 2, steps = 40, tokens = "reference", rehearse = 2 },
    { "cpu", ranks = 2, steps = 1000000, tokens = "reference", rehearse = 2 } } }
""",
    "trainscript": MODEL + """
local r = moe.train { model = model(), ranks = 2, steps = 1000000, tokens = "reference" }
while true do pcall(moe.train, { model = model(), ranks = 2, tokens = "reference" }) end
""",
    "job": MODEL + """
return moe.experiment { name = "job", model = model(), systems = { moe.system "raf" {},
    moe.system "deepspeed" {}, moe.system "lina" {} },
  run = { { "cpu", ranks = 2, steps = 20, tokens = "reference" },
    { "cpu", ranks = 2, steps = 1000000, tokens = "reference" } } }
""",
}
# Of the instants, in seconds; sweeps and scripts take what they take.
SPANS = {"sweep": 0, "script": 0, "train": 6, "trainscript": 3, "mpi": 5}
# A sweep or a script may end before the signal. Where more than this share of them did, little was
# interrupted: the run whose duration was measured was far slower than the others.
MOST_THROUGH = 0.5


def lines_of(out):
    """The finished runs that runs.jsonl names, whole lines alone; None: there is no such file."""
    try:
        text = (out / "runs.jsonl").read_bytes()
    except FileNotFoundError:
        return None
    runs = {}
    for line in text[: text.rfind(b"\n") + 1].splitlines():
        value = json.loads(line)
        if "run" in value:
            runs[value["run"]] = value["record"]
    return {n: r for n, r in runs.items() if "iteration_ms" in r}


def alive(word):
    """Processes whose command line has the word, zombies not among them."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and word.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            pass
    return found


class Run:
    """One start of the program, alone or under mpirun."""

    def __init__(self, kind, args, folder):
        self.kind, self.args, self.out = kind, args, folder / "out"
        name = kind if kind in RECIPES else "job"
        recipe = folder / "recipe.lua"
        recipe.write_text(RECIPES[name])
        # What was simulated before would be taken from a file, at once.
        cache = args.cache if SPANS[kind] else ":memory:"
        self.command = [args.binary, "run", str(recipe), "--out", str(self.out), "--cache",
                        str(cache), "--trust"]
        self.log = open(folder / "log", "wb")
        self.marks = 0  # of a script: how many it has said are finished

    def start(self):
        command = self.command
        if self.kind == "mpi":
            command = ["mpirun", "--oversubscribe", "--allow-run-as-root", "--mca",
                       "btl_vader_single_copy_mechanism", "none", "-n", "2"] + command
        self.process = subprocess.Popen(command, stdout=self.log, stdin=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE)
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stderr:
            self.log.write(line)
            self.marks += line.startswith(b"finished ")

    def targets(self):
        """Whom a signal may go to: name -> process id."""
        if self.kind != "mpi":
            return {"rank 0": self.process.pid}
        found = {"mpirun": self.process.pid}
        for pid in alive(str(self.out)):
            try:
                environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            for r in range(2):
                if f"OMPI_COMM_WORLD_RANK={r}".encode() in environment:
                    found[f"rank {r}"] = pid
        return found

    def wait(self, seconds):
        """Exit status, 128 + the signal's number for one that ended the process."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        end = time.monotonic()
        self.reader.join(2)
        self.log.flush()
        status = self.process.returncode
        return status if status >= 0 else 128 - status, end


def check(run, before, marks, status, number, target):
    """What is wrong after a run; before: the finished runs when the signal was sent."""
    wrong = []
    begun = before is not None
    allowed = {3} | ({0} if run.kind in ("sweep", "script") else set())
    if not begun:  # the handlers may not have been there, or mpirun may not have started a rank
        allowed |= {128 + number, 1}
    if target == "mpirun":  # says what its own signal is, or that a process ended so
        allowed |= {1, 128 + number, 128 + signal.SIGTERM, 128 + signal.SIGKILL}
    if status not in allowed:
        wrong.append(f"exit status {status}")
    after = lines_of(run.out) or {}
    if set(before or {}) - set(after):
        wrong.append(f"lost of runs.jsonl: {sorted(set(before) - set(after))}")
    if len(after) < marks:
        wrong.append(f"{marks} runs were said to be finished, {len(after)} are kept")
    results = run.out / "results.json"
    if results.exists():
        whole = [r for r in json.loads(results.read_text())["runs"] if "iteration_ms" in r]
        if target != "mpirun" and len(whole) < len(before or {}):
            wrong.append(f"{len(before)} runs were finished, results.json has {len(whole)}")
    elif before and target != "mpirun":
        wrong.append("no results.json")
    if after:
        report = subprocess.run([run.args.binary, "report", str(run.out)], capture_output=True,
                                text=True)
        if report.returncode != 0:
            wrong.append(f"report: {report.stdout}{report.stderr}")
    until = time.monotonic() + 5  # mpirun may end before those that it ends
    while alive(str(run.out)) and time.monotonic() < until:
        time.sleep(0.05)
    if alive(str(run.out)):
        wrong.append(f"processes are left: {alive(str(run.out))}")
    return wrong


def one(kind, args, rng, folder, span):
    run = Run(kind, args, folder)
    number = rng.choice(SIGNALS)
    instant = rng.uniform(0, span)
    run.start()
    time.sleep(instant)
    targets = run.targets()
    target = rng.choice(sorted(targets))
    before, marks = lines_of(run.out), run.marks
    through = run.process.poll() is not None
    sent = time.monotonic()
    try:
        os.kill(targets[target], number)
    except ProcessLookupError:
        pass
    status, end = run.wait(30)
    wrong = check(run, before, marks, status, number, target)
    if through and SPANS[kind]:
        wrong.append("it had ended before the signal")
    return {"kind": kind, "signal": number.name, "to": target, "at_s": round(instant, 3),
            "through": through, "finished": len(before or {}), "status": status,
            "took_s": round(end - sent, 3), "wrong": wrong}


def duration(kind, args, folder):
    """How long a run takes that nothing ends, once for all."""
    if SPANS[kind]:
        return SPANS[kind]
    run = Run(kind, args, folder)
    begin = time.monotonic()
    run.start()
    status, end = run.wait(600)
    if status != 0:
        sys.exit(f"{kind}: exit status {status} without a signal, see {folder}")
    return end - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default="build/release/moebench")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--kinds", default=",".join(SPANS))
    parser.add_argument("--keep", action="store_true", help="also folders without a fault")
    args = parser.parse_args()
    args.binary = str(pathlib.Path(args.binary).resolve())
    kinds = [k for k in args.kinds.split(",") if k != "mpi" or shutil.which("mpirun")]
    rng = random.Random(args.seed)
    base = pathlib.Path(tempfile.mkdtemp(prefix="interrupts-"))
    args.cache = base / "times.sqlite"
    spans = {}
    for kind in kinds:
        folder = base / f"whole-{kind}"
        folder.mkdir()
        spans[kind] = duration(kind, args, folder)
    print("seconds of the instants:", {k: round(s, 1) for k, s in spans.items()}, flush=True)
    done, failed = [], 0
    for i in range(args.count):
        kind = kinds[i % len(kinds)]
        folder = base / f"{i:04d}-{kind}"
        folder.mkdir()
        result = one(kind, args, rng, folder, spans[kind])
        done.append(result)
        failed += bool(result["wrong"])
        print(json.dumps(result), flush=True)
        if not result["wrong"] and not args.keep:
            shutil.rmtree(folder)
    for kind in kinds:
        some = [d for d in done if d["kind"] == kind]
        if not some:
            continue
        times = [d["took_s"] for d in some if not d["through"]] or [0]
        through = sum(d["through"] for d in some)
        statuses = {}
        for d in some:
            statuses[d["status"]] = statuses.get(d["status"], 0) + 1
        print(f"{kind}: {len(some)} signals, {through} after the end, "
              f"median {statistics.median(times):.2f} s, most {max(times):.2f} s, "
              f"statuses {statuses}, {sum(bool(d['wrong']) for d in some)} failed")
        if through > MOST_THROUGH * len(some):
            failed += 1
            print(f"{kind}: too many signals came after the end; nothing is shown by them")
    print(f"{len(done)} signals, {failed} failed" + (f", see {base}" if failed else ""))
    if not failed and not args.keep:
        shutil.rmtree(base)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
