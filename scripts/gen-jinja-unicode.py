#!/usr/bin/env python3
"""Writes src/jinja/unicode_ranges.h: what Python's str knows of code points, as tables of ranges.

Reads Python's own unicodedata (its version is written into the file); run it with a Python 3.11 or later:

    scripts/gen-jinja-unicode.py > src/jinja/unicode_ranges.h
"""
import unicodedata

POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def ranges(test):
    out = []
    for c in POINTS:
        if test(chr(c)):
            if out and out[-1][1] == c - 1:
                out[-1][1] = c
            else:
                out.append([c, c])
    return out


def table(name, rows):
    print(f"static const code_range {name}[] = {{")
    line = "   "
    for first, last in rows:
        item = f" {{0x{first:X}, 0x{last:X}}},"
        if len(line) + len(item) > 118:
            print(line)
            line = "   "
        line += item
    print(line)
    print("};\n")


def mapping(name, method):
    """Runs of code points with one distance and one step (1, or 2 where cases alternate)."""
    runs = []
    for c in POINTS:
        m = method(chr(c))
        if len(m) != 1 or m == chr(c):
            continue
        d = ord(m) - c
        if runs and runs[-1][3] == d and (c - runs[-1][1] == runs[-1][2] or
                                          (runs[-1][0] == runs[-1][1] and c - runs[-1][1] <= 2)):
            runs[-1][2] = c - runs[-1][1]
            runs[-1][1] = c
        else:
            runs.append([c, c, 1, d])
    print(f"static const case_run {name}[] = {{")
    line = "   "
    for first, last, step, d in runs:
        item = f" {{0x{first:X}, 0x{last:X}, {step}, {d}}},"
        if len(line) + len(item) > 118:
            print(line)
            line = "   "
        line += item
    print(line)
    print("};\n")


def special(name, method, usual):
    """Mappings to several characters, and those that differ from the usual mapping."""
    print(f"static const case_special {name}[] = {{")
    line = "   "
    for c in POINTS:
        m = method(chr(c))
        if (usual is None and len(m) > 1) or (usual is not None and m != usual(chr(c))):
            points = [f"0x{ord(x):X}" for x in m] + ["0"] * (3 - len(m))
            item = f" {{0x{c:X}, {{{', '.join(points)}}}}},"
            if len(line) + len(item) > 118:
                print(line)
                line = "   "
            line += item
    print(line)
    print("};\n")


print(f"""/* Written by scripts/gen-jinja-unicode.py from Python's unicodedata, Unicode {unicodedata.unidata_version}: do not edit.
 * Ranges are inclusive and in order. A case_run maps first, first + step, ... last by adding delta. */
/* clang-format off */
""")
table("not_printable", ranges(lambda s: not s.isprintable()) + [])
table("alphabetic", ranges(str.isalpha))
table("decimals", ranges(str.isdecimal))
table("digits", ranges(lambda s: s.isdigit() and not s.isdecimal()))
table("numerics", ranges(lambda s: s.isnumeric() and not s.isdigit()))
table("uppercase", ranges(str.isupper))
table("lowercase", ranges(str.islower))
table("white", ranges(str.isspace))
mapping("to_upper", str.upper)
mapping("to_lower", str.lower)
special("special_upper", str.upper, None)
special("special_lower", str.lower, None)
special("special_title", str.title, str.upper)
print("/* clang-format on */")
