#!/usr/bin/env python3
"""embed_metal.py ROOT IN.metal OUT.metal OUT.c: a kernel file with its own headers in one text, and that text in C.

The library compiles it at run time, so that a user needs no Metal toolchain."""
import os
import sys

from kernel_text import flatten

root, source, out_text, out_code = sys.argv[1:]
text = "\n".join(flatten(root, source))
with open(out_text, "w") as file:
    file.write(text)
name = os.path.splitext(os.path.basename(source))[0]
quoted = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", '\\n"\n    "')
with open(out_code, "w") as file:
    file.write(f'extern const char firn_metal_source_{name}[];\nconst char firn_metal_source_{name}[] =\n    "{quoted}";\n')
