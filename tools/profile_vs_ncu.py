#!/usr/bin/env python3
"""The profiler against ncu's counters and against events: times within 5 %, memory and tensor shares within 10 points.

    tools/profile_vs_ncu.py FATHOM -- --model DIR --batch 32 --context 1024 [more flags of `fathom profile`]

Profiles the load once with --isolated (replayed graphs, cost models, ceilings of the session, the same launches by
events), then runs one step of it under `ncu`, launched without a graph: once for time and bytes of memory, which one
pass can count, so that no kernel runs twice and finds its own operands; once more for what needs other passes. Clocks
and caches are left as they are; --cold runs the first once more with caches emptied before each kernel, as ncu does by
default: what a kernel must read then comes from memory once, which is what the cost models count.
Launch by launch in order, ncu's kernels are those of the step's time line, so each has its operation.
Both sides' memory shares are of one ceiling, the copy measured in the same session; ncu's own percentage is of the
memory's peak, which no copy reaches.
Exit code 0 also where figures disagree: the table says so. 2 where something could not be run.
"""
import argparse
import collections
import csv
import gzip
import io
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

TIME = "gpu__time_duration.sum"
READ = "dram__bytes_read.sum"
WRITTEN = "dram__bytes_write.sum"
TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"
L2_SECTORS = ["lts__t_sectors_op_read.sum", "lts__t_sectors_op_write.sum"]
PEAK = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
FIRST = [TIME, READ, WRITTEN]
SECOND = [TENSOR, PEAK, *L2_SECTORS]
TO_US = {"ns": 1e-3, "nsecond": 1e-3, "us": 1, "usecond": 1, "ms": 1e3, "msecond": 1e3, "s": 1e6, "second": 1e6}
TO_BYTES = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "Tbyte": 1e12}
BESIDE = ("copy", "set")


class Trouble(Exception):
    pass


def short(name):
    """A kernel's name without namespaces, template arguments and parameters."""
    name = name.removeprefix("void ").replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    return re.split(r"[<(]", name)[0].strip().split("::")[-1]


def read_launches(folder):
    """(operation, kernel) of one step's kernels, in launch order."""
    trace = json.loads(gzip.decompress((folder / "trace.json.gz").read_bytes()))
    slices = [e for e in trace["traceEvents"] if e.get("ph") == "X"]
    begin = next(e for e in slices if e["cat"] == "step")
    launches = [e for e in slices if "operation" in e["args"] and e["name"] not in BESIDE
                and begin["ts"] <= e["ts"] < begin["ts"] + begin["dur"]]
    return [(e["args"]["operation"], short(e["name"])) for e in sorted(launches, key=lambda e: e["ts"])]


def read_report(folder):
    """Per step: by operation and kernel the time and launches, by operation the costs."""
    report = json.loads((folder / "report.json").read_text())
    steps = sum(len(repeat) for repeat in report["step_us"])
    kernels = collections.defaultdict(lambda: dict(us=0.0, launches=0.0))
    operations = collections.defaultdict(lambda: dict(us=0.0, launches=0.0, bytes=0.0, flops=0.0))
    for row in report["rows"]:
        if row["kernel"] in BESIDE:
            continue
        us, launches = sum(row["time_us"]) / steps, row["num_launches"] / steps
        for into in (kernels[(row["operation"], short(row["kernel"]))], operations[row["operation"]]):
            into["us"] += us
            into["launches"] += launches
        operations[row["operation"]]["bytes"] += row["bytes"] / steps
        operations[row["operation"]]["flops"] += row["flops"] / steps
    isolated = {}
    if (folder / "isolated.json").exists():
        isolated = {row["operation"]: row for row in json.loads((folder / "isolated.json").read_text())}
    return kernels, operations, isolated, report["ceilings"]


def read_ncu(text):
    """The kernels in launch order, each with its metrics; one metric a line of the CSV."""
    begin = text.find('"ID"')
    if begin < 0:
        raise Trouble("ncu wrote no table; its output ends:\n" + text[-1500:])
    kernels = {}
    for line in csv.DictReader(io.StringIO(text[begin:])):
        if not line.get("Metric Name"):
            continue
        kernel = kernels.setdefault(int(line["ID"]), {"name": short(line["Kernel Name"])})
        value = float(line["Metric Value"].replace(",", ""))
        unit = line["Metric Unit"]
        kernel[line["Metric Name"]] = value * (TO_US.get(unit, TO_BYTES.get(unit, 1)) if unit != "%" else 1)
    return [kernels[key] for key in sorted(kernels)]


def attribute(counted, launches, what):
    names = [name for _, name in launches]
    if [kernel["name"] for kernel in counted] != names:
        raise Trouble(f"{what}: ncu saw {len(counted)} kernels and the step has {len(names)}; first difference: "
                      f"{next(((a['name'], b) for a, b in zip(counted, names) if a['name'] != b), 'their number')}")
    for kernel, (operation, _) in zip(counted, launches):
        kernel["operation"] = operation
    return counted


def total(counted, metric, **where):
    return sum(k.get(metric, 0.0) for k in counted if all(k[key] == value for key, value in where.items()))


def weighted(counted, metric, us, **where):
    chosen = [(k.get(metric, 0.0), t[TIME]) for k, t in zip(counted, us)
              if all(k[key] == value for key, value in where.items())]
    return sum(m * t for m, t in chosen) / max(1e-9, sum(t for _, t in chosen))


def print_kernels(kernels, first, cold):
    print(f"{'operation':18} {'kernel':20} {'launches':>8} {'ours us':>9} {'ncu us':>9} {'differ':>8} {'a launch':>9}"
          + (f" {'ncu cold':>9}" if cold else ""))
    summed = agree = excused = 0.0
    for (operation, name), ours in sorted(kernels.items(), key=lambda item: -item[1]["us"]):
        where = dict(operation=operation, name=name)
        theirs = total(first, TIME, **where)
        if theirs == 0:
            print(f"{operation:18} {name:20} only in the report")
            continue
        off = ours["us"] / theirs - 1
        each = (theirs - ours["us"]) / ours["launches"]
        summed += ours["us"]
        agree += ours["us"] * (abs(off) <= 0.05)
        excused += ours["us"] * (abs(off) > 0.05 and 0 < each <= 1.8)
        print(f"{operation:18} {name:20} {ours['launches']:8.0f} {ours['us']:9.2f} {theirs:9.2f} {100 * off:+7.1f}% "
              f"{-each:+8.2f}u" + (f" {total(cold, TIME, **where):9.2f}" if cold else ""))
    print(f"of the summed time {100 * agree / summed:.1f} % agrees with ncu within 5 %; of {100 * excused / summed:.1f} % "
          "ncu's launches are longer by up to 1.8 us each")


def print_operations(operations, isolated, first, second, cold, ceilings):
    print(f"\ntimes, us a step\n{'operation':20} {'ours':>9} {'ncu':>9} {'differ':>8}   {'repeated: ours':>14} "
          f"{'events':>9} {'differ':>8} {'alone, cold':>12}")
    summed = either = events = 0.0
    for name, ours in sorted(operations.items(), key=lambda item: -item[1]["us"]):
        theirs = total(first, TIME, operation=name)
        if theirs == 0:
            continue
        off = ours["us"] / theirs - 1
        line = f"{name:20} {ours['us']:9.2f} {theirs:9.2f} {100 * off:+7.1f}%"
        by_events = False
        row = isolated.get(name)
        if row and row["repeated_event_us"] > 0:
            difference = row["repeated_us"] / row["repeated_event_us"] - 1
            by_events = abs(difference) <= 0.05
            line += (f"   {row['repeated_us']:14.2f} {row['repeated_event_us']:9.2f} {100 * difference:+7.1f}% "
                     f"{row['alone_us']:12.2f}")
        print(line)
        summed += ours["us"]
        events += ours["us"] * by_events
        either += ours["us"] * (by_events or abs(off) <= 0.05)
    print(f"of the summed time {100 * events / summed:.1f} % agrees with events within 5 %, {100 * either / summed:.1f} % "
          "with events or ncu")

    print(f"\nmemory and tensor shares (DRAM and its share by ncu: caches as the step leaves them"
          + (", then emptied before each kernel)" if cold else ")"))
    print(f"{'operation':20} {'asked MB':>9} {'L2 MB':>9} {'mem: ours':>10}   {'DRAM MB':>9} {'ncu':>6} {'differ':>7}   "
          + (f"{'DRAM MB':>9} {'ncu':>6} {'differ':>7}   " if cold else "") + f"{'of peak':>8}   {'tensor: ours':>12} {'ncu':>5}")
    near = collections.Counter()
    for name, ours in sorted(operations.items(), key=lambda item: -item[1]["us"]):
        if total(first, TIME, operation=name) == 0:
            continue
        sectors = sum(total(second, metric, operation=name) for metric in L2_SECTORS)
        asked = 100 * ours["bytes"] / (ours["us"] * 1e-6) / ceilings["memory_bytes_per_s"]
        line = f"{name:20} {ours['bytes'] / 1e6:9.2f} {32 * sectors / 1e6:9.2f} {asked:9.1f}%   "
        for state, counted in (("as they are", first), ("emptied", cold)):
            if counted is None:
                continue
            moved = total(counted, READ, operation=name) + total(counted, WRITTEN, operation=name)
            share = 100 * moved / (total(counted, TIME, operation=name) * 1e-6) / ceilings["memory_bytes_per_s"]
            near[state] += ours["us"] * (abs(asked - share) <= 10)
            line += f"{moved / 1e6:9.2f} {share:5.1f}% {asked - share:+7.1f}   "
        tensor = [100 * ours["flops"] / (ours["us"] * 1e-6) / ceilings["flops_per_s"],
                  weighted(second, TENSOR, first, operation=name)]
        near["tensor"] += ours["us"] * (abs(tensor[0] - tensor[1]) <= 10)
        print(line + f"{weighted(second, PEAK, first, operation=name):7.0f}%   {tensor[0]:11.1f}% {tensor[1]:4.0f}%")
    print("of the summed time within 10 points: " + ", ".join(
        f"{'memory, caches ' * (what != 'tensor')}{what} {100 * us / summed:.1f} %" for what, us in near.items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fathom")
    parser.add_argument("--ncu", default=shutil.which("ncu") or "ncu")
    parser.add_argument("--cold", action="store_true", help="ncu once more, caches emptied before each kernel")
    parser.add_argument("--report", type=pathlib.Path, help="folder of a profile of the same load, instead of taking one")
    parser.add_argument("--keep", type=pathlib.Path, help="folder for ncu's tables; those that lie there are not taken anew")
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    arguments = parser.parse_args(sys.argv[1:split])
    profile = [arguments.fathom, "profile", "--device", "cuda", *sys.argv[split + 1:]]
    with tempfile.TemporaryDirectory() as temporary:
        keep = arguments.keep or pathlib.Path(temporary)
        keep.mkdir(parents=True, exist_ok=True)
        folder = arguments.report or keep / "profile"

        def ncu(name, metrics, cache):
            path = keep / f"{name}.csv"
            if not path.exists():
                command = [arguments.ncu, "--csv", "--metrics", ",".join(metrics), "--clock-control", "none",
                           "--cache-control", cache, "--profile-from-start", "off", *profile, "--one-step"]
                ran = subprocess.run(command, capture_output=True, text=True)
                if ran.returncode != 0:
                    raise Trouble(ran.stdout[-1500:] + ran.stderr[-1500:])
                path.write_text(ran.stdout + "\n" if '"ID"' in ran.stdout else ran.stderr)
            counted = read_ncu(path.read_text())
            print(f"ncu, {name}: {len(counted)} kernels, cache control {cache}")
            return attribute(counted, read_launches(folder), name)

        try:
            if arguments.report is None:
                taken = subprocess.run(profile + ["--exposed", "off", "--isolated", "--out", str(folder)],
                                       capture_output=True, text=True)
                if taken.returncode != 0:
                    raise Trouble(taken.stdout + taken.stderr)
            kernels, operations, isolated, ceilings = read_report(folder)
            first = ncu("time_and_bytes", FIRST, "none")
            second = ncu("tensor_and_l2", SECOND, "none")
            cold = ncu("time_and_bytes_cold", FIRST, "all") if arguments.cold else None
        except (Trouble, OSError, KeyError, StopIteration) as trouble:
            print(f"{type(trouble).__name__}: {trouble}", file=sys.stderr)
            return 2
        print_kernels(kernels, first, cold)
        print_operations(operations, isolated, first, second, cold, ceilings)
    return 0


if __name__ == "__main__":
    sys.exit(main())
