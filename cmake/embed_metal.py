#!/usr/bin/env python3
"""embed_metal.py ROOT IN.metal OUT.metal OUT.c: a kernel file with its own headers in one text, and that text in C.

The library compiles it at run time, so that a user needs no Metal toolchain. Each header comes once, each table as often as it is asked for; #line keeps the
compiler's messages on the files' own lines."""
import os
import re
import sys

root, source, out_text, out_code = sys.argv[1:]
seen = set()


def flatten(path):
    name = os.path.relpath(path, root)
    lines = [f'#line 1 "{name}"']
    with open(path) as file:
        for number, line in enumerate(file.read().split("\n"), 1):
            include = re.match(r'#include "([^"]+)"', line)
            if not include:
                lines.append(line)
            elif include[1].endswith(".def") or include[1] not in seen:
                seen.add(include[1])
                lines += flatten(os.path.join(root, include[1])) + [f'#line {number + 1} "{name}"']
            else:
                lines.append("")
    return lines


text = "\n".join(flatten(source))
with open(out_text, "w") as file:
    file.write(text)
name = os.path.splitext(os.path.basename(source))[0]
quoted = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", '\\n"\n    "')
with open(out_code, "w") as file:
    file.write(f'extern const char firn_metal_source_{name}[];\nconst char firn_metal_source_{name}[] =\n    "{quoted}";\n')
