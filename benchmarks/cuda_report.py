#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A short table of what cuda_data measured: cuda_report.py RESULTS.json

GB/s as a share of the copy on the same device in the same run, beside what is wanted of it. Exit
status 1 when a row computed something wrong or nothing can be compared; a missed wish is no error.
"""
import json
import sys

COPY = "device_copy"


class Unusable(Exception):
    """The file holds no table, in words."""


def rows_of(results):
    """The best of each benchmark's repeats, in order: (name parts, microseconds, bytes/s)."""
    best, wrong = {}, []
    for b in results.get("benchmarks", []):
        if b.get("run_type") == "aggregate":
            continue
        name = b["name"].split("/manual_time")[0]
        if b.get("error_occurred"):
            wrong.append(f"{name}: {b.get('error_message', 'an error')}")
            continue
        row = (b["microseconds"], b["bytes_per_second"])
        if name not in best or row < best[name]:
            best[name] = row
    return best, wrong


def wish(operation, tokens):
    """What is wanted: ('us', at most) or ('share', at least); None where nothing was said."""
    if operation == "write_kv" and tokens <= 64:
        return "us", 3.0
    if operation == "write_kv" and tokens >= 1024:
        return "share", 0.85
    if operation == "copy_blocks":
        return "share", 0.90
    return None


def verdict(operation, tokens, microseconds, share):
    wanted = wish(operation, tokens)
    if wanted is None:
        return ""
    kind, limit = wanted
    met = microseconds <= limit if kind == "us" else share >= limit
    text = f"<= {limit:g} us" if kind == "us" else f">= {limit:.0%}"
    return f"{text}: {'met' if met else 'missed'}"


def table_of(results):
    """The table as lines, and what was wrong. Raises Unusable."""
    best, wrong = rows_of(results)
    if COPY not in best:
        raise Unusable("no row 'device_copy': there is nothing to compare with")
    copy = best.pop(COPY)[1]
    if copy <= 0:
        raise Unusable("device_copy took no time")
    device = results.get("context", {}).get("device", "an unnamed device")
    lines = [f"{device}: a copy moves {copy / 1e9:.0f} GB/s, read and written", "",
             f"{'operation':<17} {'format':<25} {'tokens':>7} {'us':>9} {'GB/s':>7} {'of a copy':>9}"
             f"  wanted"]
    for name, (microseconds, speed) in best.items():
        # operation/tokens, with an element, or a format, between the two.
        operation, *form, tokens = name.split("/")
        form = " ".join(part for part in form if part != "none")
        share = speed / copy
        says = verdict(operation, int(tokens), microseconds, share)
        lines.append(f"{operation:<17} {form:<25} {tokens:>7} {microseconds:>9.1f} "
                     f"{speed / 1e9:>7.0f} {share:>9.0%}  {says}".rstrip())
    return lines, wrong


def main(arguments):
    if len(arguments) != 1:
        print("usage: cuda_report.py RESULTS.json", file=sys.stderr)
        return 2
    try:
        with open(arguments[0]) as file:
            lines, wrong = table_of(json.load(file))
    except (OSError, ValueError, KeyError, Unusable) as error:
        print(f"cuda_report.py: {arguments[0]}: {error}", file=sys.stderr)
        return 1
    print("\n".join(lines))
    for row in wrong:
        print(f"WRONG {row}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
