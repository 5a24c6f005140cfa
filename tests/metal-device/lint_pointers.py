#!/usr/bin/env python3
"""lint_pointers.py FILE.metal: pointers and references in kernels that name no address space, which Metal refuses."""
import re
import sys

TYPES = (r"(?:void|bool|char|uchar|short|ushort|int|uint|long|ulong|float|half|bfloat|u?int(?:8|16|32|64)_t|firn_\w+|"
         r"(?:float|int|uint|half)[234]|block_\w+)")
SPACES = r"(?:device|constant|threadgroup|thread)"
DECLARATION = re.compile(rf"(?P<before>(?:\b(?:const|volatile|{SPACES[3:-1]})\b\s+)*)\b{TYPES}\s*(?:const\s*)?[*&]+\s*(?:const\s+)?\w")


def main():
    bad = 0
    for path in sys.argv[1:]:
        with open(path) as file:
            text = file.read()
        text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m[0].count("\n"), text, flags=re.S)
        line, name = 0, path
        skipping = 0  # the branches of other languages in shared headers
        for part in text.split("\n"):
            line += 1
            marker = re.match(r'#line (\d+) "([^"]*)"', part)
            if marker:
                line, name = int(marker[1]) - 1, marker[2]
                continue
            if re.match(r"\s*#\s*(elif|else)", part):
                skipping = max(skipping, 1) if "common.h" in name else skipping
            if re.match(r"\s*#\s*endif", part):
                skipping = 0
            part = re.sub(r"//.*", "", part)
            for m in DECLARATION.finditer(part):
                ahead = re.split(r"[;{}(),<]", part[:m.start()])[-1]
                expression = re.search(r"[\w)\]]\s*$", ahead) and not m["before"]  # a product, not a declaration
                if skipping or expression or re.search(rf"\b(?:{SPACES[3:-1]}|FIRN_GLOBAL|FIRN_LOCAL)\b", ahead + m["before"]):
                    continue
                print(f"{name}:{line}: a pointer without an address space: {part.strip()}")
                bad += 1
    sys.exit(1 if bad else 0)


main()
