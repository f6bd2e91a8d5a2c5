# SPDX-License-Identifier: Apache-2.0
# awk -v name=<shown in errors> -f program.awk DOC DOC > program.cpp      (the document twice)
#
# Makes a program of the ```cpp blocks of a document. If one of them has `int main(`, the blocks
# are the program, in order. Otherwise blocks before the first "## " heading stand at the top, each
# section with blocks is a function, and main() calls them in order. #line makes the compiler name
# the document.
FNR == 1 { ++pass; in_block = 0 }

/^```/ {
  if (in_block) {
    in_block = 0
  } else if ($0 == "```cpp") {
    in_block = 1
    if (pass == 1) ++blocks
    if (pass == 2) open_block()
  } else {
    in_block = 2
  }
  next
}
pass == 1 && in_block == 1 && /int main\(/ { whole = 1 }
pass == 2 && !in_block && /^## / { ++section }
pass == 2 && in_block == 1 { print }

function open_block() {
  if (!whole && section > 0 && section != opened) {
    if (opened) print "}"
    print "static void section_" section "() {"
    opened = section
    calls = calls "  section_" section "();\n"
  }
  print "#line " (FNR + 1) " \"" name "\""
}

END {
  if (blocks == 0) {
    print "#error \"" name " has no cpp blocks\""
    exit
  }
  if (whole) exit
  if (opened) print "}"
  print "int main() {\n" calls "}"
}
