# SPDX-License-Identifier: Apache-2.0
"""The interpreter itself, on PTX written by hand: needs no toolkit."""
import math
import os
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import interpreter  # noqa: E402
from interpreter import Device, Fault, Module, b32, f32  # noqa: E402


def run(body, words=1, threads=1, registers=8):
    """Runs `body`, where %rd1 is the address of `words` results for each thread."""
    text = f"""
.visible .entry test(.param .u64 out)
{{
  .reg .pred %p<{registers}>;
  .reg .b16 %rs<{registers}>;
  .reg .b32 %r<{registers}>;
  .reg .b64 %rd<{registers}>;
  ld.param.u64 %rd1, [out];
  mov.u32 %r1, %tid.x;
  mad.wide.u32 %rd1, %r1, {4 * words}, %rd1;
  {body}
  ret;
}}"""
    device = Device()
    out = device.allocate(bytes(4 * words * threads), "out")
    device.run(Module(text).kernel("test"), (1,), (threads,), [out])
    data = device.read(out)
    return [int.from_bytes(data[i:i + 4], "little") for i in range(0, len(data), 4)]


class Programs(unittest.TestCase):
    def test_an_unknown_opcode_stops_by_its_name(self):
        with self.assertRaisesRegex(Fault, "opcode not known: wmma.load.a"):
            run("wmma.load.a.sync.aligned.m16n16k16.row.f16 %r2, [%rd1];")
        with self.assertRaisesRegex(Fault, "opcode not known: add.sat.f32"):
            run("add.sat.f32 %r2, %r1, %r1;")

    def test_a_register_that_nobody_wrote(self):
        with self.assertRaisesRegex(Fault, "a register is read before it is written"):
            run("add.s32 %r2, %r3, 1; st.global.u32 [%rd1], %r2;")

    def test_accesses_are_checked(self):
        with self.assertRaisesRegex(Fault, "not aligned"):
            run("st.global.u32 [%rd1+2], %r1;", words=2)
        with self.assertRaisesRegex(Fault, "at byte 4 of 'out', which has 4"):
            run("st.global.u32 [%rd1+4], %r1;")
        with self.assertRaisesRegex(Fault, "which is no buffer's"):
            run("mov.u64 %rd2, 64; st.global.u32 [%rd2], %r1;")

    def test_integers_wrap_and_keep_their_sign(self):
        self.assertEqual(run("mov.u32 %r2, 5; sub.s32 %r2, %r2, 7; shr.s32 %r3, %r2, 1;"
                             "div.s32 %r4, %r2, 2; shr.u32 %r5, %r2, 40;"
                             "st.global.v4.u32 [%rd1], {%r2, %r3, %r4, %r5};", words=4),
                         [0xFFFFFFFE, 0xFFFFFFFF, 0xFFFFFFFF, 0])

    def test_narrow_loads_extend(self):
        self.assertEqual(run("mov.u32 %r2, 0x80; st.global.u32 [%rd1], %r2;"
                             "ld.global.s8 %rs1, [%rd1]; cvt.s32.s16 %r3, %rs1;"
                             "ld.global.u8 %rs2, [%rd1]; cvt.u32.u16 %r4, %rs2;"
                             "st.global.v2.u32 [%rd1], {%r3, %r4};", words=2),
                         [0xFFFFFF80, 0x80])

    def test_a_loop_and_predicates(self):
        self.assertEqual(run("mov.u32 %r2, 0; mov.u32 %r3, 0;\n$L: add.s32 %r2, %r2, %r3;"
                             "add.s32 %r3, %r3, 1; setp.lt.u32 %p1, %r3, 10; @%p1 bra $L;"
                             "@!%p1 add.s32 %r2, %r2, 100; st.global.u32 [%rd1], %r2;"), [145])

    def test_shuffles_and_votes(self):
        self.assertEqual(run("shfl.sync.up.b32 %r2|%p1, %r1, 1, 0, -1; selp.b32 %r3, 1, 0, %p1;"
                             "st.global.v2.u32 [%rd1], {%r2, %r3};", words=2, threads=32)[:6],
                         [0, 0, 0, 1, 1, 1])
        self.assertEqual(run("setp.lt.u32 %p1, %r1, 4; vote.sync.ballot.b32 %r2, %p1, -1;"
                             "st.global.u32 [%rd1], %r2;", threads=32), [15] * 32)

    def test_a_barrier_that_some_never_reach(self):
        with self.assertRaisesRegex(Fault, "a barrier that some threads"):
            run("setp.eq.u32 %p1, %r1, 0; @%p1 ret; bar.sync 0;", threads=4)

    def test_a_parameter_by_its_address(self):
        self.assertEqual(run("mov.b64 %rd2, out; ld.param.u64 %rd3, [%rd2+0];"
                             "st.global.u32 [%rd3], 7;"), [7])

    def test_atomics(self):
        self.assertEqual(run("ld.param.u64 %rd2, [out]; atom.global.add.u32 %r2, [%rd2], 3;",
                             threads=5)[0], 15)


class Numbers(unittest.TestCase):
    def test_fp8_codes_come_back(self):
        for code in range(256):
            x = interpreter.from_e4m3(code)
            if x == x:
                self.assertEqual(interpreter.e4m3(x), code)
            y = interpreter.from_e5m2(code)
            if y == y and math.isfinite(y):
                self.assertEqual(interpreter.e5m2(y), code)

    def test_fp8_rounds_to_even_and_saturates(self):
        self.assertEqual(interpreter.e4m3(17.0), 0x58)   # between 16 and 18: even is 16
        self.assertEqual(interpreter.e4m3(19.0), 0x5A)   # between 18 and 20: even is 20
        self.assertEqual(interpreter.e4m3(2.0 ** -10), 0x00)
        self.assertEqual(interpreter.e4m3(1.5 * 2.0 ** -9), 0x02)
        self.assertEqual(interpreter.e4m3(-1e9), 0xFE)
        self.assertEqual(interpreter.e4m3(math.nan), 0x7F)

    def test_a_fused_product_is_rounded_once(self):
        a, c = f32(b32(1 + 2.0 ** -12)), -1.0
        exact = 2.0 ** -11 + 2.0 ** -24
        self.assertEqual(interpreter.multiply_add(a, a, c), exact)
        self.assertNotEqual(f32(b32(f32(b32(a * a)) + c)), exact)


if __name__ == "__main__":
    unittest.main()
