#!/usr/bin/env python3
"""Writes src/jinja/entities.h: HTML's character references, as Python's html.unescape knows them.

    scripts/gen-jinja-entities.py > src/jinja/entities.h
"""
import html
import html.entities


def literal(text):
    return '"' + "".join(chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in text.encode()) + '"'


def rows(items):
    line = "   "
    for item in items:
        if len(line) + len(item) > 118:
            print(line)
            line = "   "
        line += item
    print(line)


print("""/* Written by scripts/gen-jinja-entities.py from Python's html.entities: do not edit. */
/* clang-format off */

/* What follows the ampersand, by strcmp's order, and the text it stands for. */
static const struct {
    const char *name, *text;
} entities[] = {""")
rows(f" {{{literal(name)}, {literal(html.entities.html5[name])}}}," for name in sorted(html.entities.html5))
print("""};

/* What the numbers 0x80 to 0x9F stand for, as HTML reads them. */
static const uint16_t windows_1252[32] = {""")
rows(f" 0x{ord(html.unescape(f'&#{c};')):X}," for c in range(0x80, 0xA0))
print("""};
/* clang-format on */""")
