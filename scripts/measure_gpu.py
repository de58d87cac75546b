#!/usr/bin/env python3
"""Measures how long the ops of training steps take on this GPU, at the clock that a step has.

  python3 scripts/measure_gpu.py --out FILE.json     (needs PyTorch and one GPU; six minutes)
  ENV/bin/python scripts/import_gpu_steps.py h200 FILE.json

Rows are GEMMs forward, of inputs and of weights, the products of a rank's experts, attention and its
backward, moves of rows, norms, elementwise ops, the optimizer, and products while another stream
copies. Each row keeps the GPU busy for its share of --seconds. Its samples are batches of calls, of a
recorded graph where the op can be recorded, so that the time between launches does not count. The
first quarter of the samples is left out, since clocks fall under load; before the first row GEMMs
run for five seconds. Operands are normal random numbers, in so many sets that the caches hold none
of them, and sums of gradients are added to as in a step.

The file is written again after each row: the GPU, its driver, libraries and limits, and per row the
op, its sizes (those of the product itself, as the tables of scripts/README.md have them), the median
and the 10th and 90th percentile of a call in ns, the rates, and the median of the SM and memory
clocks (MHz), the power (W) and the temperature (C) in that time. A row that this GPU or version
cannot run says why under `failed`. --dry-run measures small sizes on the CPU, to test this program.
"""
import argparse
import datetime
import gc
import importlib.metadata
import json
import math
import pathlib
import statistics
import subprocess
import sys
import threading
import time

import torch

import measured_ops as ops

CACHED = 256 << 20   # bytes of operands that no cache holds: several times the L2 of 50 to 126 MB
BATCH_NS, WARM_S, MOST_S = 10e6, 5.0, 2.0


def bytes_of(value):
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return sum(map(bytes_of, value)) if isinstance(value, (tuple, list)) else 0


class Sampler(threading.Thread):
    """Reads clocks, power and temperature of the GPU every 50 ms."""

    def __init__(self):
        super().__init__(daemon=True)
        self.samples, self.read = [], self.reader()
        self.start()

    @staticmethod
    def reader():
        if ops.dry:
            return lambda: (0, 0, 0.0, 0)
        uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
        try:
            import pynvml as nvml
            nvml.nvmlInit()
            try:
                gpu = nvml.nvmlDeviceGetHandleByUUID(uuid)
            except nvml.NVMLError:  # a machine that hides it
                gpu, uuid = nvml.nvmlDeviceGetHandleByIndex(0), "0"
            return lambda: (nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
                            nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),
                            nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,
                            nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU))
        except Exception:  # no such package or library, or of another version
            return lambda: smi("clocks.sm,clocks.mem,power.draw,temperature.gpu", uuid)

    def run(self):
        while True:
            try:
                self.samples.append((time.monotonic(), *map(float, self.read())))
            except Exception as error:  # rows then lack these figures
                print(f"no clocks: {error}", file=sys.stderr)
                return
            time.sleep(0.05)

    def between(self, start, end):
        """What the rows say of this time."""
        inside = [s[1:] for s in self.samples if start <= s[0] <= end]
        names = "sm_mhz", "memory_mhz", "watts", "celsius"
        return {n: statistics.median(v) for n, v in zip(names, zip(*inside))}


def smi(query, gpu="0"):
    """The fields of a query of nvidia-smi."""
    return subprocess.run(["nvidia-smi", f"--id={gpu}", f"--query-gpu={query}",
                           "--format=csv,noheader,nounits"], check=True, capture_output=True,
                          text=True).stdout.strip().split(", ")


def synchronize():
    if not ops.dry:
        torch.cuda.synchronize()


class Lane:
    """What one stream repeats: batches of calls of a work, with a mark after each."""

    def __init__(self, work, priority=0):
        self.work, self.calls, self.graph, self.results = work, 1, None, {}
        self.stream = None if ops.dry else torch.cuda.Stream(priority=priority)
        with torch.cuda.stream(self.stream):
            self.sets = [work.make()]
            result = work.call(*self.sets[0])
            moved = bytes_of(self.sets[0])
            moved += bytes_of(result) if result is not self.sets[0][0] else 0
            self.bytes = work.bytes or moved
            count = work.sets or min(256, 2 if ops.dry else math.ceil(CACHED / max(moved, 1)))
            self.sets += [work.make() for _ in range(count - 1)]
            del result
            self.run()
            begin = self.mark()
            for _ in range(3):
                self.run()
            each = self.ns(begin, self.mark()) / 3
            self.calls = max(1, min(1000, round(BATCH_NS / max(each, 1)))) if not ops.dry else 2
            if not ops.dry:
                self.record()
        self.marks = []

    def run(self):
        for i in range(self.calls):
            at = i % len(self.sets)
            self.results[at] = self.work.call(*self.sets[at])

    def record(self):
        self.results.clear()
        torch.cuda.synchronize()
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self.stream):
                self.run()
            self.graph = graph
            graph.replay()
        except Exception as error:  # an op that waits for the host, say
            print(f"  not recorded: {str(error)[:200]}", file=sys.stderr)
            self.results.clear()
        torch.cuda.synchronize()

    def mark(self):
        if ops.dry:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(self.stream)
        return event

    def ns(self, begin, end):
        if ops.dry:
            return 1e9 * (end - begin)
        end.synchronize()
        return 1e6 * begin.elapsed_time(end)

    def push(self):
        """Adds a batch unless one waits already behind the one that runs; says whether."""
        if not ops.dry and len(self.marks) > 2 and not self.marks[-2].query():
            return False
        with torch.cuda.stream(self.stream):
            self.marks = self.marks or [self.mark()]
            self.graph.replay() if self.graph else self.run()
            self.marks.append(self.mark())
        return True

    def figures(self):
        times = [self.ns(a, b) / self.calls for a, b in zip(self.marks, self.marks[1:])]
        times = sorted(times[len(times) // 4:])
        median = statistics.median(times)
        at = [times[min(len(times) - 1, int(share * len(times)))] for share in (0.1, 0.9)]
        return dict(median_ns=median, p10_ns=at[0], p90_ns=at[1], samples=len(times),
                    calls=len(times) * self.calls, sets=len(self.sets), recorded=bool(self.graph),
                    flops_per_s=1e9 * self.work.flops / median, bytes_per_s=1e9 * self.bytes / median)


def measure(works, seconds, sampler):
    """The figures of each work while all run, each on its own stream; a second one goes first."""
    lanes = [Lane(work, -i) for i, work in enumerate(works)]
    begin = time.monotonic()
    while time.monotonic() < begin + seconds or not all(len(l.marks) > 4 for l in lanes):
        if not any([lane.push() for lane in lanes]):
            time.sleep(1e-4)
    end = time.monotonic()
    synchronize()
    figures = [lane.figures() for lane in lanes]
    figures[0].update(seconds=end - begin, **sampler.between(begin + (end - begin) / 4, end))
    return figures


def small(sizes):
    """Sizes for a dry run."""
    return {name: 1 << 16 if name == "bytes" else
            value if value < 256 else max(8, value // 64 // 8 * 8) for name, value in sizes.items()}


def about():
    """What the file says of the machine."""
    def version(package):
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return None
    facts = dict(program="scripts/measure_gpu.py", date=str(datetime.date.today()), dry_run=ops.dry,
                 torch=torch.__version__, cuda=torch.version.cuda,
                 cublas=version("nvidia-cublas") or version("nvidia-cublas-cu12"),
                 cudnn=torch.backends.cudnn.version(), triton=version("triton"))
    if ops.dry:
        return {**facts, "device": "CPU"}
    fields = "driver_version,name,clocks.max.sm,clocks.max.mem,power.limit"
    try:
        limits = dict(zip(fields.split(","), smi(fields)))
    except (OSError, subprocess.CalledProcessError) as error:
        limits = dict(failed=str(error))
    return {**facts, "device": torch.cuda.get_device_name(), "limits": limits,
            "adds_in_gemm": ops.adds,
            "sms": torch.cuda.get_device_properties(0).multi_processor_count,
            "memory_bytes": torch.cuda.get_device_properties(0).total_memory}


def title(row):
    op, _, sizes, arguments, beside = row
    text = " ".join([op, *(f"{n}={v}" for n, v in sizes.items()),
                     *(v if isinstance(v, str) else n for n, v in arguments.items() if v)])
    return text + (f" beside {beside[0].__name__} {beside[2]['way']}" if beside else "")


def entry(row, seconds, sampler):
    """A row of the file."""
    op, build, sizes, arguments, beside = row
    out = dict(op=op + "_beside" if beside else op, sizes=sizes, **arguments)
    parts = [(build, sizes, arguments)] + ([beside] if beside else [])
    try:
        works = [b(**(small(s) if ops.dry else s), **a) for b, s, a in parts]
        out["dtype"] = works[0].dtype
        first, *second = measure(works, seconds, sampler)
        out.update(first)
        if beside:
            out["beside"] = dict(op=beside[0].__name__, sizes=beside[1], **beside[2], **second[0])
    except Exception as error:  # what this GPU or version does not have
        out["failed"] = f"{type(error).__name__}: {str(error)[:500]}"
    return out


def slow_downs(rows):
    """Adds to rows of two streams how many times longer each takes than alone."""
    def key(row):
        return row["op"].removesuffix("_beside"), str(row["sizes"]), row.get("way")
    alone = {key(r): r["median_ns"] for r in rows if "median_ns" in r and "beside" not in r}
    for row in rows:
        for part in (row, row.get("beside", {})) if "beside" in row else ():
            if key(part) in alone:
                part["times_alone"] = part["median_ns"] / alone[key(part)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", default="gpu.json", help="the file to write")
    parser.add_argument("--seconds", type=float, default=330, help="in all, about")
    parser.add_argument("--only", default="", help="rows whose line of --list has this")
    parser.add_argument("--list", action="store_true", help="print the rows and measure none")
    parser.add_argument("--dry-run", action="store_true", help="small sizes on the CPU")
    options = parser.parse_args()
    rows = [row for row in ops.rows_of_steps() if options.only in title(row)]
    if options.list:
        print("\n".join(map(title, rows)), f"\n{len(rows)} rows")
        return 0
    if options.dry_run:
        ops.device, ops.dry = "cpu", True
    elif not torch.cuda.is_available():
        print("PyTorch sees no GPU", file=sys.stderr)
        return 1
    torch.manual_seed(1)
    ops.find_adds()
    end = time.monotonic() + options.seconds
    result, sampler, file = {**about(), "rows": []}, Sampler(), pathlib.Path(options.out)
    measure([ops.gemm(*[64 if ops.dry else 8192] * 3)], 0.1 if ops.dry else WARM_S, sampler)
    spent = 0.0  # on other than measuring, by row
    for i, row in enumerate(rows):
        begin, left = time.monotonic(), len(rows) - i
        share = 0.01 if ops.dry else min(MOST_S, (end - begin) / left - spent)
        out = entry(row, max(share, 0.3 if not ops.dry else 0), sampler) if begin < end else \
            dict(op=row[0], sizes=row[2], **row[3], failed="no time was left")
        took = time.monotonic() - begin
        spent = 0.8 * spent + 0.2 * min(1.0, took - out.get("seconds", 0))
        result["rows"].append(out)
        slow_downs(result["rows"])
        part = file.with_suffix(".part")
        part.write_text(json.dumps(result, indent=1))
        part.replace(file)
        print(f"{i + 1}/{len(rows)} {title(row)}: " + (out.get("failed") or
              f"{out['median_ns'] / 1e3:.1f} us, {out['flops_per_s'] / 1e12:.0f} TFLOP/s, "
              f"{out['bytes_per_s'] / 1e9:.0f} GB/s, {out.get('sm_mhz', 0):.0f} MHz, {took:.1f} s"),
              flush=True)
        gc.collect()
        if not ops.dry:
            try:
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
            except RuntimeError as error:  # nothing runs in this process any more
                print(f"stopped: {error}", file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
