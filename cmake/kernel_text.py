"""What the tools share that read kernel files: embed_metal.py, embed_cuda.py and tests/metal-device/metal2cpp.py."""
import os
import re

ATTRIBUTE = r"\[\[\s*([a-z_]+)\s*(?:\(((?:[^()\]]|\([^()]*\))*)\))?\s*\]\]"
# MSL has no double: a literal without a suffix is a float.
LITERAL = re.compile(r"(?<![\w.])((?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)(?![\w.])")


def flatten(root, path, place=lambda name: name):
    """The lines of a file under root with its own headers in it: each header once, each table (.def) as often as it is
    asked for. #line keeps messages on the files' own lines; includes of others stay. place(name): where a header lies."""
    seen = set()

    def of(path):
        name = os.path.relpath(path, root)
        lines = [f'#line 1 "{name}"']
        with open(path) as file:
            for number, line in enumerate(file.read().split("\n"), 1):
                include = re.match(r'#include "([^"]+)"', line)
                if not include:
                    lines.append(line)
                elif include[1].endswith(".def") or include[1] not in seen:
                    seen.add(include[1])
                    lines += of(os.path.join(root, place(include[1]))) + [f'#line {number + 1} "{name}"']
                else:
                    lines.append("")
        return lines

    return of(path)


def without_literals_of_double(text):
    return "\n".join(l if l.startswith("#") else LITERAL.sub(r"\1f", l) for l in text.split("\n"))


def past(text, at, opening, closing):
    """Just past the bracket that closes text[at]."""
    depth = 0
    while True:
        depth += (text[at] == opening) - (text[at] == closing)
        at += 1
        if depth == 0:
            return at


def split(text):
    """At commas outside brackets."""
    parts, depth, part = [], 0, ""
    for c in text:
        depth += (c in "([{<") - (c in ")]}>")
        if c == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += c
    return [p.strip() for p in parts + [part] if p.strip()]
