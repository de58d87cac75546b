"""moebench in Python: recipes and texts in Lua, results as pandas frames, pictures for a notebook.

    import moebench
    r = moebench.run("recipe.lua", set={"nodes": [2, 4]})
    r.frame                                            # a row per run; names have their units
    r.pictures["speedup-by-gpus"]                      # shows itself in a notebook
    moebench.eval("return moe.plan {...}:info()")      # in a process that stays alive
    moebench.eval("mine = moe.policy.gate {...}")      # a policy, for the texts that follow

All goes through one process of `moebench serve --stdio` (bindings/README.md describes its lines).
"""
import atexit
import json
import os
import select
import signal
import subprocess
import threading
import weakref
from pathlib import Path

__all__ = ["Error", "Interrupted", "Picture", "Results", "Session", "doc", "eval", "recipes", "run", "session"]

HERE = Path(__file__).parent


class Error(Exception):
    """What went wrong. kind: "user" (a recipe or its input), "run" (a run that failed or was
    interrupted), "lua", "command" or "internal"; source and line: where in the recipe, or None;
    results: the Results of what was finished before, or None."""

    def __init__(self, error, results=None):
        self.kind, self.message = error["kind"], error["message"]
        self.source, self.line = error.get("source"), error.get("line")
        self.traceback, self.results = error.get("traceback"), results
        at = f"{self.source}:{self.line}: " if self.source else ""
        super().__init__(at + self.message)


class Interrupted(Error, KeyboardInterrupt):
    """The request was interrupted, by Ctrl-C or a notebook's interrupt; the session goes on."""


class Picture:
    """A chart as the text of an SVG file; a notebook shows it."""

    def __init__(self, name, svg):
        self.name, self.svg = name, svg

    def _repr_html_(self):
        return self.svg.split("?>", 1)[-1]

    def save(self, path):
        Path(path).write_text(self.svg, encoding="utf-8")


def _frame(table):
    import pandas  # here, so that eval works without it
    return pandas.DataFrame(table["rows"], columns=table["columns"])


class Results:
    """Results of a run. frame: a row per run that has ended; data: results.json; output: what was
    printed; folder: where the results are, a temporary folder unless `out` was given."""

    def __init__(self, session, answer):
        self._session, self._table = session, answer.get("frame")
        self.data, self.output = answer.get("results"), answer["output"]
        self.folder = answer["folder"]

    @property
    def frame(self):
        return _frame(self._table)

    @property
    def claims(self):
        """Evaluated claims, a row each."""
        import pandas
        return pandas.DataFrame(self.data["claims"])

    @property
    def pictures(self):
        """All charts by name, with the usual options."""
        return self.draw()

    def draw(self, **options):
        """All charts by name. width: in points; font; names: {"raf": "RAF"} for systems and
        coordinates; where: {"nodes": "4"}, which runs are drawn."""
        session = self._session
        answer = session._check(session.ask("figures", folder=self.folder, **options))
        return {f["name"]: Picture(f["name"], f["text"]) for f in answer["figures"]}

    def __str__(self):
        return self.output


class Session:
    """A process of the program whose Lua state stays alive.

    program: its path; default: that of this package. read: further folders that recipes may read;
    trust: no sandbox; cache: the file of measured times and, beside it, of simulations."""

    def __init__(self, program=None, read=(), trust=False, cache=None):
        program = program or os.environ.get("MOEBENCH") or HERE / "bin" / "moebench"
        command = [str(program), "serve", "--stdio"]
        for folder in read:
            command += ["--read", str(folder)]
        command += ["--trust"] * trust + (["--cache", str(cache)] if cache else [])
        # A session of its own: Ctrl-C in the terminal reaches Python alone, which hands it on.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         start_new_session=True)
        self._count, self._unused, self._rest = 0, [], b""
        self.about = self._read()
        atexit.register(self.close)

    def _read(self):
        out, blocks = self._process.stdout.fileno(), [self._rest]
        while b"\n" not in blocks[-1]:
            # Not for ever: the handler of a signal that comes just before runs after this call.
            if select.select([out], [], [], 0.1)[0]:
                blocks.append(os.read(out, 1 << 16))
            if not blocks[-1] and len(blocks) > 1:
                raise Error({"kind": "internal", "message": "the process of the session ended with "
                             f"status {self._process.wait()}; its variables are lost"})
        line, _, self._rest = b"".join(blocks).partition(b"\n")
        return json.loads(line)

    def ask(self, what, **fields):
        """Sends a request and returns the answer, whose `output` is what was printed. Ctrl-C, or
        a notebook's interrupt, ends the request and not the session."""
        self._count += 1
        fields = {k: v for k, v in fields.items() if v is not None}
        request = json.dumps({"id": self._count, "do": what, **fields}).encode() + b"\n"
        printed, interrupted = [], False

        def interrupt(*_):
            nonlocal interrupted
            interrupted = True
            if printed:  # before its first output the request is not begun
                self._process.send_signal(signal.SIGINT)

        usual = signal.getsignal(signal.SIGINT)
        ours = callable(usual) and threading.current_thread() is threading.main_thread()
        try:
            if ours:
                signal.signal(signal.SIGINT, interrupt)
            self._process.stdin.write(request)
            self._process.stdin.flush()
            while not (line := self._read()).get("done"):
                printed.append(line["output"])
                if interrupted and len(printed) == 1:
                    interrupt()
        finally:
            if ours:
                signal.signal(signal.SIGINT, usual)
        line["output"] = "".join(printed)
        if interrupted:
            line.setdefault("error", {"kind": "run", "message": "interrupted"})
            line["error"]["interrupted"] = True
        return line

    def _check(self, answer, results=None):
        """Raises the error of an answer."""
        if "error" in answer:
            kind = Interrupted if answer["error"].get("interrupted") else Error
            raise kind(answer["error"], results)
        return answer

    def eval(self, text, name=None):
        """Evaluates a text in Lua and returns its value: numbers, texts, lists and dicts; moe.run
        and lists of runs as a pandas frame. A text that is an expression is its value."""
        answer = self.ask("eval", text=text, name=name)
        if answer["output"]:
            print(answer["output"], end="")
        self._check(answer)
        if "frame" in answer:
            return _frame(answer["frame"])
        values = answer["values"]
        return values[0] if len(values) == 1 else tuple(values) or None

    def run(self, recipe=None, set=None, text=None, show=False, **options):
        """Runs a recipe in a process of its own and returns its Results. recipe: the path of a
        file; text: a recipe itself; set: {"path": value or list of values}, as --set; options:
        out, executor, points, ranks, seed, sensitivity, workers and read, as those of
        `moebench run`; show: prints what the run prints."""
        if self._unused:
            self._check(self.ask("drop", folders=[self._unused.pop() for _ in self._unused[:]]))
        answer = self.ask("run", recipe=str(recipe) if recipe else None, text=text, set=set,
                          **options)
        if show:
            print(answer["output"], end="")
        results = Results(self, answer) if "folder" in answer else None
        if results and not options.get("out"):
            weakref.finalize(results, self._unused.append, results.folder)
        self._check(answer, results if answer.get("results") else None)
        return results

    def doc(self, topic=None):
        """Prints what `moebench doc` says."""
        print(self._check(self.ask("doc", topic=topic))["text"])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Ends the process and removes its temporary folders."""
        if self._process.poll() is None:
            self._process.stdin.close()
            self._process.wait()


_default = None


def session():
    """The session of run, eval and doc, made at first use."""
    global _default
    if _default is None or _default._process.poll() is not None:
        _default = Session()
    return _default


def run(*args, **kwargs):
    return session().run(*args, **kwargs)


def eval(text, name=None):
    return session().eval(text, name)


def doc(topic=None):
    session().doc(topic)


def recipes():
    """The folder of the recipes that come with the package."""
    return HERE / "share" / "moebench" / "recipes"


for _name in ("run", "eval", "doc"):
    globals()[_name].__doc__ = getattr(Session, _name).__doc__
