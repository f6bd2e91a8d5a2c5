# SPDX-License-Identifier: Apache-2.0
"""Compiles the executor's sample kernels with nvcc and runs the PTX, right ones and broken ones.

    samples_test.py --nvcc nvcc --arch 80
"""
import os
import random
import struct
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from emitted import arguments, ptx_of  # noqa: E402
from interpreter import Device, Fault, Module, b32, e4m3, e5m2, f16, f32  # noqa: E402

SEEDS = range(1, 6)
module = None
arch = 0


def ints(data):
    return list(struct.unpack(f"<{len(data) // 4}i", data))


def floats(data):
    return list(struct.unpack(f"<{len(data) // 4}f", data))


class BlockSum(unittest.TestCase):
    def right(self, bug):
        n = 2 * 128 + 37
        numbers = [float(i * 37 % 101 - 50) for i in range(n)]
        want = [sum(numbers[i:i + 128]) for i in range(0, n, 128)]
        for seed in SEEDS:
            device = Device()
            a = device.allocate(struct.pack(f"<{n}f", *numbers), "in")
            out = device.allocate(b"\xff" * 12, "out")
            device.run(module.kernel(f"9block_sumILNS2_6SumBugE{bug}E"), (3,), (128,), [a, out, n],
                       dynamic_shared=128, seed=seed)
            if floats(device.read(out)) != want:
                return False
        return True

    def test_right(self):
        self.assertTrue(self.right(0))

    def test_missing_barriers(self):
        self.assertFalse(self.right(1))
        self.assertFalse(self.right(2))

    def test_read_past_the_end(self):
        # Here the cell behind the array is the dynamic memory: wrong, or a fault.
        try:
            self.assertFalse(self.right(5))
        except Fault as e:
            self.assertIn("shared memory", str(e))

    def test_write_past_the_end(self):
        with self.assertRaisesRegex(Fault, "store of 1 bytes at byte 640 of 'shared memory'"):
            self.right(7)

    def test_not_filled(self):
        self.assertFalse(self.right(8))


class Rotate(unittest.TestCase):
    def test_right(self):
        numbers = [1000 + i * i for i in range(64)]
        for seed in SEEDS:
            device = Device()
            a = device.allocate(struct.pack("<64i", *numbers), "in")
            out = device.allocate(b"\xff" * 256, "out")
            device.run(module.kernel("6rotateILNS2_10MessageBugE0E"), (1,), (64,), [a, out],
                       seed=seed)
            self.assertEqual(ints(device.read(out)),
                             [numbers[i // 32 * 32 + (i + 1) % 32] + i % 32 for i in range(64)])


class Scatter(unittest.TestCase):
    def run_kernel(self, bug, slots, num_slots=8, seed=1):
        rows = bytes(i * 7 % 251 for i in range(len(slots) * 80))
        device = Device()
        a = device.allocate(rows, "rows")
        pool = device.allocate(bytes(8 * 80), "pool")
        table = device.allocate(struct.pack(f"<{len(slots)}q", *slots), "slots")
        arguments = struct.pack("<QQQqi4x", a, pool, table, num_slots, 80)
        device.run(module.kernel(f"7scatterILNS2_10ScatterBugE{bug}E"), (len(slots),), (64,),
                   [arguments], seed=seed)
        want = bytearray(8 * 80)
        for i, slot in enumerate(slots):
            if 0 <= slot < num_slots:
                want[slot * 80:slot * 80 + 80] = rows[i * 80:i * 80 + 80]
        return device.read(pool) == want

    def test_right(self):
        for seed in SEEDS:
            self.assertTrue(self.run_kernel(0, [3, -1, 7, 8, 0], seed=seed))

    def test_offset_of_32_bits(self):
        # A slot whose offset is just past 2^32: cut, it lands in the pool.
        far = 2**32 // 80 + 1
        with self.assertRaisesRegex(Fault, "which is no buffer's"):
            self.run_kernel(0, [far], num_slots=far + 1)
        self.assertTrue(self.run_kernel(2, [2]))
        try:
            self.assertFalse(self.run_kernel(2, [far], num_slots=far + 1))
        except Fault as e:
            self.fail(str(e))

    def test_unchecked_slot(self):
        for slot in (-1, 8):
            with self.assertRaisesRegex(Fault, "of 'pool', which has 640"):
                self.run_kernel(3, [slot])


class RowMax(unittest.TestCase):
    def right(self, bug):
        for seed in SEEDS:
            order = random.Random(seed)
            lengths = [order.randrange(90) for _ in range(6)]
            lengths[2] = 0
            values = [order.randrange(100000) for _ in range(sum(lengths))]
            starts = [sum(lengths[:i]) for i in range(7)]
            want = [max(values[starts[i]:starts[i + 1]], default=-1) for i in range(6)]
            device = Device()
            a = device.allocate(struct.pack("<7i", *starts), "offsets")
            b = device.allocate(struct.pack(f"<{len(values)}i", *values), "values")
            out = device.allocate(b"\xff" * 24, "out")
            count = device.allocate(bytes(4), "count")
            device.run(module.kernel(f"7row_maxILNS2_9RowMaxBugE{bug}E"), (2,), (128,),
                       [a, b, out, count, 6, 20], seed=seed)
            if ints(device.read(out)) != want or ints(device.read(count)) != [len(values)]:
                return False
        return True

    def test_right(self):
        self.assertTrue(self.right(0))
        self.assertTrue(self.right(1))

    def test_exited_lane(self):
        with self.assertRaisesRegex(Fault, "a shuffle reads lane"):
            self.right(2)


class StagedCopy(unittest.TestCase):
    def right(self, bug):
        n = 5 * 64 + 9
        content = random.Random(7).randbytes(n * 16) if hasattr(random.Random, "randbytes") else \
            bytes(random.Random(7).randrange(256) for _ in range(n * 16))
        for seed in SEEDS:
            device = Device()
            a = device.allocate(content, "from")
            out = device.allocate(b"\xff" * len(content), "to")
            device.run(module.kernel(f"11staged_copyILNS2_7CopyBugE{bug}E"), (2,), (64,),
                       [a, out, n], seed=seed)
            if device.read(out) != content:
                return False
        return True

    def test_right(self):
        self.assertTrue(self.right(0))

    def test_waits_too_little(self):
        self.assertFalse(self.right(2))

    def test_no_barrier(self):
        self.assertFalse(self.right(3))


class Quantize(unittest.TestCase):
    def check(self, format_number, encode, limit):
        order = random.Random(format_number)
        halves = [0] * 128
        while len(halves) < 5 * 128:
            bits = order.randrange(65536)
            if bits & 0x7C00 != 0x7C00:
                halves.append(bits)
        device = Device()
        a = device.allocate(struct.pack(f"<{len(halves)}H", *halves), "in")
        codes = device.allocate(b"\x55" * len(halves), "codes")
        scales = device.allocate(b"\xff" * 20, "scales")
        inverse_limit = f32(b32(1.0 / limit))
        device.run(module.kernel(f"8quantizeILNS2_9RowFormatE{format_number}E"), (3,), (64,),
                   [a, codes, scales, 5, inverse_limit])
        want_codes, want_scales = [], []
        for r in range(5):
            row = [f16(h) for h in halves[r * 128:r * 128 + 128]]
            scale = f32(b32(max(map(abs, row)) * inverse_limit))
            inverse = 0.0 if scale == 0 else f32(b32(1.0 / scale))
            want_scales.append(scale)
            want_codes += [encode(f32(b32(x * inverse))) for x in row]
        self.assertEqual(floats(device.read(scales)), want_scales)
        self.assertEqual(device.read(codes), bytes(want_codes))

    def test_right(self):
        self.check(0, e4m3, 448.0)
        self.check(1, e5m2, 57344.0)

    def test_hardware_converts_are_used_where_there_are_some(self):
        opcodes = module.kernel("8quantizeILNS2_9RowFormatE0E").opcodes
        self.assertEqual("cvt.rn.satfinite.e4m3x2.f32" in opcodes, arch >= 89)


if __name__ == "__main__":
    options, rest = arguments()
    arch = options.arch
    module = Module(ptx_of("samples.cu", options))
    unittest.main(argv=rest)
