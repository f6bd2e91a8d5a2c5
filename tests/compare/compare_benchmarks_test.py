# SPDX-License-Identifier: Apache-2.0
"""scripts/compare-benchmarks on made-up programs: which way a ratio goes, what is listed, what is refused."""
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import stat
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.dont_write_bytecode = True
SCRIPT = str(Path(__file__).resolve().parents[2] / "scripts" / "compare-benchmarks")
LOADER = importlib.machinery.SourceFileLoader("compare_benchmarks", SCRIPT)
script = importlib.util.module_from_spec(importlib.util.spec_from_loader("compare_benchmarks", LOADER))
LOADER.exec_module(script)

# Answers as Google Benchmark does. ROWS: {name: what its result holds}.
PROGRAM = """#!{python}
import json, sys
ROWS = {rows!r}
if "--benchmark_list_tests=true" in sys.argv:
    print("\\n".join(ROWS))
else:
    name = next(a for a in sys.argv if a.startswith("--benchmark_filter=^"))[len("--benchmark_filter=^"):-1]
    print(json.dumps({{"benchmarks": [{{"name": name, **ROWS[name]}}]}}))
    sys.exit(1 if "error_occurred" in ROWS[name] else 0)
"""


class Compare(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def programs(self, version, headers, library=None):
        """A directory as `build` leaves one."""
        directory = self.folder / version
        directory.mkdir()
        library = library if library is not None else {"library_" + n: row for n, row in headers.items()}
        for kind, rows in (("headers", headers), ("library", library)):
            path = directory / kind
            path.write_text(PROGRAM.format(python=sys.executable, rows=rows))
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return directory

    def compare(self, old, new, *options):
        """(exit status, what is printed, the JSON file)."""
        built = iter([self.programs("old", old), self.programs("new", new)])
        out = io.StringIO()
        with mock.patch.object(script, "WORK", self.folder), mock.patch.object(script, "ROOT", self.folder), \
                mock.patch.object(script, "tree_of", lambda spec: (spec, spec)), \
                mock.patch.object(script, "build", lambda tree, compiler: next(built)), \
                mock.patch.object(script, "pinned", lambda core: []), \
                contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            status = script.main(["a", "b", "--pairs", "3", *options])
        return status, out.getvalue(), json.loads((self.folder / "a..b.json").read_text())

    def test_a_ratio_above_one_is_faster_whatever_the_unit(self):
        status, _, result = self.compare({"x": {"ns_per_block": 20.0}, "y": {"tokens_per_second": 1e9}},
                                         {"x": {"ns_per_block": 10.0}, "y": {"tokens_per_second": 3e9}})
        self.assertEqual(status, 0)
        for kind in ("headers", "library"):
            rows = result["rows"][kind]
            self.assertAlmostEqual(rows["x"]["speedup"], 2)
            self.assertAlmostEqual(rows["y"]["speedup"], 3)
            self.assertAlmostEqual(rows["x"]["same"], 1)
            self.assertEqual(rows["x"]["figures"]["new"], [10.0] * 3)

    def test_rows_of_one_version_are_listed(self):
        row = {"ns_per_block": 1.0}
        status, text, result = self.compare({"x": row, "gone": row}, {"x": row, "new_1": row, "new_2": row})
        self.assertEqual(status, 0)
        self.assertIn("only in old: gone\n", text)
        self.assertIn("only in new: new_1, new_2\n", text)
        self.assertEqual(list(result["rows"]["headers"]), ["x"])

    def test_rows_are_chosen_and_those_without_the_headers_left_out(self):
        row = {"ns_per_block": 1.0}
        rows = {"warm": row, "cold": row, "naive_warm": row, "limit_memcmp/warm": row}
        _, _, result = self.compare(rows, rows, "--rows", "warm")
        self.assertEqual(list(result["rows"]["headers"]), ["warm"])

    def test_a_row_that_is_wrong_fails_and_the_others_are_measured(self):
        good = {"ns_per_block": 1.0}
        bad = {"error_occurred": True, "error_message": "the pool is full"}
        status, text, result = self.compare({"x": good, "y": good}, {"x": bad, "y": good})
        self.assertEqual(status, 1)
        self.assertIn("the pool is full", text)
        self.assertIn("x", result["broken"]["headers"])
        self.assertEqual(list(result["rows"]["headers"]), ["y"])

    def test_no_row_is_a_failure(self):
        with self.assertRaises(script.Failure):
            row = {"x": {"ns_per_block": 1.0}}
            self.compare(row, row, "--rows", "nothing")

    def test_a_version_that_is_none_is_refused(self):
        with self.assertRaisesRegex(script.Failure, "neither a revision"):
            script.tree_of(os.path.join(str(self.folder), "nowhere"))


if __name__ == "__main__":
    unittest.main()
