# SPDX-License-Identifier: Apache-2.0
"""Counts the prefetch instructions of the compiled library: a compiler that drops them makes it half as
fast and breaks no other test.

    prefetches.py [--archive libpagedkv.a] [--compile COMPILER...] --source DIR --work DIR [-I DIR...]

--archive counts in the archive that was built, --compile in what each compiler makes of the same sources
as in a release build. Exit status: 0 enough, 1 too few, 77 no objdump (ctest: skipped).
"""
import argparse
import os
import re
import shutil
import subprocess
import sys

# At least so many in each object, by the source that it's made of. This is the only place to change
# when the sources do. How it was chosen, for pagedkv.cpp: what g++ 12 left of them without
# `keep_prefetch` (detail/lazy_array.hpp) was 13 at -O3 and 12 at -O2; with it there are 24 and 24; clang 14
# makes 24. The floor is in the middle.
FLOORS = {"pagedkv.cpp": 19}

OPTIONS = ["-std=c++20", "-O3", "-DNDEBUG", "-fPIC", "-DPAGEDKV_COMPILED", "-DFMT_HEADER_ONLY=1"]
OBJDUMP = os.environ.get("OBJDUMP", "objdump")
# x86: prefetcht0, prefetchw, ...; ARM: prfm.
PREFETCH = re.compile(r"^\s*[0-9a-f]+:\s+(prefetch\w*|prfm)\b")
MEMBER = re.compile(r"^(\S+):\s+file format ")


def counts(path):
    """{object's name: prefetches} of an object or of each member of an archive."""
    text = subprocess.run([OBJDUMP, "-d", "--no-show-raw-insn", path], check=True,
                          stdout=subprocess.PIPE, universal_newlines=True).stdout
    found, member = {}, None
    for line in text.splitlines():
        header = MEMBER.match(line)
        if header:
            member = os.path.basename(header.group(1))
            found[member] = 0
        elif PREFETCH.match(line):
            found[member] += 1
    return found


def compiled(compiler, source, arguments):
    target = os.path.join(arguments.work, os.path.basename(compiler) + "-" + source + ".o")
    includes = ["-I" + directory for directory in arguments.include]
    subprocess.run([compiler, *OPTIONS, *includes, "-c",
                    os.path.join(arguments.source, "src", source), "-o", target], check=True)
    return target


def enough(where, source, found):
    """Whether the object of `source` is among those found and has its prefetches; says so."""
    number = next((n for name, n in found.items() if name.endswith(source + ".o")), None)
    if number is None:
        print(f"{where}: no object of {source} among {', '.join(found) or 'none'}")
        return False
    floor = FLOORS[source]
    if number >= floor:
        print(f"{where}: {source} has {number} prefetches, at least {floor} are wanted")
        return True
    print(f"{where}: {source} has {number} prefetches, and at least {floor} are wanted. Did the compiler "
          "drop them (keep_prefetch in include/pagedkv/detail/lazy_array.hpp)? If there are fewer in the "
          "source by intent, change FLOORS in tests/archive/prefetches.py.")
    return False


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--archive")
    parser.add_argument("--compile", nargs="*", default=[])
    parser.add_argument("--source", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("-I", dest="include", action="append", default=[])
    arguments = parser.parse_args()

    if shutil.which(OBJDUMP) is None:
        print(f"skipped: no {OBJDUMP} at hand (Debian: apt install binutils)")
        return 77
    os.makedirs(arguments.work, exist_ok=True)
    good = True
    for source in FLOORS:
        if arguments.archive:
            good &= enough(arguments.archive, source, counts(arguments.archive))
        for compiler in arguments.compile:
            good &= enough(compiler, source, counts(compiled(compiler, source, arguments)))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
