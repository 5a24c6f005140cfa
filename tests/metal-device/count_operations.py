#!/usr/bin/env python3
"""count_operations.py UNIT.ll: rewrites a compiled unit of kernels so that it counts its floating-point operations.

Every basic block says before it ends how many additions, subtractions, multiplications and divisions it has, a vector's
each for itself (mdev_count_operations). Those of the products' own loops are told from the others, which decode weights,
by the function that the debug information names; one whose place an optimization dropped counts as the products'. Loads and stores are counted by clang's coverage callbacks; one that
has none is an error, so that nothing is missed silently; the copies that LLVM makes of loops are told to the device here."""
import re
import sys

PRODUCTS = {"walk_rows", "simd_row_sum", "simd_sum", "tile_product", "add_products", "kernel_out_prod_id", "simdgroup_multiply_accumulate"}
OPERATION = re.compile(r"= (?:fadd|fsub|fmul|fdiv) (?:[a-z]+ )*(?:<(\d+) x )?(?:float|half|bfloat|double)\b")
COPY = re.compile(r"call void @llvm\.mem(cpy|move|set)\S*\(ptr [^,]*?([%@][^ ,]+), \S+ [^,]*?(\S+), i64 (\S+), i1")
TERMINATOR = re.compile(r"\s+(?:br|ret|switch|unreachable|resume)\b")


def names_of_scopes(text):
    """{number of a DILocation: the function that it is in}"""
    nodes = dict(re.findall(r"^!(\d+) = (?:distinct )?(!DI(?:Location|Subprogram|LexicalBlock\w*)\(.*\))$",
                            text, re.M))

    def name(number):
        node = nodes[number]
        if node.startswith("!DISubprogram"):
            return re.search(r'name: "([^"<]*)', node)[1]
        return name(re.search(r"scope: !(\d+)", node)[1])

    return {n: name(n) for n, node in nodes.items() if node.startswith("!DILocation")}


def main():
    path = sys.argv[1]
    with open(path) as file:
        text = file.read()
    scopes, out, before = names_of_scopes(text), [], ""
    product = other = 0
    for line in text.split("\n"):
        code = line.strip()
        if code.startswith("#dbg"):
            continue
        m = OPERATION.search(line)
        if m:
            at = re.search(r"!dbg !(\d+)", line)
            n = int(m[1] or 1)
            if not at or scopes[at[1]] in PRODUCTS:
                product += n
            else:
                other += n
        if (" = load " in line or code.startswith("store ")) and "__sanitizer_cov_" not in before:
            sys.exit(f"a load or store that is not counted: {code}")
        m = COPY.search(code)
        if m:
            source = m[3] if m[1] != "set" else "null"
            out.append(f"  call void @mdev_count_copy(ptr {m[2]}, ptr {source}, i64 {m[4]})")
        elif "call" in code and "@llvm.mem" in code:
            sys.exit(f"a copy that is not counted: {code}")
        if TERMINATOR.match(line) and product + other:
            out.append(f"  call void @mdev_count_operations(i32 {product}, i32 {other})")
            product = other = 0
        if code:
            before = code
        out.append(line)
    out.append("declare void @mdev_count_copy(ptr, ptr, i64)")
    out.append("declare void @mdev_count_operations(i32, i32)")
    with open(path, "w") as file:
        file.write("\n".join(out) + "\n")


main()
