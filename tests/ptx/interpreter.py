# SPDX-License-Identifier: Apache-2.0
"""Runs PTX, the code that nvcc emits, one Python generator for each CUDA thread.

A kernel becomes one Python function: registers are its local variables (their bits, as unsigned
integers), barriers and collectives of a warp are yields. Memory is checked byte by byte, shared
memory begins as NaN, asynchronous copies arrive at their wait. An opcode that isn't known stops the
run by its name; nothing is guessed. Python 3.8 or later, no packages.

    module = Module(text)
    device = Device()
    x = device.allocate(bytes, "x")
    device.run(module.kernel("name"), grid=(2,), block=(64,), arguments=[x, 5], seed=1)
    device.read(x)
"""
import math
import random
import re
import struct
from fractions import Fraction


class Fault(Exception):
    """The program did what no device defines, or something that isn't implemented here."""


# Numbers ----------------------------------------------------------------------------------------

def f32(bits):
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def b32(x):
    """The bits of the nearest f32."""
    if x != x:
        return 0x7FFFFFFF
    try:
        return struct.unpack("<I", struct.pack("<f", x))[0]
    except OverflowError:
        return 0x7F800000 if x > 0 else 0xFF800000


def f16(bits):
    return struct.unpack("<e", struct.pack("<H", bits))[0]


def b16(x):
    """The bits of the nearest binary16."""
    if x != x:
        return 0x7FFF
    try:
        return struct.unpack("<H", struct.pack("<e", x))[0]
    except OverflowError:
        return 0x7C00 if x > 0 else 0xFC00


def bf16(bits):
    return f32(bits << 16)


def bbf16(x):
    """The bits of the bfloat16 nearest to an f32."""
    if x != x:
        return 0x7FFF
    bits = b32(x)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16) & 0xFFFF


def small_float(x, mantissa, bias, largest):
    """The 8-bit code nearest to x (ties to even), saturated."""
    if x != x:
        return 0x7F
    sign = 0x80 if math.copysign(1.0, x) < 0 else 0
    magnitude = min(abs(x), largest)
    if magnitude == 0:
        return sign
    exponent = max(math.frexp(magnitude)[1] - 1, 1 - bias)
    steps = round(magnitude / 2.0 ** (exponent - mantissa))  # round() takes ties to even
    code = (exponent + bias - 1 << mantissa) + steps
    return sign | code


def e4m3(x):
    return small_float(x, 3, 7, 448.0)


def e5m2(x):
    return small_float(x, 2, 15, 57344.0)


def from_e4m3(code):
    sign = -1.0 if code & 0x80 else 1.0
    exponent, steps = code >> 3 & 15, code & 7
    if code & 0x7F == 0x7F:
        return math.nan
    value = steps / 8.0 * 2.0 ** -6 if exponent == 0 else (1 + steps / 8.0) * 2.0 ** (exponent - 7)
    return sign * value


def from_e5m2(code):
    return f16(code << 8)


def divide(a, b):
    if b != 0:
        return a / b
    if a == 0 or a != a:
        return math.nan
    return math.copysign(math.inf, a) * math.copysign(1.0, b)


def multiply(a, b):
    return a * b  # inf * 0 is NaN in Python too


def multiply_add(a, b, c):
    """a * b + c, rounded once by whoever takes the bits."""
    if not all(map(math.isfinite, (a, b, c))):
        return a * b + c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return a * b + c
    return round_to_f32(exact)


def round_to_f32(exact):
    """A Fraction that isn't 0, to f32, ties to even."""
    magnitude = abs(exact)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, -126) - 23)
    steps = round(magnitude / unit)
    value = math.inf if steps * unit >= Fraction(2) ** 128 else float(steps * unit)
    return value if exact > 0 else -value


def larger(a, b):
    if a != a or b != b:
        return b if a != a else a
    if a == b == 0:
        return a if math.copysign(1.0, a) > 0 else b
    return max(a, b)


def smaller(a, b):
    return -larger(-a, -b) if a == a and b == b else larger(a, b)


def exp2(x):
    try:
        y = 2.0 ** x
    except OverflowError:
        return math.inf
    return y if y >= 2.0 ** -126 or y != y else 0.0


def log2(x):
    if x != x or x < 0:
        return math.nan
    return -math.inf if x == 0 else math.inf if x == math.inf else math.log2(x)


def root(x):
    return math.nan if x < 0 else math.sqrt(x)


def to_integer(x, how, low, high):
    if x != x:
        return 0
    if math.isinf(x):
        return high if x > 0 else low
    n = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}[how](x)
    return min(max(n, low), high)


def signed(value, width):
    value &= (1 << width) - 1
    return value - (1 << width) if value >> (width - 1) else value


def quotient(a, b):
    if b == 0:
        raise Fault("a division by 0")
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


def permute(a, b, selector):
    data = b << 32 | a
    result = 0
    for i in range(4):
        pick = selector >> 4 * i & 15
        byte = data >> 8 * (pick & 7) & 0xFF
        if pick & 8:
            byte = 0xFF if byte & 0x80 else 0
        result |= byte << 8 * i
    return result


def logic3(a, b, c, table):
    result = 0
    for i in range(8):
        if table >> i & 1:
            result |= (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
    return result & 0xFFFFFFFF


def insert_bits(a, b, start, length, width):
    mask = ((1 << length) - 1) << start & (1 << width) - 1
    return b & ~mask | a << start & mask


# Memory -----------------------------------------------------------------------------------------

SHARED_WINDOW = 0x01000000  # where shared and local memory lie among generic addresses
LOCAL_WINDOW = 0x02000000
WINDOW = 0x01000000


class Space:
    """Bytes from address `base` on."""

    def __init__(self, name, data, base=0):
        self.name, self.data, self.base = name, data, base


class Memory:
    """What one thread sees."""

    def __init__(self, device, shared, local):
        self.device, self.shared, self.local = device, shared, local

    def place(self, space, address, size, doing):
        if space == "generic":
            if SHARED_WINDOW <= address < SHARED_WINDOW + WINDOW:
                space, address = "shared", address - SHARED_WINDOW
            elif LOCAL_WINDOW <= address < LOCAL_WINDOW + WINDOW:
                space, address = "local", address - LOCAL_WINDOW
            else:
                space = "global"
        if space == "global":
            block = self.device.find(address)
        else:
            block = self.shared if space == "shared" else self.local
        if block is None:
            raise Fault(f"{doing} of {size} bytes at {address:#x}, which is no buffer's")
        offset = address - block.base
        if offset < 0 or offset + size > len(block.data):
            raise Fault(f"{doing} of {size} bytes at byte {offset} of '{block.name}', "
                        f"which has {len(block.data)}")
        if address % size:
            raise Fault(f"{doing} of {size} bytes at {address:#x}, not aligned")
        return block.data, offset

    def load(self, space, address, size, count):
        data, at = self.place(space, address, size * count, "load")
        return [int.from_bytes(data[at + i * size:at + (i + 1) * size], "little")
                for i in range(count)]

    def store(self, space, address, size, values):
        data, at = self.place(space, address, size * len(values), "store")
        mask = (1 << 8 * size) - 1
        for i, value in enumerate(values):
            data[at + i * size:at + (i + 1) * size] = (value & mask).to_bytes(size, "little")

    def atomic(self, space, address, size, change):
        data, at = self.place(space, address, size, "atomic")
        old = int.from_bytes(data[at:at + size], "little")
        data[at:at + size] = (change(old) & (1 << 8 * size) - 1).to_bytes(size, "little")
        return old


class Copies:
    """Asynchronous copies of one thread. The destination is garbage until they arrive."""

    def __init__(self, memory):
        self.memory, self.queue, self.group = memory, [], 0

    def start(self, to, source, size, source_size):
        data, at = self.memory.place("shared", to, size, "asynchronous copy")
        data[at:at + size] = b"\xff" * size
        self.queue.append((self.group, to, source, size, source_size))

    def commit(self):
        self.group += 1

    def wait(self, left):
        due = [c for c in self.queue if c[0] < self.group - left]
        self.queue = [c for c in self.queue if c[0] >= self.group - left]
        for _, to, source, size, source_size in due:
            content = b""
            if source_size:
                data, at = self.memory.place("global", source, size, "asynchronous copy")
                content = bytes(data[at:at + source_size])
            data, at = self.memory.place("shared", to, size, "asynchronous copy")
            data[at:at + size] = content.ljust(size, b"\0")


# From PTX to Python -----------------------------------------------------------------------------

WIDTHS = {"pred": 1, "f16x2": 32, "bf16x2": 32, "e4m3x2": 16, "e5m2x2": 16, "bf16": 16}
COMPARE = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "lo": "<",
           "ls": "<=", "hi": ">", "hs": ">="}
IGNORED = {"membar", "fence", "griddepcontrol", "prefetch", "prefetchu", "createpolicy",
           "applypriority"}
SPACES = ("global", "shared", "local", "param", "const")


def width_of(kind):
    return WIDTHS[kind] if kind in WIDTHS else int(kind[1:])


def mask_of(kind):
    return (1 << width_of(kind)) - 1


class Kernel:
    """A compiled entry: `body(thread, args)` is a generator."""

    def __init__(self, name, parameters, body_text, dynamic, module_shared):
        self.name = name
        self.parameters = {}  # name: (offset, size)
        self.parameter_bytes = 0
        self.shared = {}  # name: offset
        self.shared_bytes = 0
        self.local = {}
        self.local_bytes = 0
        self.dynamic = dynamic  # names of extern shared arrays
        self.register_widths = {}
        self.labels = {}
        self.tables = {}
        self.statements = []
        self.opcodes = set()
        self.read_parameters(parameters)
        for declared in module_shared:  # of functions that were inlined
            if re.split(r"[\s\[]", declared)[4] in body_text:
                self.read_statement(declared)
        self.read_body(body_text)
        self.source = self.translate()
        scope = {k: v for k, v in globals().items() if not k.startswith("__")}
        exec(compile(self.source, f"<{name}>", "exec"), scope)
        self.body = scope["body"]

    def read_parameters(self, text):
        for part in filter(None, (p.strip() for p in text.split(","))):
            found = re.match(r"\.param\s+(.*?)([\w$]+)(?:\[(\d+)\])?$", part, re.S)
            words = found.group(1).split()
            kind = next(w[1:] for w in words if re.match(r"\.[busf]\d+$", w))
            size = int(found.group(3)) if found.group(3) else width_of(kind) // 8
            align = int(words[words.index(".align") + 1]) if ".align" in words else size
            if ".ptr" in words:
                align = size
            offset = (self.parameter_bytes + align - 1) // align * align
            self.parameters[found.group(2)] = (offset, size)
            self.parameter_bytes = offset + size

    def read_body(self, text):
        label = re.compile(r"([$\w]+):(?!:)")
        at = 0
        while at < len(text):
            found = label.match(text, at)
            if text[at].isspace() or text[at] in "{}":  # scopes: names in them don't clash
                at += 1
            elif found:
                self.last_label = found.group(1)
                self.labels[self.last_label] = len(self.statements)
                at = found.end()
            else:
                end = text.index(";", at)
                self.read_statement(" ".join(text[at:end].split()))
                at = end + 1

    def read_statement(self, text):
        if not text:
            return
        if text.startswith(".reg"):
            kind, names = re.match(r"\.reg\s+\.(\w+)\s+(.*)", text).groups()
            for name in names.split(","):
                name = re.sub(r"<\d+>", "", name.strip())
                self.register_widths[name] = width_of(kind)
        elif text.startswith((".shared", ".local")):
            align, name, size = re.match(
                r"\.\w+\s+\.align\s+(\d+)\s+\.b8\s+([\w$]+)\[(\d+)\]", text).groups()
            align, size = int(align), int(size)
            if text.startswith(".shared"):
                at = (self.shared_bytes + align - 1) // align * align
                self.shared[name], self.shared_bytes = at, at + size
            else:
                at = (self.local_bytes + align - 1) // align * align
                self.local[name], self.local_bytes = at, at + size
        elif text.startswith(".branchtargets"):
            self.tables[self.last_label] = [t.strip() for t in text[14:].split(",")]
        elif not text.startswith((".pragma", ".loc", ".file")):
            self.statements.append(text)

    # Operands

    def register_width(self, name):
        return self.register_widths.get(name) or self.register_widths.get(
            re.sub(r"\d+$", "", name), 64)

    @staticmethod
    def local_name(register):
        return "r_" + re.sub(r"\W", "_", register)

    def value(self, operand, kind):
        """A Python expression of the operand's bits, cut to the kind's width."""
        mask = mask_of(kind)
        if operand.startswith("!"):
            return f"(1 - {self.value(operand[1:], kind)})"
        if re.match(r"0[fFdD][0-9a-fA-F]+$", operand):
            return str(int(operand[2:], 16))
        if re.match(r"-?(0[xX][0-9a-fA-F]+|\d+)U?$", operand):
            return str(int(operand.rstrip("U"), 0) & mask)
        special = re.match(r"%(tid|ctaid|ntid|nctaid)\.([xyz])$", operand)
        if special:
            return f"t.{special.group(1)}[{'xyz'.index(special.group(2))}]"
        if operand in ("%laneid", "WARP_SZ", "%lanemask_lt", "%lanemask_le", "%lanemask_gt",
                       "%lanemask_ge", "%lanemask_eq"):
            return {"WARP_SZ": "32", "%laneid": "t.lane", "%lanemask_eq": "(1 << t.lane)",
                    "%lanemask_lt": "((1 << t.lane) - 1)",
                    "%lanemask_le": "((2 << t.lane) - 1)",
                    "%lanemask_gt": "(0xFFFFFFFE << t.lane & 0xFFFFFFFF)",
                    "%lanemask_ge": "(0xFFFFFFFF << t.lane & 0xFFFFFFFF)"}[operand]
        if operand in self.shared:
            return str(self.shared[operand])
        if operand in self.local:
            return str(self.local[operand])
        if operand in self.parameters:  # its address, for ld.param
            return str(self.parameters[operand][0])
        if operand in self.dynamic:
            return "t.dynamic_base"
        if operand.startswith("%") or operand in self.register_widths:
            name = self.local_name(operand)
            return f"({name} & {mask})" if width_of(kind) < self.register_width(operand) else name
        raise Fault(f"operand '{operand}' is not known")

    def number(self, operand, kind):
        """A Python expression of the operand as a number."""
        bits = self.value(operand, kind)
        if kind[0] == "s":
            return f"signed({bits}, {width_of(kind)})"
        if kind in ("f32", "f16", "bf16"):
            return f"{kind}({bits})"
        if kind == "f64":
            raise Fault("f64 is not implemented")
        return bits

    def address(self, operand):
        found = re.match(r"\[\s*([%$\w]+)\s*(?:\+\s*(-?\d+))?\s*\]$", operand)
        if not found:
            raise Fault(f"address '{operand}' is not known")
        base, offset = found.group(1), int(found.group(2) or 0)
        if base in self.parameters:
            return str(self.parameters[base][0] + offset)
        base = self.value(base, "u64")
        return f"{base} + {offset}" if offset else base

    def assign(self, register, bits, kind):
        """kind: of what is assigned; signed kinds fill a wider register."""
        if register == "_":
            return bits
        return f"{self.local_name(register)} = {bits}"

    # Statements

    def translate(self):
        starts = {0} | set(self.labels.values())
        for i, text in enumerate(self.statements):
            if re.match(r"(@\S+ )?(bra|ret|exit|brx)\b", text):
                starts.add(i + 1)
        order = sorted(starts)
        self.block_of = {start: k for k, start in enumerate(order)}
        out = ["def body(t, args):", " memory = t.memory", " pc = 0", " while True:",
               "  if pc < 0: yield  # always a generator"]
        for k, start in enumerate(order):
            end = order[k + 1] if k + 1 < len(order) else len(self.statements)
            out.append(f"  if pc <= {k}:")
            for i in range(start, end):
                out.append(f"   t.at = {i}")
                out += [f"   {line}" for line in self.statement(self.statements[i])]
            out.append("   pass")
        out.append("  return")
        return "\n".join(out)

    def statement(self, text):
        found = re.match(r"(?:@(!?)([%\w]+)\s+)?([\w.:]+)\s*(.*)$", text)
        negated, predicate, name, rest = found.groups()
        self.opcodes.add(name)
        op = name.replace("::", "__").split(".")
        arguments = [a.strip() for a in re.split(r",(?![^{\[]*[}\]])", rest)] if rest else []
        lines = self.operation(op, arguments, text)
        if predicate:
            test = self.local_name(predicate)
            condition = f"if not {test}:" if negated else f"if {test}:"
            lines = [condition] + [" " + line for line in lines] + [" pass"]
        return lines

    def jump(self, label):
        return f"pc = {self.block_of[self.labels[label]]}; continue"

    def operation(self, op, a, text):
        head, kind = op[0], op[-1]
        if head in IGNORED:
            return ["pass"]
        if head == "bra":
            return [self.jump(a[-1])]
        if head == "brx":
            targets = [self.block_of[self.labels[t]] for t in self.tables[a[1]]]
            return [f"pc = {targets}[{self.value(a[0], 'u32')}]", "continue"]
        if head in ("ret", "exit"):
            return ["return"]
        if head == "trap":
            return ["raise Fault('trap')"]
        if head in ("bar", "barrier", "shfl", "vote", "match", "redux"):
            return self.collective(op, a, text)
        if head == "cp":
            return self.copy(op, a, text)
        if head in ("ld", "ldu", "st", "atom", "red"):
            return self.access(op, a, text)
        if head == "cvta":
            space = next(s for s in op if s in SPACES)
            window = {"shared": "SHARED_WINDOW", "local": "LOCAL_WINDOW"}.get(space, "0")
            sign = "-" if "to" in op else "+"
            return [self.assign(a[0], f"{self.value(a[1], kind)} {sign} {window}", kind)]
        if head == "mov":
            return self.move(a, kind)
        if head == "cvt":
            return [self.convert(op, a, text)]
        if head in ("setp", "set"):
            return self.compare(op, a, text)
        if head == "selp":
            return [self.assign(a[0], f"{self.value(a[1], kind)} if {self.value(a[3], 'pred')} "
                                      f"else {self.value(a[2], kind)}", kind)]
        if kind in ("f32",):
            return [self.assign(a[0], self.float_operation(op, a[1:], text), kind)]
        if kind in ("f16", "f16x2", "bf16", "bf16x2", "f64"):
            raise Fault(f"opcode not known: {text}")
        return [self.assign(a[0], self.integer_operation(op, a[1:], text), kind)]

    def move(self, a, kind):
        mask = mask_of(kind)
        if a[0].startswith("{"):
            parts = [p.strip() for p in a[0].strip("{}").split(",")]
            width = width_of(kind) // len(parts)
            lines = [f"x = {self.value(a[1], kind)}"]
            return lines + [self.assign(p, f"x >> {i * width} & {(1 << width) - 1}", kind)
                            for i, p in enumerate(parts) if p != "_"]
        if a[1].startswith("{"):
            parts = [p.strip() for p in a[1].strip("{}").split(",")]
            width = width_of(kind) // len(parts)
            joined = " | ".join(f"{self.value(p, f'b{width}')} << {i * width}"
                                for i, p in enumerate(parts))
            return [self.assign(a[0], f"({joined}) & {mask}", kind)]
        return [self.assign(a[0], self.value(a[1], kind), kind)]

    def float_operation(self, op, a, text):
        n = [self.number(x, "f32") for x in a]
        flags = set(op[1:-1]) - {"rn", "ftz", "approx", "full"}
        if flags:
            raise Fault(f"opcode not known: {text}")
        known = {
            "add": "b32({0} + {1})", "sub": "b32({0} - {1})", "mul": "b32(multiply({0}, {1}))",
            "div": "b32(divide({0}, {1}))", "fma": "b32(multiply_add({0}, {1}, {2}))",
            "rcp": "b32(divide(1.0, {0}))", "max": "b32(larger({0}, {1}))",
            "min": "b32(smaller({0}, {1}))", "ex2": "b32(exp2({0}))", "lg2": "b32(log2({0}))",
            "sqrt": "b32(root({0}))", "rsqrt": "b32(divide(1.0, root({0})))",
        }
        bits = [self.value(x, "f32") for x in a]
        if op[0] == "abs":
            return f"{bits[0]} & 0x7FFFFFFF"
        if op[0] == "neg":
            return f"{bits[0]} ^ 0x80000000"
        if op[0] == "copysign":
            return f"{bits[0]} & 0x80000000 | {bits[1]} & 0x7FFFFFFF"
        if op[0] not in known:
            raise Fault(f"opcode not known: {text}")
        return known[op[0]].format(*n)

    def integer_operation(self, op, a, text):
        head, kind = op[0], op[-1]
        width, mask = width_of(kind), mask_of(kind)
        flags = set(op[1:-1])
        if head in ("mul", "mad"):
            x, y = self.number(a[0], kind), self.number(a[1], kind)
            product = f"{x} * {y}"
            if "hi" in flags:
                product = f"({product} >> {width})"
            wide = 2 * width if "wide" in flags else width
            if head == "mad":
                product += f" + {self.value(a[2], f'b{wide}')}"
            return f"({product}) & {(1 << wide) - 1}"
        if head in ("shl", "shr"):
            # One that is wider takes everything away.
            by = f"min({self.value(a[1], 'u32')}, {width})"
            if head == "shl":
                return f"({self.value(a[0], kind)} << {by}) & {mask}"
            return f"({self.number(a[0], kind)} >> {by}) & {mask}"
        if head == "shf":
            low, high = self.value(a[0], "b32"), self.value(a[1], "b32")
            by = self.value(a[2], "u32")
            by = f"({by} & 31)" if "wrap" in flags else f"min({by}, 32)"
            both = f"({high} << 32 | {low})"
            if "l" in flags:
                return f"({both} << {by} >> 32) & {mask}"
            return f"({both} >> {by}) & {mask}"
        if head == "lop3":
            return f"logic3({', '.join(self.value(x, kind) for x in a)})"
        if head == "prmt" and len(op) == 2:
            return f"permute({', '.join(self.value(x, kind) for x in a)})"
        if head == "bfe" and kind[0] == "u":
            start, length = self.value(a[1], "u32"), self.value(a[2], "u32")
            return f"({self.value(a[0], kind)} >> ({start} & 255)) & ((1 << ({length} & 255)) - 1)"
        if head == "bfi":
            start, length = self.value(a[2], "u32"), self.value(a[3], "u32")
            return (f"insert_bits({self.value(a[0], kind)}, {self.value(a[1], kind)}, "
                    f"{start} & 255, {length} & 255, {width})")
        n = [self.number(x, kind) for x in a]
        known = {
            "add": "({0} + {1}) & {m}", "sub": "({0} - {1}) & {m}", "neg": "(-{0}) & {m}",
            "and": "{0} & {1}", "or": "{0} | {1}", "xor": "{0} ^ {1}", "not": "({0}) ^ {m}",
            "min": "min({0}, {1}) & {m}", "max": "max({0}, {1}) & {m}", "abs": "abs({0}) & {m}",
            "div": "quotient({0}, {1}) & {m}",
            "rem": "({0} - quotient({0}, {1}) * {1}) & {m}",
            "popc": "bin({0}).count('1')", "clz": "{w} - ({0}).bit_length()",
            "brev": "int(format({0}, '0{w}b')[::-1], 2)",
        }
        if head == "bfind" and kind[0] == "u" and not flags:
            return f"(({n[0]}).bit_length() - 1) & 0xFFFFFFFF"
        if head not in known or flags:
            raise Fault(f"opcode not known: {text}")
        return known[head].format(*n, m=mask, w=width)

    def compare(self, op, a, text):
        how, kind = op[1], op[-1]
        if op[0] == "set":
            raise Fault(f"opcode not known: {text}")
        x, y = self.number(a[1], kind), self.number(a[2], kind)
        lines = []
        if kind[0] == "f":
            lines = [f"x, y = {x}, {y}", "u = x != x or y != y"]
            if how in ("num", "nan"):
                test = "u" if how == "nan" else "not u"
            elif how.endswith("u") and how[:-1] in COMPARE:
                test = f"u or x {COMPARE[how[:-1]]} y"
            else:
                test = f"not u and x {COMPARE[how]} y"
        else:
            test = f"{x} {COMPARE[how]} {y}"
        if len(op) == 4 and op[2] in ("and", "or", "xor"):
            other = self.value(a[3], "pred")
            joint = {"and": "and", "or": "or", "xor": "!="}[op[2]]
            test = f"bool({test}) {joint} bool({other})"
        targets = a[0].split("|")
        lines.append(self.assign(targets[0].strip(), f"int(bool({test}))", "pred"))
        if len(targets) > 1:
            lines.append(self.assign(targets[1].strip(),
                                     f"1 - {self.local_name(targets[0].strip())}", "pred"))
        return lines

    def convert(self, op, a, text):
        to, source = op[-2], op[-1]
        flags = set(op[1:-2]) - {"ftz"}
        if source == "f32" and to in ("e4m3x2", "e5m2x2", "f16x2", "bf16x2"):
            if flags - {"rn", "satfinite"} or ("satfinite" in flags) != (to[0] == "e"):
                raise Fault(f"opcode not known: {text}")
            encode = {"e4m3x2": "e4m3", "e5m2x2": "e5m2", "f16x2": "b16", "bf16x2": "bbf16"}[to]
            high, low = self.number(a[1], "f32"), self.number(a[2], "f32")
            half = width_of(to) // 2
            return self.assign(a[0], f"{encode}({high}) << {half} | {encode}({low})", to)
        if source in ("e4m3x2", "e5m2x2") and to == "f16x2":
            decode = "from_" + source[:4]
            pair = self.value(a[1], source)
            return self.assign(a[0], f"b16({decode}({pair} >> 8)) << 16 | "
                                     f"b16({decode}({pair} & 255))", to)
        if flags - {"rn", "rni", "rzi", "rmi", "rpi"}:
            raise Fault(f"opcode not known: {text}")
        value = self.number(a[1], source)
        floats = {"f32": "b32", "f16": "b16", "bf16": "bbf16"}
        if to in floats:
            return self.assign(a[0], f"{floats[to]}(float({value}))"
                               if source in floats else f"{floats[to]}({value})", to)
        if to == "f64":
            raise Fault(f"opcode not known: {text}")
        if source in floats:
            rounding = next(iter(flags))
            width = width_of(to)
            low, high = (-(1 << width - 1), (1 << width - 1) - 1) if to[0] == "s" else (
                0, (1 << width) - 1)
            value = f"to_integer({value}, '{rounding}', {low}, {high})"
        # A signed result fills a register that is wider.
        width = max(width_of(to), self.register_width(a[0]) if to[0] == "s" else 0)
        if to[0] == "s" and width > width_of(to):
            value = f"signed({value}, {width_of(to)})"
            return self.assign(a[0], f"{value} & {(1 << width) - 1}", to)
        return self.assign(a[0], f"({value}) & {mask_of(to)}", to)

    def access(self, op, a, text):
        head, kind = op[0], op[-1]
        space = next((s.split("__")[0] for s in op if s.split("__")[0] in SPACES), "generic")
        size = max(width_of(kind) // 8, 1)
        count = next((int(s[1:]) for s in op if s in ("v2", "v4", "v8")), 1)
        if head in ("ld", "ldu"):
            targets = [x.strip() for x in a[0].strip("{}").split(",")]
            address = self.address(a[1])
            if space == "param":
                lines = [f"x = [int.from_bytes(args[{address} + i * {size}:{address} + (i + 1) * "
                         f"{size}], 'little') for i in range({count})]"]
            elif space == "const":
                raise Fault(f"opcode not known: {text}")
            else:
                lines = [f"x = memory.load('{space}', {address}, {size}, {count})"]
            for i, target in enumerate(targets):
                if target == "_":
                    continue
                value = f"x[{i}]"
                if kind[0] == "s":
                    width = max(self.register_width(target), width_of(kind))
                    value = f"signed({value}, {width_of(kind)}) & {(1 << width) - 1}"
                lines.append(self.assign(target, value, kind))
            return lines
        if head == "st":
            sources = [x.strip() for x in a[1].strip("{}").split(",")]
            values = ", ".join(self.value(x, kind) for x in sources)
            return [f"memory.store('{space}', {self.address(a[0])}, {size}, [{values}])"]
        target, rest = ("_", a) if head == "red" else (a[0], a[1:])
        change = next(s for s in op[1:] if s in ("add", "min", "max", "exch", "cas", "and", "or",
                                                 "xor"))
        given = self.value(rest[1], kind)
        number = f"signed(old, {width_of(kind)})" if kind[0] == "s" else "old"
        if kind == "f32":
            new = {"add": f"b32(f32(old) + f32({given}))"}.get(change)
        else:
            new = {"add": f"old + {given}", "exch": given, "and": f"old & {given}",
                   "or": f"old | {given}", "xor": f"old ^ {given}",
                   "min": f"min({number}, {self.number(rest[1], kind)})",
                   "max": f"max({number}, {self.number(rest[1], kind)})"}.get(change)
            if change == "cas":
                new = f"{self.value(rest[2], kind)} if old == {given} else old"
        if kind == "f32" and change == "exch":
            new = given
        if new is None:
            raise Fault(f"opcode not known: {text}")
        lines = [f"x = memory.atomic('{space}', {self.address(rest[0])}, {size}, "
                 f"lambda old: {new})"]
        return lines + ([self.assign(target, "x", kind)] if target != "_" else [])

    def copy(self, op, a, text):
        if op[1] != "async" or "bulk" in op:
            raise Fault(f"opcode not known: {text}")
        if op[2] == "commit_group":
            return ["t.copies.commit()"]
        if op[2] == "wait_group":
            return [f"t.copies.wait({self.value(a[0], 'u32')})"]
        if op[2] == "wait_all":
            return ["t.copies.commit()", "t.copies.wait(0)"]
        size = self.value(a[2], "u32")
        source_size = self.value(a[3], "u32") if len(a) > 3 else size
        return [f"t.copies.start({self.address(a[0])}, {self.address(a[1])}, {size}, "
                f"{source_size})"]

    def collective(self, op, a, text):
        head = op[0]
        if head in ("bar", "barrier") and op[1] == "warp":
            return [f"yield ('warp', {self.value(a[0], 'b32')}, ('bar.warp.sync',), 0)"]
        if head in ("bar", "barrier"):
            if op[1] == "red" or op[1:3] == ["cta", "red"]:
                how = next(s for s in op if s in ("popc", "and", "or"))
                kind = "u32" if how == "popc" else "pred"
                return [self.assign(a[0], f"yield ('block', 0, 'bar.red.{how}', "
                                          f"{self.value(a[-1], 'pred')})", kind)]
            if len(a) > 1:
                raise Fault(f"opcode not known: {text}")
            return [f"yield ('block', 0, '{'.'.join(op)}', 0)"]
        mask = self.value(a[-1], "b32")
        if head == "shfl":
            targets = [x.strip() for x in a[0].split("|")]
            lines = [f"x = yield ('warp', {mask}, ('shfl', '{op[2]}', {self.value(a[2], 'b32')}, "
                     f"{self.value(a[3], 'b32')}), {self.value(a[1], 'b32')})",
                     self.assign(targets[0], "x[0]", "b32")]
            if len(targets) > 1:
                lines.append(self.assign(targets[1], "x[1]", "pred"))
            return lines
        if head == "redux":
            kind = op[-1]
            what, given = f"('redux', '{op[2]}', '{kind}')", self.value(a[1], kind)
        elif head == "vote":
            what, given = f"('vote', '{op[2]}')", self.value(a[1], "pred")
        elif op[2] == "any":
            what, given = "('match',)", self.value(a[1], op[-1])
        else:
            raise Fault(f"opcode not known: {text}")
        return [self.assign(a[0], f"yield ('warp', {mask}, {what}, {given})", "b32")]


class Module:
    """All entries of a PTX file; one is compiled when it is asked for."""

    def __init__(self, text):
        self.text = re.sub(r"//[^\n]*", "", text)
        self.dynamic = set(re.findall(r"\.extern\s+\.shared\s+\.align\s+\d+\s+\.b8\s+([\w$]+)\[\]",
                                      self.text))
        self.entries = {}
        for found in re.finditer(r"\.entry\s+([\w$]+)\s*\((.*?)\)([^{]*)\{", self.text, re.S):
            depth, end = 1, found.end()
            while depth:
                depth += {"{": 1, "}": -1}.get(self.text[end], 0)
                end += 1
            self.entries[found.group(1)] = (found.group(2), self.text[found.end():end - 1])
        outside = self.text
        for _, body in self.entries.values():
            outside = outside.replace(body, "")
        self.shared = re.findall(r"(?<!extern )\.shared \.align \d+ \.b8 [\w$]+\[\d+\]",
                                 " ".join(outside.split()))
        self.kernels = {}

    def kernel(self, part):
        """The entry whose name contains `part`."""
        names = [n for n in self.entries if part in n]
        if len(names) != 1:
            raise Fault(f"{len(names)} entries have '{part}' in their name")
        name = names[0]
        if name not in self.kernels:
            self.kernels[name] = Kernel(name, *self.entries[name], self.dynamic,
                                        self.shared)
        return self.kernels[name]


# Running ----------------------------------------------------------------------------------------

class Thread:
    def __init__(self, kernel, device, number, tid, ctaid, ntid, nctaid, shared, parameters):
        self.number, self.lane = number, number % 32
        self.tid, self.ctaid, self.ntid, self.nctaid = tid, ctaid, ntid, nctaid
        self.dynamic_base = (kernel.shared_bytes + 15) // 16 * 16
        self.memory = Memory(device, shared,
                             Space("local memory", bytearray(b"\xff" * kernel.local_bytes)))
        self.copies = Copies(self.memory)
        self.at = 0
        self.kernel = kernel
        self.waits = None
        self.ended = False
        self.run = kernel.body(self, parameters)

    def step(self, result):
        """Goes on to the next barrier or collective, or to the end."""
        try:
            self.waits = self.run.send(result)
        except StopIteration:
            self.ended, self.waits = True, None
            if self.copies.queue:
                raise self.fault("the thread ends with an asynchronous copy that it never waited "
                                 "for") from None
        except Fault as e:
            raise self.fault(str(e)) from None
        except NameError as e:  # or UnboundLocalError
            raise self.fault(f"a register is read before it is written ({e})") from None

    def fault(self, what):
        return Fault(f"{what}; block {self.ctaid}, thread {self.tid}: "
                     f"{self.kernel.statements[self.at]}")


def reduce(how, kind, values):
    numbers = [signed(v, 32) if kind[0] == "s" else v for v in values]
    result = numbers[0]
    for n in numbers[1:]:
        result = {"add": lambda x, y: x + y, "min": min, "max": max, "and": lambda x, y: x & y,
                  "or": lambda x, y: x | y, "xor": lambda x, y: x ^ y}[how](result, n)
    return result & 0xFFFFFFFF


def shuffle(thread, lanes):
    _, mode, b, c = thread.waits[2]
    lane = thread.lane
    segment, clamp = c >> 8 & 31, c & 31
    low = lane & segment
    last = low | clamp & ~segment & 31
    b &= 31
    if mode == "up":
        source = lane - b
        inside = source >= last  # of .up the clamp is the lowest lane
    elif mode == "down":
        source = lane + b
        inside = source <= last
    elif mode == "bfly":
        source = lane ^ b
        inside = source <= last
    else:
        source = low | b & ~segment & 31
        inside = source <= last
    if not inside:
        source = lane
    if source not in lanes:
        raise thread.fault(f"a shuffle reads lane {source}, which has ended or is not in the mask")
    return lanes[source].waits[3], int(inside)


def warp_results(members):
    """What each lane of a collective gets."""
    lanes = {t.lane: t for t in members}
    results = {}
    for t in members:
        what = t.waits[2]
        values = [m.waits[3] for m in members]
        if what[0] == "shfl":
            results[t] = shuffle(t, lanes)
        elif what[0] == "redux":
            results[t] = reduce(what[1], what[2], values)
        elif what[0] == "vote":
            if what[1] == "ballot":
                results[t] = sum((1 << m.lane) for m in members if m.waits[3])
            else:
                results[t] = int({"any": any, "all": all}[what[1]](values))
        elif what[0] == "match":
            results[t] = sum((1 << m.lane) for m in members if m.waits[3] == t.waits[3])
        else:
            results[t] = None
    return results


class Device:
    """Global memory, and kernels run on it."""

    def __init__(self):
        self.spaces = []
        self.next = 0x700000000000

    def allocate(self, content, name):
        """Returns the address. Buffers lie far from each other."""
        space = Space(name, bytearray(content), self.next)
        self.spaces.append(space)
        self.next += (len(space.data) + (1 << 24) + 255) // 256 * 256
        return space.base

    def read(self, address):
        return bytes(next(s.data for s in self.spaces if s.base == address))

    def find(self, address):
        """The buffer that the address lies in, or near."""
        for space in self.spaces:
            if space.base - (1 << 23) <= address < space.base + len(space.data) + (1 << 23):
                return space
        return None

    @staticmethod
    def pack(kernel, arguments):
        if len(arguments) != len(kernel.parameters):
            raise Fault(f"{kernel.name} takes {len(kernel.parameters)} arguments")
        packed = bytearray(kernel.parameter_bytes)
        for (offset, size), value in zip(kernel.parameters.values(), arguments):
            if isinstance(value, float):
                value = struct.pack("<f", value)
            elif isinstance(value, int):
                value = (value & (1 << 8 * size) - 1).to_bytes(size, "little")
            if len(value) != size:
                raise Fault(f"an argument of {len(value)} bytes for a parameter of {size}")
            packed[offset:offset + size] = value
        return bytes(packed)

    def run(self, kernel, grid, block, arguments, dynamic_shared=0, seed=1):
        """Runs all blocks to their end, threads in a random order. Raises Fault."""
        grid, block = extent(grid), extent(block)
        parameters = self.pack(kernel, arguments)
        order = random.Random(seed)
        blocks = [(x, y, z) for z in range(grid[2]) for y in range(grid[1]) for x in range(grid[0])]
        order.shuffle(blocks)
        for ctaid in blocks:
            self.run_block(kernel, ctaid, grid, block, parameters, dynamic_shared, order)

    def run_block(self, kernel, ctaid, grid, block, parameters, dynamic_shared, order):
        size = (kernel.shared_bytes + 15) // 16 * 16 + dynamic_shared if dynamic_shared else \
            kernel.shared_bytes
        shared = Space("shared memory", bytearray(b"\xff" * size))
        tids = [(x, y, z) for z in range(block[2]) for y in range(block[1]) for x in range(block[0])]
        threads = [Thread(kernel, self, i, tid, ctaid, block, grid, shared, parameters)
                   for i, tid in enumerate(tids)]
        ready = [(t, None) for t in threads]
        while ready:
            k = order.randrange(len(ready))
            ready[k], ready[-1] = ready[-1], ready[k]
            thread, result = ready.pop()
            thread.step(result)
            ready += self.released(thread, threads)
        stuck = [t for t in threads if not t.ended]
        if stuck:
            raise stuck[0].fault("a deadlock: it waits for threads that never come")

    def released(self, thread, threads):
        """Threads that may go on because `thread` arrived somewhere or ended, with results."""
        warp = [t for t in threads[thread.number // 32 * 32:thread.number // 32 * 32 + 32]]
        for mask in {t.waits[1] for t in warp if t.waits and t.waits[0] == "warp"}:
            need = [t for t in warp if mask >> t.lane & 1 and not t.ended]
            have = [t for t in need if t.waits and t.waits[:2] == ("warp", mask)]
            if len(have) < len(need):
                continue
            kinds = {t.waits[2][:2] if t.waits[2][0] != "shfl" else "shfl" for t in have}
            if len(kinds) > 1:
                raise have[0].fault("lanes of one warp meet in different collectives")
            results = warp_results(have)
            for t in have:
                t.waits = None
            return [(t, results[t]) for t in have]
        live = [t for t in threads if not t.ended]
        if live and all(t.waits and t.waits[0] == "block" for t in live):
            if len(live) < len(threads):
                raise live[0].fault("a barrier that some threads of the block never reach")
            kind = live[0].waits[2]
            votes = [t.waits[3] for t in live]
            result = {"bar.red.popc": sum(votes), "bar.red.and": int(all(votes)),
                      "bar.red.or": int(any(votes))}.get(kind)
            for t in live:
                t.waits = None
            return [(t, result) for t in live]
        return []


def extent(numbers):
    numbers = tuple(numbers)
    return numbers + (1,) * (3 - len(numbers))
