#!/usr/bin/env python3
"""The profiler against ncu's counters, kernel by kernel: time within 5 %, memory and tensor shares within 10 points.

    tools/profile_vs_ncu.py FATHOM -- --model DIR --batch 32 --context 1024 [more flags of `fathom profile`]

Profiles the load once (report.json: replayed graphs, cost models, ceilings of the session), then runs one step of it under
`ncu` and reads each kernel's time and its use of memory and tensor cores. Clocks and caches are left as they are.
Exit code 0 also where figures disagree: the table says so. 2 where something could not be run.
"""
import argparse
import collections
import csv
import io
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

TIME = "gpu__time_duration.sum"
MEMORY = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"
TO_US = {"ns": 1e-3, "nsecond": 1e-3, "us": 1, "usecond": 1, "ms": 1e3, "msecond": 1e3, "s": 1e6, "second": 1e6}


def short(name):
    """A kernel's name without namespaces, template arguments and parameters."""
    name = name.removeprefix("void ").replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    return re.split(r"[<(]", name)[0].strip().split("::")[-1]


def read_report(folder):
    report = json.loads((folder / "report.json").read_text())
    steps = sum(len(repeat) for repeat in report["step_us"])
    rows = collections.defaultdict(lambda: dict(us=0.0, launches=0.0))
    for row in report["rows"]:
        if row["kernel"] in ("copy", "set"):
            continue
        into = rows[short(row["kernel"])]
        into["us"] += sum(row["time_us"]) / steps
        into["launches"] += row["num_launches"] / steps
    return rows, shares_of(report, steps), report["ceilings"]


def shares_of(report, steps):
    """Operations that share kernels are one group: costs are known by operation, counters by kernel."""
    group_of = {}
    for row in report["rows"]:
        if row["kernel"] in ("copy", "set"):
            continue
        members = {("op", row["operation"]), ("kernel", short(row["kernel"]))}
        for member in list(members):
            members |= group_of.get(member, set())
        for member in members:
            group_of[member] = members
    groups = []
    for members in {id(m): m for m in group_of.values()}.values():
        rows = [r for r in report["rows"] if ("op", r["operation"]) in members and r["kernel"] not in ("copy", "set")]
        groups.append({
            "name": ", ".join(sorted(n for kind, n in members if kind == "op")),
            "kernels": {n for kind, n in members if kind == "kernel"},
            "us": sum(sum(r["time_us"]) for r in rows) / steps,
            "bytes": sum(r["bytes"] for r in rows) / steps, "flops": sum(r["flops"] for r in rows) / steps,
        })
    return sorted(groups, key=lambda g: -g["us"])


def read_ncu(text):
    """CSV of `--page raw` or of details, one metric a line."""
    begin = text.find('"ID"')
    if begin < 0:
        raise ValueError("ncu wrote no table; its output ends:\n" + text[-1500:])
    kernels = {}
    for line in csv.DictReader(io.StringIO(text[begin:])):
        if not line.get("Metric Name"):
            continue
        kernel = kernels.setdefault(line["ID"], {"name": short(line["Kernel Name"])})
        value = float(line["Metric Value"].replace(",", ""))
        if line["Metric Name"] == TIME:
            value *= TO_US.get(line["Metric Unit"], 1e-3)
        kernel[line["Metric Name"]] = value
    rows = collections.defaultdict(lambda: dict(us=0.0, launches=0, memory=0.0, tensor=0.0))
    for kernel in kernels.values():
        into, us = rows[kernel["name"]], kernel.get(TIME, 0.0)
        into["us"] += us
        into["launches"] += 1
        into["memory"] += us * kernel.get(MEMORY, 0.0)
        into["tensor"] += us * kernel.get(TENSOR, 0.0)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fathom")
    parser.add_argument("--ncu", default=shutil.which("ncu") or "ncu")
    parser.add_argument("--report", type=pathlib.Path, help="folder of a profile of the same load, instead of taking one")
    parser.add_argument("--ncu-csv", type=pathlib.Path, help="ncu's table of before, instead of running it")
    parser.add_argument("flags", nargs="*", help="of `fathom profile`, behind --")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.report or pathlib.Path(temporary) / "profile"
        profile = [arguments.fathom, "profile", "--device", "cuda", *arguments.flags]
        if arguments.report is None:
            taken = subprocess.run(profile + ["--exposed", "off", "--out", str(folder)], capture_output=True, text=True)
            if taken.returncode != 0:
                print(taken.stdout + taken.stderr, file=sys.stderr)
                return 2
        if arguments.ncu_csv is not None:
            text = arguments.ncu_csv.read_text()
        else:
            command = [arguments.ncu, "--csv", "--metrics", ",".join([TIME, MEMORY, TENSOR]), "--clock-control", "none",
                       "--cache-control", "none", "--profile-from-start", "off", *profile, "--one-step"]
            ran = subprocess.run(command, capture_output=True, text=True)
            text = ran.stdout
            if ran.returncode != 0:
                print(ran.stdout[-1500:] + ran.stderr, file=sys.stderr)
                return 2
        ours, groups, ceilings = read_report(folder)
        theirs = read_ncu(text)
    print(f"{'kernel':34} {'calls':>9} {'ours us':>9} {'ncu us':>9} {'time':>8}")
    total = agree = 0.0
    for name in sorted(set(ours) | set(theirs), key=lambda n: -(ours[n]["us"] if n in ours else 0)):
        if name not in ours or name not in theirs:
            print(f"{name:34} only in {'the report' if name in ours else 'ncu'}")
            continue
        a, b = ours[name], theirs[name]
        off = a["us"] / b["us"] - 1
        total += a["us"]
        agree += a["us"] * (abs(off) <= 0.05)
        print(f"{name:34} {a['launches']:4.0f}/{b['launches']:4} {a['us']:9.2f} {b['us']:9.2f} {100 * off:+7.1f}%")
    if total == 0:
        print("no kernel is in both", file=sys.stderr)
        return 2
    print(f"of the summed time {100 * agree / total:.0f} % agree within 5 %")
    print(f"\n{'operations':44} {'memory: ours':>13} {'ncu':>5} {'tensor: ours':>13} {'ncu':>5}")
    near = [0.0, 0.0]
    for group in groups:
        counted = [theirs[k] for k in group["kernels"] if k in theirs]
        us = sum(k["us"] for k in counted)
        if us == 0:
            continue
        mine = [100 * group["bytes"] / (group["us"] * 1e-6) / ceilings["memory_bytes_per_s"],
                100 * group["flops"] / (group["us"] * 1e-6) / ceilings["flops_per_s"]]
        its = [sum(k["memory"] for k in counted) / us, sum(k["tensor"] for k in counted) / us]
        for i in range(2):
            near[i] += group["us"] * (abs(mine[i] - its[i]) <= 10)
        print(f"{group['name'][:44]:44} {mine[0]:12.0f}% {its[0]:4.0f}% {mine[1]:12.0f}% {its[1]:4.0f}%")
    print(f"of the summed time within 10 points: memory {100 * near[0] / total:.0f} %, tensor {100 * near[1] / total:.0f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
