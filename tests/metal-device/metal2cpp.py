#!/usr/bin/env python3
"""metal2cpp.py [--spaces] [-D...] IN.metal OUT.cpp: an unchanged .metal file as a C++ unit of the software device.

The text goes through `clang -E` without the Metal headers, so that comments and macros are gone and line markers stay:
diagnostics and sanitizer reports point at .metal lines. Then attributes are read and dropped, threadgroup variables of
kernels become one variable per threadgroup, and a launcher and a table row are appended for every kernel. Parameter
types are left to C++; only attributes are taken from the text.

With --spaces only the text is written, for the address-space pass (C++ for OpenCL, nothing is run)."""
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../cmake"))
from kernel_text import ATTRIBUTE, past, split, without_literals_of_double

CLANG = os.environ.get("MDEV_CLANG", "clang-19")

KINDS = {
    "buffer": "MDEV_BUFFER",
    "threadgroup": "MDEV_THREADGROUP",
    "threadgroup_position_in_grid": "MDEV_THREADGROUP_POSITION_IN_GRID",
    "threadgroups_per_grid": "MDEV_THREADGROUPS_PER_GRID",
    "thread_position_in_threadgroup": "MDEV_THREAD_POSITION_IN_THREADGROUP",
    "threads_per_threadgroup": "MDEV_THREADS_PER_THREADGROUP",
    "thread_position_in_grid": "MDEV_THREAD_POSITION_IN_GRID",
    "threads_per_grid": "MDEV_THREADS_PER_GRID",
    "thread_index_in_threadgroup": "MDEV_THREAD_INDEX_IN_THREADGROUP",
    "thread_index_in_simdgroup": "MDEV_THREAD_INDEX_IN_SIMDGROUP",
    "simdgroup_index_in_threadgroup": "MDEV_SIMDGROUP_INDEX_IN_THREADGROUP",
    "simdgroups_per_threadgroup": "MDEV_SIMDGROUPS_PER_THREADGROUP",
    "threads_per_simdgroup": "MDEV_THREADS_PER_SIMDGROUP",
}


def fail(source, text, at, message):
    """The line is found through the last marker before it."""
    line, name = 0, source
    for part in text[:at].split("\n"):
        marker = re.match(r'# (\d+) "([^"]*)"', part)
        line, name = (int(marker[1]), marker[2]) if marker else (line + 1, name)
    sys.exit(f"{name}:{line}: error: {message}: {text[at:at + 60].strip()!r}")


def preprocess(source, defines):
    """Without the Metal headers; pragmas go, since -E leaves macros in them alone."""
    with open(source) as file:
        text = re.sub(r"^\s*#\s*include\s*<metal_\w+>", "", file.read(), flags=re.M)
    command = [CLANG, "-E", "-x", "c++", "-std=c++17", "-nostdinc", "-D__METAL_VERSION__=310", "-D__METAL_MACOS__",
               "-Wno-everything", *defines, "-"]
    if "-DMSL_NO_BFLOAT" not in defines:
        command.insert(-1, "-D__HAVE_BFLOAT__=1")
    run = subprocess.run(command, input=f'# 1 "{os.path.basename(source)}"\n' + text, capture_output=True, text=True)
    if run.returncode:
        sys.exit(run.stderr)
    text = re.sub(r"^\s*#pragma[^\n]*", "", run.stdout, flags=re.M)
    return without_literals_of_double(text)


def check_types(source, text, at, numbers):
    """{kind: type} of the parameters that are numbers, as Metal's specification has them (Kernel Function Input
    Attributes): unsigned; positions and sizes alone or in vectors, all with the same number of components."""
    for kind, t in numbers.items():
        scalar = "INDEX" in kind or "SIMDGROUP" in kind
        if not re.fullmatch("uint|ushort" if scalar else "(uint|ushort)[23]?", t):
            fail(source, text, at, f"a parameter of type {t} where {kind[5:].lower()} stands")
    if len({t.strip("uinshort") for k, t in numbers.items() if "INDEX" not in k and "SIMDGROUP" not in k}) > 1:
        fail(source, text, at, f"positions with different numbers of components ({', '.join(numbers.values())})")
    for first, second in (("POSITION_IN_GRID", "S_PER_GRID"), ("POSITION_IN_THREADGROUP", "S_PER_THREADGROUP")):
        first, second = numbers.get("MDEV_THREAD_" + first), numbers.get("MDEV_THREAD" + second)
        if first and second and first != second:
            fail(source, text, at, f"the type of a position and that of its limit differ ({first}, {second})")
    if numbers.get("MDEV_THREAD_POSITION_IN_THREADGROUP", "").startswith("uint") and \
            numbers.get("MDEV_THREAD_INDEX_IN_THREADGROUP") == "ushort":
        fail(source, text, at, "thread_index_in_threadgroup is uint where thread_position_in_threadgroup is")


def parameters(source, text, at, body):
    """[(kind, index, constant, name)] of a kernel's parameter list."""
    result, numbers, next_buffer = [], {}, 0
    for p in split(body):
        attributes = dict(re.findall(ATTRIBUTE, p))
        name = re.search(r"(\w+)\s*(?:\[\[.*)?$", p, re.S)
        kind = next((KINDS[a] for a in attributes if a in KINDS), None)
        index = attributes.get("buffer") or attributes.get("threadgroup") or "0"
        if kind is None:
            if not re.search(r"\b(device|constant)\b", p):
                fail(source, text, at, f"a parameter without an attribute that the software device knows ({p})")
            kind, index = "MDEV_BUFFER", str(next_buffer)
        if kind == "MDEV_BUFFER":
            next_buffer = int(index) + 1
        elif kind != "MDEV_THREADGROUP":
            numbers[kind] = p.split()[0]
        result.append((kind, index, int(bool(re.search(r"\bconstant\b", p))), name[1] if name else ""))
    check_types(source, text, at, numbers)
    return result


def instantiated(declaration):
    """The expression NAME<...> of `void NAME<...>(...)` or `type NAME<...>`."""
    s = re.sub(r"\s+", " ", declaration).strip()
    if s.endswith(")"):
        depth = 0
        for i in range(len(s) - 1, -1, -1):
            depth += (s[i] == ")") - (s[i] == "(")
            if depth == 0:
                break
        s = s[:i].strip()
    depth = 0
    for i in range(len(s) - 1, -1, -1):
        depth += (s[i] == ">") - (s[i] == "<")
        if depth == 0:
            break
    name = re.search(r"(\w+)\s*$", s[:i])
    return (name[1], name[1] + s[i:]) if s.endswith(">") and name else (None, None)


def find_kernels(source, text):
    """{function: parameters}, [(host name, function, expression)]"""
    definitions, kernels = {}, []
    for m in re.finditer(r"\bkernel\b", text):
        before = re.search(r'(\btemplate\s*)?(?:\[\[\s*host_name\(\s*((?:"[^"]+"\s*)+)\)\s*\]\]\s*)?$',
                           text[max(0, m.start() - 300):m.start()])
        host = "".join(re.findall(r'"([^"]+)"', before[2])) if before[2] else None
        if before[1]:
            name, expression = instantiated(text[m.end():text.find(";", m.end())])
            if not name or not host:
                fail(source, text, m.start(), "an instantiation without a host_name or without template arguments")
            kernels.append((host, name, expression))
            continue
        head = re.match(r"\s+void\s+(\w+)\s*\(", text[m.end():m.end() + 300])
        if not head:
            fail(source, text, m.start(), "a kernel that returns something other than void")
        opening = m.end() + head.end() - 1
        body = text[opening + 1:past(text, opening, "(", ")") - 1]
        definitions[head[1]] = parameters(source, text, m.start(), body)
        start = max(text.rfind(c, 0, m.start()) for c in ";}") + 1
        if not re.search(r"\btemplate\s*<", text[start:m.start()]):
            kernels.append((host or head[1], head[1], head[1]))
    return definitions, kernels


def main():
    args = sys.argv[1:]
    spaces = "--spaces" in args
    defines = [a for a in args if a.startswith("-D")]
    source, out = [a for a in args if not a.startswith("-")]
    text = preprocess(source, defines)

    constants = []

    def constant(m):
        constants.append((m[2], m[1], m[3]))
        return f"MSL_FUNCTION_CONSTANT {m[1]} {m[2]}"

    text = re.sub(r"\bconstant\s+([a-z0-9_]+)\s+(\w+)\s*\[\[\s*function_constant\(([^\]]*)\)\s*\]\]", constant, text)
    definitions, kernels = find_kernels(source, text)
    text = re.sub(r"\[\[(?:[^\[\]]|\[[^\]]*\])*\]\]", "", text)

    n_variables = 0

    def variable(m):
        nonlocal n_variables
        n_variables += 1
        kind, name, dims = m[1].strip(), m[2], m[3] or ""
        return (f"MSL_THREADGROUP_REF {kind} (&{name}){dims} = *(MSL_THREADGROUP_REF {kind} (*){dims}) "
                f"msl_threadgroup_variable<{kind}{dims}>({n_variables});")

    text = re.sub(r"\bthreadgroup\s+([\w:]+(?:\s*<[^;<>]*>)?)\s+(\w+)\s*((?:\[[^\]]*\])*)\s*;", variable, text)
    o = ["#include <metal_stdlib>", '#include "launch.h"']
    if spaces:  # pointers to functions as template parameters become references
        text = re.sub(r"\(\s*\*\s*(\w+)\s*\)\s*\(", r"(&\1)(", text)
        o += ["#define MSL_FUNCTION_CONSTANT __private", text]
    else:
        o += ["#define MSL_FUNCTION_CONSTANT static", text, f'# 1 "{os.path.basename(source)}.launchers"']
        rows, seen = [], set()
        for host, name, e in kernels:
            if name not in definitions or host in seen:
                sys.exit(f"{source}: {host}: {'two kernels of that name' if host in seen else f'no kernel {name}'}")
            seen.add(host)
            k, p = len(rows), list(enumerate(definitions[name]))
            o.append(f"MSL_LAUNCHER({k}, ({e}), " +
                     ", ".join(f"MSL_ARGUMENT({j}, {kind}, {index})" for j, (kind, index, _, _) in p) + ")")
            o.append(f"static const mdev_param params_{k}[] = {{" +
                     ", ".join(f'MSL_PARAM({j}, ({e}), {kind}, {index}, {c}, "{n}")' for j, (kind, index, c, n) in p) + "};")
            rows.append(f'{{"{host}", launch_{k}, params_{k}, {len(p)}}}')
        o.append("static const mdev_kernel kernels[] = {" + ",\n".join(rows + ["{}"]) + "};")
        o.append("static const mdev_constant constants[] = {" +
                 ",\n".join([f'{{"{n}", {i}, (void *)&{n}, sizeof({t})}}' for n, t, i in constants] + ["{}"]) + "};")
        o.append(f'extern "C" __attribute__((visibility("default"))) const mdev_unit mdev_unit_table = '
                 f"{{kernels, {len(rows)}, constants, {len(constants)}}};")
    with open(out, "w") as file:
        file.write("\n".join(o) + "\n")


main()
