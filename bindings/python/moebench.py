"""moebench in Python: recipes and texts in Lua, results as pandas frames, pictures for a notebook.

    import moebench
    r = moebench.run("recipe.lua", set={"nodes": [2, 4]})
    r.frame                                            # a row per run; names have their units
    r.pictures["sweep-speedup-by-gpus"]                # shows itself in a notebook
    moebench.eval("return moe.plan {...}:info()")      # in a process that stays alive
    moebench.eval("mine = moe.policy.gate {...}")      # a policy, for the texts that follow

All goes through one process of `moebench serve --stdio` (bindings/README.md describes its lines).
"""
import atexit
import json
import os
import signal
import subprocess
from pathlib import Path

HERE = Path(__file__).parent


class Error(Exception):
    """What went wrong. kind: "user" (a recipe or its input), "run" (a run that failed), "lua",
    "command" or "internal"; source and line: where in the recipe, or None; results: the Results of
    what was finished before, or None."""

    def __init__(self, error, results=None):
        self.kind, self.message = error["kind"], error["message"]
        self.source, self.line = error.get("source"), error.get("line")
        self.traceback, self.results = error.get("traceback"), results
        super().__init__((f"{self.source}:{self.line}: " if self.source else "") + self.message)


class Interrupted(Error, KeyboardInterrupt):
    """The request was interrupted, by Ctrl-C or a notebook's interrupt; the session goes on."""


class Picture:
    """A chart as the text of an SVG file, which a notebook shows."""

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
    """Results of a run. data: results.json; output: what was printed; folder: where the results
    are, a temporary folder unless `out` was given."""

    def __init__(self, session, answer):
        self._session, self._table = session, answer["frame"]
        self.data, self.output = answer["results"], answer["output"]
        self.folder = answer["folder"]

    @property
    def frame(self):
        """A row per run that has ended: coordinates, system, times and sizes."""
        return _frame(self._table)

    @property
    def pictures(self):
        """All charts by name, with the usual options."""
        return self.draw()

    def draw(self, **options):
        """All charts by name. width: in points; font; names: {"raf": "RAF"} for systems and
        coordinates; where: {"nodes": "4"}, which runs are drawn."""
        figures = self._session.ask("figures", folder=self.folder, **options)["figures"]
        return {f["name"]: Picture(f["name"], f["text"]) for f in figures}


class Session:
    """A process of the program whose Lua state stays alive. program: its path, by default that of
    this package; read: further folders that recipes may read; trust: no sandbox; cache: the file
    of measured times and, beside it, of simulations."""

    def __init__(self, program=None, read=(), trust=False, cache=None):
        program = program or os.environ.get("MOEBENCH") or HERE / "bin" / "moebench"
        command = [str(program), "serve", "--stdio", *["--trust"] * trust]
        for folder in read:
            command += ["--read", str(folder)]
        command += ["--cache", str(cache)] if cache else []
        # A group of its own: Ctrl-C in the terminal reaches Python alone, which hands it on.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         start_new_session=True)
        self._count, self._rest = 0, b""
        self.about = self._read()
        atexit.register(self.close)

    def _read(self):
        blocks, interrupted = [self._rest], False
        while b"\n" not in blocks[-1]:
            try:
                block = os.read(self._process.stdout.fileno(), 1 << 16)
            except KeyboardInterrupt:
                interrupted = True
                self._process.send_signal(signal.SIGINT)
                continue
            if not block:
                raise Error({"kind": "internal", "message": "the process of the session ended with "
                             f"status {self._process.wait()}; its variables are lost"})
            blocks.append(block)
        line, _, self._rest = b"".join(blocks).partition(b"\n")
        return {**json.loads(line), "interrupted": interrupted}

    def ask(self, what, **fields):
        """Sends a request and returns its answer, whose `output` is what was printed. Ctrl-C, or a
        notebook's interrupt, ends the request and not the session."""
        self._count += 1
        request = {"id": self._count, "do": what}
        request.update((k, v) for k, v in fields.items() if v is not None)
        self._process.stdin.write(json.dumps(request, default=str).encode() + b"\n")
        self._process.stdin.flush()
        printed, interrupted, answer = [], False, {}
        while not answer.get("done"):
            answer = self._read()
            interrupted = interrupted or answer["interrupted"]
            printed.append(answer.get("output", ""))
        answer["output"] = "".join(printed)
        if "error" in answer:
            results = Results(self, answer) if "results" in answer else None
            raise (Interrupted if interrupted else Error)(answer["error"], results)
        return answer

    def eval(self, text, name=None):
        """Evaluates a text in Lua, of which messages say `name`, and returns its value: numbers,
        texts, lists and dicts; results and lists of runs as a pandas frame. A text that is an
        expression is its value."""
        answer = self.ask("eval", text=text, name=name)
        print(answer["output"], end="")
        if "frame" in answer:
            return _frame(answer["frame"])
        values = answer["values"]
        return values[0] if len(values) == 1 else tuple(values) or None

    def run(self, recipe=None, set=None, text=None, **options):
        """Runs a recipe in a process of its own and returns its Results. recipe: the path of a
        file; text: a recipe itself; set: {"path": value or list of values}, as --set; options:
        out, executor, points, ranks, seed, sensitivity, workers and read, as those of
        `moebench run`."""
        return Results(self, self.ask("run", recipe=recipe, text=text, set=set, **options))

    def doc(self, topic=None):
        """Prints what `moebench doc` says."""
        print(self.ask("doc", topic=topic)["text"])

    def close(self):
        """Ends the process and removes its temporary folders."""
        if self._process.poll() is None:
            self._process.stdin.close()
            self._process.wait()


_sessions = []


def session():
    """The session of run, eval and doc, made at first use."""
    if not _sessions or _sessions[-1]._process.poll() is not None:
        _sessions.append(Session())
    return _sessions[-1]


def run(*args, **kwargs):
    return session().run(*args, **kwargs)


def eval(text, name=None):
    return session().eval(text, name)


def doc(topic=None):
    session().doc(topic)


def recipes():
    """The folder of the recipes that come with the package."""
    return HERE / "share" / "moebench" / "recipes"


run.__doc__, eval.__doc__, doc.__doc__ = Session.run.__doc__, Session.eval.__doc__, Session.doc.__doc__
