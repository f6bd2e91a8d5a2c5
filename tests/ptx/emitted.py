# SPDX-License-Identifier: Apache-2.0
"""What nvcc emits for a file beside this, and the command line of the tests that run it:

    SOMETHING_test.py --nvcc nvcc --arch 80 [what unittest takes]
"""
import argparse
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
INCLUDE = os.path.join(HERE, "../../include")


def arguments():
    """The options, and the command line without them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--arch", type=int, default=80)
    options, rest = parser.parse_known_args()
    return options, sys.argv[:1] + rest


def ptx_of(source, options, *flags, include=INCLUDE):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "emitted.ptx")
        subprocess.run([options.nvcc, "-std=c++20", "-O3", "-ptx", f"-arch=compute_{options.arch}",
                        *flags, "-I", include, "-I", os.path.join(HERE, "../emulated"),
                        os.path.join(HERE, source), "-o", out], check=True)
        with open(out) as file:
            return file.read()
