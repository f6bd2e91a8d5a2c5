#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Facts that decide speed, read from what nvcc and ptxas make of the kernels.

kernel_facts.py --nvcc NVCC --source DIR --work DIR [--nvdisasm PROGRAM] [--arch 80 90a ...]
                [--self-test]

Compiles writers and operations to PTX and cubins for each architecture and looks at every kernel:
at its PTX, at what ptxas says, and with nvdisasm at its machine code, whose order is what runs. It
guards against regressions and proves no speed. --self-test plants a regression for each check, in
what was read, and wants it found.
"""
import argparse
import concurrent.futures
import copy
import os
import re
import struct
import subprocess
import sys

ELEMENTS = ["f32", "f16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8", "int8_asym", "int4"]
FP8 = ("fp8_e4m3", "fp8_e5m2")
VECTOR_KERNELS = ("write_static", "write_per_token_head", "gather_vectors")
ANY_KERNELS = ("write_any", "gather_any")  # number by number, at any address
CONVERT = re.compile(r"cvt\.rn\.satfinite\.(?:e4m3x2|e5m2x2)\.f32")
# With every cache qualifier in between: ld.global.nc.L1::no_allocate.v4.u32
WIDE_LOAD = re.compile(r"^\s*(?:@%p\d+ )?ld\.global[.\w:]*\.v4\.")
STORE = re.compile(r"^\s*(?:@%p\d+ )?st\.global[.\w:]*\.v[24]\.")
NARROW = re.compile(r"(?:ld|st)\.global[.\w:]*\.[usb](?:8|16)\b")
WIDE = re.compile(r"(?:ld|st)\.global[.\w:]*\.v[24]\.")
ACCESS = re.compile(r"\b(?:ld|st|atom|red)\.global\b")
WAIT = re.compile(r"griddepcontrol\.wait")
# The same in machine code.
SASS_CONVERT = re.compile(r"\bF2FP\.SATFINITE\.E[45]M[23]\.F32\.PACK")
SASS_WIDE_LOAD = re.compile(r"\bLDG\.[.\w]*\b128\b")
SASS_STORE = re.compile(r"\bSTG\.[.\w]*\b(?:64|128)\b")
SASS_NARROW = re.compile(r"\b(?:LDG|STG)\.[.\w]*\b[US](?:8|16)\b")
SASS_WIDE = re.compile(r"\b(?:LDG|STG)\.[.\w]*\b128\b")
SASS_ACCESS = re.compile(r"\b(?:LDG|STG|LD|ST|ATOMG|REDG)\.E\b")
SASS_WAIT = re.compile(r"\bACQBULK\b")


class Kernel:
    """One entry of one architecture."""

    def __init__(self, arch, mangled, body):
        self.arch, self.body = arch, body
        match = re.search(r"detail\d+([a-z_]+?)I", mangled)
        self.name = match.group(1) if match else mangled
        self.elements = [ELEMENTS[int(n)] for n in
                         re.findall(r"(?:LNS0_7ElementE|LS4_)(\d)E", mangled)]
        self.rotates = self.name.startswith("write_") and "ELb1EE" in mangled
        self.registers = self.spills = self.sass = None

    def __str__(self):
        rotates = ", rotates" if self.rotates else ""
        return f"sm_{self.arch} {self.name}<{', '.join(self.elements)}{rotates}>"


def number(arch):
    return int(re.match(r"\d+", arch).group())


def read_ptx(text, arch):
    """The project's kernels; those of CUB are left out."""
    kernels = {}
    for match in re.finditer(r"\.entry (\w+)\(.*?^\}", text, re.S | re.M):
        if "7pagedkv" not in match.group(1)[:12]:
            continue
        body = match.group().split("{", 1)[1]
        kernels[match.group(1)] = Kernel(arch, match.group(1), body)
    return kernels


def read_resources(text, kernels):
    """What `ptxas -v` says, into the kernels."""
    current = None
    for line in text.splitlines():
        if match := re.search(r"Compiling entry function '(\w+)'", line):
            current = kernels.get(match.group(1))
        if current is None:
            continue
        if match := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            current.spills = int(match.group(1)) + int(match.group(2))
        if match := re.search(r"Used (\d+) registers", line):
            current.registers = int(match.group(1))


def read_sass(text, kernels):
    """What nvdisasm says, into the kernels."""
    for match in re.finditer(r"^\.text\.(\w+):\n(.*?)(?=^\s*\.section|\Z)", text, re.S | re.M):
        if match.group(1) in kernels:
            kernels[match.group(1)].sass = match.group(2)


def wants_converts(k):
    return k.name.startswith("write_") and k.name != "write_any" and k.elements[1] in FP8


def loads_before_store(text, load, store):
    """16-byte loads in front of the first store of 8 or 16 bytes."""
    lines = text.splitlines()
    first_store = next((i for i, line in enumerate(lines) if store.search(line)), 0)
    return sum(1 for line in lines[:first_store] if load.search(line))


def access_problems(name, code, narrow, wide, wide_load, store):
    """What is wrong with the widths of a kernel's accesses, in PTX or in machine code."""
    found = []
    if name in VECTOR_KERNELS:
        if narrow.search(code):
            found.append("an access of 1 or 2 bytes")
        if name != "gather_vectors":
            loads = loads_before_store(code, wide_load, store)
            if loads < 4:
                found.append(f"{loads} 16-byte loads before the first store; at least 4")
    if name in ANY_KERNELS and wide.search(code):
        found.append("an access of 16 bytes")
    return found


def is_early(code, access, wait):
    """Whether global memory is accessed before the kernel ahead has ended."""
    first, waits = access.search(code), wait.search(code)
    return bool(first and waits and first.start() < waits.start())


def sass_problems(k):
    """What is wrong with a kernel's machine code, in words."""
    found = []
    if is_early(k.sass, SASS_ACCESS, SASS_WAIT):
        found.append("an access before the wait")
    for pattern, what in ((r"\bD(?:ADD|MUL|FMA|SETP)\b", "double"),
                          (r"\b(?:LDL|STL)\b", "local memory")):
        if re.search(pattern, k.sass):
            found.append(what)
    if wants_converts(k):
        # Both sides in one loop body, or K's and V's in their own.
        have = len(SASS_CONVERT.findall(k.sass))
        if (have > 0) != (number(k.arch) >= 89) or 0 < have < 16:
            found.append(f"{have} hardware converts")
    found += access_problems(k.name, k.sass, SASS_NARROW, SASS_WIDE, SASS_WIDE_LOAD, SASS_STORE)
    return [f"{what} in machine code" for what in found]


def problems_of(k):
    """What is wrong with a kernel, in words."""
    found = sass_problems(k) if k.sass is not None else []
    for pattern, what in ((r"\.f64\b", "double"), (r"\bdiv\.rn\.f", "a true division"),
                          (r"\b(?:ld|st)\.local|\.local \.align", "local memory"),
                          (r"\bcall\b", "a call")):
        # Once an output element of attention, not in a loop.
        if k.name == "merge_splits" and "div" in pattern:
            continue
        if re.search(pattern, k.body):
            found.append(what)
    if k.spills is None or k.registers is None:
        found.append("ptxas said nothing of it")
        return found
    if k.spills:
        found.append(f"{k.spills} bytes spilled")

    if wants_converts(k):
        # 16 elements of K and of V; the third writer has one side, and requantizes.
        want = 0 if number(k.arch) < 89 else 16
        have = len(CONVERT.findall(k.body))
        if have != want:
            found.append(f"{have} hardware converts instead of {want}")
        limit = {"write_static": 64 if k.rotates else 40, "write_per_token_head": 64}.get(k.name)
        if limit and k.registers > limit:
            found.append(f"{k.registers} registers; at most {limit}")
    found += access_problems(k.name, k.body, NARROW, WIDE, WIDE_LOAD, STORE)
    if is_early(k.body, ACCESS, WAIT):
        found.append("an access before griddepcontrol.wait")
    waits = WAIT.search(k.body) is not None
    releases = "griddepcontrol.launch_dependents" in k.body
    late = number(k.arch) >= 90
    if waits != late:
        found.append("no griddepcontrol.wait" if late else "griddepcontrol below 9.0")
    if k.name in VECTOR_KERNELS + ("write_per_block_head",) and releases != late:
        found.append("no griddepcontrol.launch_dependents" if late else "griddepcontrol below 9.0")
    return found


def code_sizes(cubin):
    """Bytes of machine code by kernel: the .text sections of an ELF file."""
    with open(cubin, "rb") as file:
        data = file.read()
    (offset,) = struct.unpack_from("<Q", data, 40)
    entry_size, count, names_index = struct.unpack_from("<HHH", data, 58)
    sections = [struct.unpack_from("<IIQQQQ", data, offset + i * entry_size)
                for i in range(count)]
    names = sections[names_index][4]
    sizes = {}
    for name, _, _, _, _, size in sections:
        text = data[names + name:data.index(b"\0", names + name)].decode()
        if text.startswith(".text."):
            sizes[text[6:]] = size
    return sizes


def slope_problems(sizes, arch):
    """Machine-code slots (16 bytes) per converted element, from 2 and 10 chunks of 16."""
    found, by_pair = [], {}
    for mangled, size in sizes.items():
        elements = re.findall(r"(?:LNS0_7ElementE|LS4_)(\d)E", mangled)
        chunks = int(re.search(r"Li(\d+)E", mangled).group(1))
        by_pair.setdefault(tuple(ELEMENTS[int(e)] for e in elements), {})[chunks] = size
    if not by_pair:
        found.append(f"sm_{arch}: no kernels to take a slope from")
    limit = 18 if number(arch) < 89 else 3.5
    for pair, of in sorted(by_pair.items()):
        slots = (of[10] - of[2]) / 16 / (8 * 16)
        print(f"sm_{arch} {pair[0]} -> {pair[1]}: {slots:.2f} slots an element")
        if slots > limit:
            found.append(f"sm_{arch} {pair[0]} -> {pair[1]}: {slots:.2f} slots an element; "
                         f"at most {limit}")
    return found


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout}")
    return done.stdout


def compile_to(nvcc, source, name, arch, work):
    """PTX, cubin and what ptxas said of nvcc's `name` for one architecture."""
    stem = os.path.join(work, f"{os.path.basename(name).split('.')[0]}_{arch}")
    run([nvcc, "-std=c++20", "-O3", "-DPAGEDKV_CUDA_KERNELS_COMPILED",
         "-I", os.path.join(source, "include"), f"-arch=compute_{arch}", "-ptx",
         os.path.join(source, name), "-o", stem + ".ptx"])
    ptxas = os.path.join(os.path.dirname(os.path.realpath(nvcc)), "ptxas")
    said = run([ptxas, "-v", f"-arch=sm_{arch}", stem + ".ptx", "-o", stem + ".cubin"])
    with open(stem + ".ptx") as file:
        return file.read(), stem + ".cubin", said


def plant(kernels):
    """Every check has a regression planted; returns those that weren't found."""
    def changed(k, pattern, by):
        other = copy.copy(k)
        other.body = re.sub(pattern, by, k.body)
        assert other.body != k.body, f"{k}: nothing to plant {by!r} at"
        return other

    def with_value(k, **values):
        other = copy.copy(k)
        other.__dict__.update(values)
        return other

    def of(name, arch, out="fp8_e4m3", rotates=False):
        return next(k for k in kernels if k.name == name and k.arch == arch
                    and k.elements[-1] == out and k.rotates == rotates)

    low, high = kernels[0].arch, kernels[-1].arch
    static, dynamic = of("write_static", high), of("write_per_token_head", high)
    of_any = next(k for k in kernels if k.name == "gather_any" and k.arch == high)
    rotating = of("write_static", high, rotates=True)
    first_load = r"(?m)^.*ld\.global[^\n]*v4.*$"
    planted = [
        (changed(static, r"cvt\.rn\.satfinite\.e4m3x2\.f32", "lost"), "hardware converts"),
        (with_value(static, arch=low, body=re.sub("griddepcontrol", "x", static.body)),
         "hardware converts"),
        (changed(static, r"rcp\.rn\.f32", "div.rn.f32"), "a true division"),
        (changed(static, r"ret;", "cvt.f64.f32 %fd1, %f1;\nret;"), "double"),
        (changed(static, r"ret;", "ld.local.u32 %r1, [%rd1];\nret;"), "local memory"),
        (changed(static, r"ret;", "call.uni f, ();\nret;"), "a call"),
        (changed(static, r"ret;", "st.global.u8 [%rd1], %r1;\nret;"), "1 or 2 bytes"),
        (changed(dynamic, r"ret;", "ld.global.nc.L1::no_allocate.u16 %rs1, [%rd1];\nret;"),
         "1 or 2 bytes"),
        (changed(static, first_load, "\tst.global.v4.u32 [%rd1], {%r1, %r1, %r1, %r1};"),
         "before the first store"),
        (changed(static, r"griddepcontrol\.wait", "nop"), "griddepcontrol.wait"),
        (changed(dynamic, r"griddepcontrol\.launch_dependents", "nop"), "launch_dependents"),
        (changed(of("write_static", low), r"ret;", "griddepcontrol.wait;\nret;"),
         "griddepcontrol below 9.0"),
        (changed(static, r"griddepcontrol\.wait;",
                 "ld.global.nc.u32 %r1, [%rd1];\ngriddepcontrol.wait;"), "before griddepcontrol.wait"),
        (with_value(static, spills=8), "spilled"),
        (with_value(static, registers=41), "registers"),
        (with_value(dynamic, registers=65), "registers"),
        (changed(of_any, r"ret;", "ld.global.v4.u32 {%r1, %r1, %r1, %r1}, [%rd1];\nret;"),
         "16 bytes"),
        (with_value(rotating, registers=65), "registers"),
        (changed(rotating, r"ret;", "ld.global.nc.u16 %rs1, [%rd1];\nret;"), "1 or 2 bytes"),
        (changed(rotating, first_load, "\tst.global.v4.u32 [%rd1], {%r1, %r1, %r1, %r1};"),
         "before the first store"),
    ]
    if static.sass is not None:
        def with_code(k, line):
            return with_value(k, sass=k.sass + f"        /*0000*/  {line} ;\n")

        planted += [
            (with_code(static, "DMUL R2, R2, R4"), "double in machine code"),
            (with_code(static, "STL [R1], R2"), "local memory in machine code"),
            (with_code(static, "LDG.E.U16.CONSTANT R2, desc[UR4][R4.64]"),
             "1 or 2 bytes in machine code"),
            (with_value(static, sass=SASS_CONVERT.sub("F2FP.LOST", static.sass)),
             "converts in machine code"),
            (with_value(static, sass="STG.E.128 [R2.64], R4 ;\n" + static.sass),
             "before the first store; at least 4 in machine code"),
            (with_code(of_any, "STG.E.128 [R2.64], R4"), "16 bytes in machine code"),
            (with_value(static, sass="LDG.E.CONSTANT R2, desc[UR4][R4.64] ;\n" + static.sass),
             "before the wait in machine code"),
        ]
    missed = [what for k, what in planted
              if not any(what in problem for problem in problems_of(k))]
    sizes = {"ILNS0_7ElementE1ELS4_3ELi2EE": 0, "ILNS0_7ElementE1ELS4_3ELi10EE": 16 * 128 * 19}
    if not slope_problems(sizes, low):
        missed.append("slots an element")
    print(f"{len(planted) + 1} regressions planted, {len(missed)} missed")
    return missed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nvcc", required=True)
    parser.add_argument("--source", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--nvdisasm", default="", help="also reads the machine code")
    parser.add_argument("--arch", nargs="+", default=["80", "89", "90a", "100a", "120a"])
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    os.makedirs(args.work, exist_ok=True)

    found, kernels = [], []
    names = [f"cuda/write_kv{rope}_{element}.cu" for rope in ("", "_rope")
             for element in ("f16", "bf16", "f32")]
    names += ["cuda/operations.cu", "cuda/decode_attention.cu", "tests/ptx/convert_slope.cu"]
    # CUB takes half a minute to compile.
    jobs = [(arch, "cuda/calibrate_amax.cu") for arch in (args.arch[0], args.arch[-1])]
    jobs += [(arch, name) for arch in args.arch for name in names]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        compiled = list(pool.map(
            lambda job: compile_to(args.nvcc, args.source, job[1], job[0], args.work), jobs))
    for (arch, name), (ptx, cubin, said) in zip(jobs, compiled):
        if "slope" in name:
            found += slope_problems(code_sizes(cubin), arch)
            continue
        read = read_ptx(ptx, arch)
        read_resources(said, read)
        if args.nvdisasm:
            read_sass(run([args.nvdisasm, "-c", cubin]), read)
            found += [f"{k}: no machine code was read" for k in read.values() if not k.sass]
        kernels += read.values()
    if not args.nvdisasm:
        print("no nvdisasm: PTX and code sizes only")
    for k in kernels:
        found += [f"{k}: {problem}" for problem in problems_of(k)]
    print(f"{len(kernels)} kernels, {len(found)} problems")
    if args.self_test:
        found += [f"planted and not found: {what}" for what in plant(kernels)]
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
