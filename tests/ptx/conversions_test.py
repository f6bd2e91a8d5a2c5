# SPDX-License-Identifier: Apache-2.0
"""Every half and every bfloat16 through the code that nvcc emits for a conversion.

    conversions_test.py --nvcc nvcc --arch 80

80 converts by integers, 90 fp8 by the machine's instructions. What is expected is searched for: the
code whose number is nearest, of two the even one.
"""
import bisect
import math
import os
import struct
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from emitted import arguments, ptx_of  # noqa: E402
from interpreter import Device, Module, b32, bf16, f16, f32  # noqa: E402

F16, BF16, E4M3, E5M2, INT8 = 1, 2, 3, 4, 5
READ = {F16: f16, BF16: bf16}
# Bits of the mantissa, bias of the exponent, the largest finite code.
FP8 = {E4M3: (3, 7, 0x7E), E5M2: (2, 15, 0x7B)}
module = None
arch = 0


def magnitude(code, mantissa_bits, bias):
    exponent, mantissa = code >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
    if exponent == 0:
        return mantissa * 2.0 ** (1 - bias - mantissa_bits)
    return (1 + mantissa / 2.0 ** mantissa_bits) * 2.0 ** (exponent - bias)


TABLES = {element: [magnitude(c, bits, bias) for c in range(largest + 1)]
          for element, (bits, bias, largest) in FP8.items()}


def nearest_fp8(element, x):
    if math.isnan(x):
        return 0x7F
    sign = 0x80 if math.copysign(1.0, x) < 0 else 0
    table, x = TABLES[element], abs(x)
    if x >= table[-1]:
        return sign | len(table) - 1
    above = bisect.bisect_right(table, x)
    below = above - 1
    gap_below, gap_above = x - table[below], table[above] - x
    if gap_below == gap_above:
        return sign | (below if below % 2 == 0 else above)
    return sign | (below if gap_below < gap_above else above)


def nearest_int8(x):
    return 0 if math.isnan(x) else round(min(max(x, -127.0), 127.0)) & 0xFF


def expected(element, x):
    return nearest_int8(x) if element == INT8 else nearest_fp8(element, x)


def product(x, factor):
    # In double the product is exact.
    return x * factor if math.isinf(x) or math.isnan(x) else f32(b32(x * factor))


def wrong_codes(source, element, factor, change=lambda bits: bits):
    """How many of the 65536 inputs get another code; `change` puts a bug in what is expected."""
    device = Device()
    numbers = device.allocate(struct.pack("<65536H", *range(65536)), "numbers")
    codes = device.allocate(b"\x55" * 65536, "codes")
    kernel = module.kernel(f"16convert_unrolledILNS0_7ElementE{source}ELS4_{element}ELi1E")
    device.run(kernel, (16,), (256,), [numbers, codes, factor])
    read = READ[source]
    want = bytes(expected(element, product(read(change(bits)), factor)) for bits in range(65536))
    return sum(a != b for a, b in zip(want, device.read(codes)))


class Conversions(unittest.TestCase):
    def check(self, source):
        for element, factors in ((E4M3, (1.0, 0.3713)), (E5M2, (1.0, 41.7)), (INT8, (0.5, 3.3))):
            for factor in factors:
                with self.subTest(element=element, factor=factor):
                    self.assertEqual(wrong_codes(source, element, f32(b32(factor))), 0)

    def test_every_half(self):
        self.check(F16)

    def test_every_bfloat16(self):
        self.check(BF16)

    def test_one_wrong_input_is_seen(self):
        # 1.0 taken for -1.0.
        self.assertEqual(
            wrong_codes(F16, E4M3, 1.0, lambda bits: 0xBC00 if bits == 0x3C00 else bits), 1)

    def test_hardware_converts_are_used_where_there_are_some(self):
        opcodes = module.kernel("16convert_unrolledILNS0_7ElementE1ELS4_3ELi1E").opcodes
        self.assertEqual("cvt.rn.satfinite.e4m3x2.f32" in opcodes, arch >= 89)


if __name__ == "__main__":
    options, rest = arguments()
    arch = options.arch
    module = Module(ptx_of("conversions.cu", options))
    unittest.main(argv=rest)
