# SPDX-License-Identifier: Apache-2.0
"""The table of cuda_report.py, on numbers that were made up: no device gave them."""
import contextlib
import io
import json
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../benchmarks"))
import cuda_report  # noqa: E402


def row(name, microseconds, bytes_per_second, **more):
    return {"name": name + "/manual_time", "run_type": "iteration", "microseconds": microseconds,
            "bytes_per_second": bytes_per_second, **more}


def results(*rows):
    return {"context": {"device": "made-up device"}, "benchmarks": list(rows)}


COPY = row("device_copy", 100.0, 1e12)


class Report(unittest.TestCase):
    def lines(self, *rows):
        return cuda_report.table_of(results(COPY, *rows))[0]

    def run_main(self, content):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "results.json")
            with open(path, "w") as file:
                file.write(content)
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                status = cuda_report.main([path])
            return status, out.getvalue(), err.getvalue()

    def test_a_row_is_a_share_of_the_copy(self):
        lines = self.lines(row("gather_kv/fp8_e4m3/per_head/8192", 12.34, 4.2e11))
        self.assertEqual(lines[0], "made-up device: a copy moves 1000 GB/s, read and written")
        self.assertEqual(lines[3].split(),
                         ["gather_kv", "fp8_e4m3", "per_head", "8192", "12.3", "420", "42%"])

    def test_a_format_is_named_as_far_as_there_is_one(self):
        for name, words in (("write_kv_rope/bf16/none/64", ["write_kv_rope", "bf16", "64"]),
                            ("calibrate_amax/bf16/8192", ["calibrate_amax", "bf16", "8192"]),
                            ("update_tables/1024", ["update_tables", "1024"])):
            with self.subTest(name=name):
                self.assertEqual(self.lines(row(name, 12.34, 4.2e11))[3].split(),
                                 words + ["12.3", "420", "42%"])

    def test_wishes_are_met_or_missed(self):
        for name, microseconds, speed, says in (
                ("write_kv/bf16/none/64", 3.0, 1e9, "<= 3 us: met"),
                ("write_kv/bf16/none/64", 3.1, 1e12, "<= 3 us: missed"),
                ("write_kv/int8/per_tensor/1024", 9.0, 8.5e11, ">= 85%: met"),
                ("write_kv/int8/per_tensor/8192", 9.0, 8.4e11, ">= 85%: missed"),
                ("copy_blocks/int4/per_token_head/64", 9.0, 9.0e11, ">= 90%: met"),
                ("copy_blocks/int4/per_token_head/64", 9.0, 8.9e11, ">= 90%: missed")):
            with self.subTest(name=name, says=says):
                self.assertTrue(self.lines(row(name, microseconds, speed))[3].endswith(says))

    def test_the_best_repeat_counts_and_aggregates_do_not(self):
        name = "gather_kv/f16/none/64"
        lines = self.lines(row(name, 8.0, 1e11), row(name, 4.0, 2e11),
                           dict(row(name, 1.0, 9e11), run_type="aggregate"))
        self.assertEqual(len(lines), 4)
        self.assertIn(" 4.0 ", lines[3])

    def test_a_wrong_result_is_an_error(self):
        bad = {"name": "write_kv/f16/none/64/manual_time", "error_occurred": True,
               "error_message": "the CPU stores the same bytes"}
        status, out, _ = self.run_main(json.dumps(results(COPY, bad)))
        self.assertEqual(status, 1)
        self.assertIn("WRONG write_kv/f16/none/64: the CPU stores the same bytes", out)

    def test_nothing_to_compare_with_is_an_error(self):
        status, out, err = self.run_main(json.dumps(results(row("write_kv/f16/none/64", 1.0, 1e9))))
        self.assertEqual((status, out), (1, ""))
        self.assertIn("no row 'device_copy'", err)

    def test_a_file_that_is_no_json_is_an_error(self):
        status, out, err = self.run_main("{")
        self.assertEqual((status, out), (1, ""))
        self.assertIn("results.json", err)

    def test_all_is_well(self):
        status, out, err = self.run_main(json.dumps(results(COPY)))
        self.assertEqual((status, err), (0, ""))
        self.assertIn("of a copy", out)


if __name__ == "__main__":
    unittest.main()
