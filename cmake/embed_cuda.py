#!/usr/bin/env python3
"""embed_cuda.py ROOT IN.metal OUT.cu [-D...]: a kernel file of the GPUs' common dialect (MSL) as CUDA C++.

The text is preprocessed by the C++ compiler ($CXX, g++) with its own headers alone, so that macros with attributes are
gone and line markers stay. Address spaces go, `static inline` functions become __device__ ones, and behind the text comes a
__global__ function for every kernel and every instantiation that has a host name:

    kernel_x(args by value, uint3 of the grid's size, pointers ...)

Grids have one dimension, since CUDA's second and third end at 65535; the kernel takes it apart. Pointers come last, since
a kernel may take fewer than are bound. Words of MSL that are left are in src/cuda/msl.cuh."""
import os
import re
import subprocess
import sys

from kernel_text import ATTRIBUTE, flatten, past, split, without_literals_of_double

GROUP = ["blockIdx.x % grid.x", "blockIdx.x / grid.x % grid.y", "blockIdx.x / grid.x / grid.y"]
VECTORS = {  # by the number of components that the parameter has
    "threadgroup_position_in_grid": ["blockIdx.x", None, f"msl_uint3({', '.join(GROUP)})"],
    "threadgroups_per_grid": ["grid.x", None, "grid"],
    "threads_per_threadgroup": ["blockDim.x", None, "msl_uint3(blockDim.x, 1, 1)"],
    "thread_position_in_threadgroup": ["threadIdx.x", None, "msl_uint3(threadIdx.x, 0, 0)"],
}
VALUES = {
    "thread_position_in_grid": "blockIdx.x * blockDim.x + threadIdx.x",
    "thread_index_in_threadgroup": "threadIdx.x",
    "thread_index_in_simdgroup": "threadIdx.x % 32",
    "simdgroup_index_in_threadgroup": "threadIdx.x / 32",
    "simdgroups_per_threadgroup": "blockDim.x / 32",
    "threads_per_simdgroup": "32",
}


def read(root, source):
    """With its headers; one of gpu/kernels that cuda/kernels has too is read there. No headers of a system's."""
    def place(name):
        own = name.replace("gpu/kernels/", "cuda/kernels/")
        return own if os.path.exists(os.path.join(root, own)) else name
    return re.sub(r"^\s*#\s*include\b[^\n]*", "", "\n".join(flatten(root, source, place)), flags=re.M)


def preprocess(text, defines):
    command = [os.environ.get("CXX", "g++"), "-E", "-x", "c++", "-std=c++17", "-nostdinc", "-undef", "-D__CUDACC__", "-D__HAVE_BFLOAT__",
               *defines, "-"]
    run = subprocess.run(command, input=text, capture_output=True, text=True)
    if run.returncode:
        sys.exit(run.stderr)
    return without_literals_of_double(run.stdout)


def spaces_away(text):
    """threadgroup variables of kernels are __shared__, other address spaces are nothing; lines stay where they are."""
    text = re.sub(r"\bthreadgroup\s+([\w:]+(?:\s*<[^;<>]*>)?)\s+(\w+)\s*((?:\[[^\]]*\])*)\s*;", r"__shared__ \1 \2\3;", text)
    text = re.sub(r"^(\s*)constant\s+(\w+)\s+(\w+)\s*=", r"\1static constexpr \2 \3 =", text, flags=re.M)
    text = re.sub(r"\bconstant\b", "const", text)
    text = re.sub(r"\b(device|threadgroup|thread)\b(?!\s*\()", "", text)
    text = re.sub(r"\bstatic\s+inline\b(?!\s*__device__)", "static __device__ __forceinline__", text)
    text = re.sub(r"\busing\s+namespace\s+metal\s*;", "", text)
    return re.sub(r"\b(uint3|ulong2)\b", r"msl_\1", text)


class Parameter:
    def __init__(self, text):
        attributes = dict(re.findall(ATTRIBUTE, text))
        plain = re.sub(ATTRIBUTE, "", text).strip()
        self.name = re.search(r"(\w+)\s*$", plain)[1]
        self.type = spaces_away(plain[:plain.rindex(self.name)]).strip()
        components = int(self.type[-1]) if self.type[-1] in "23" else 1
        self.value = next((VALUES[a] if a in VALUES else VECTORS[a][components - 1]
                           for a in attributes if a in VALUES or a in VECTORS), None)
        self.shared = "threadgroup" in attributes
        self.reference = self.type.endswith("&")

    def declared(self):
        return f"const __grid_constant__ {self.type[:-1].replace('const', '').strip()} {self.name}" if self.reference else f"{self.type} {self.name}"

    def given(self):
        if self.shared:
            return f"({self.type})firn_shared"
        return self.value or self.name


def translate(text):
    """The text without kernels' attributes, and what launches them."""
    kernels, definitions, out, at = [], {}, [], 0
    for m in re.finditer(r"(?:\[\[\s*host_name\(\s*((?:\"[^\"]+\"\s*)+)\)\s*\]\]\s*)?\bkernel\b", text):
        if m.start() < at:
            continue
        head = re.match(r"\s+void\s+(\w+)\s*\(", text[m.end():])
        if not head:  # template [[host_name]] kernel type NAME<...>;
            start, end = text.rindex("template", 0, m.start()), text.index(";", m.end()) + 1
            host = "".join(re.findall(r'"([^"]+)"', m[1]))
            expression = re.sub(r"\s+", " ", text[m.end():end - 1]).strip().split(" ", 1)[1]
            kernels.append((host, expression.split("<")[0], expression))
            out.append(text[at:start] + "\n" * text.count("\n", start, end))
            at = end
            continue
        opening = m.end() + head.end() - 1
        closing = past(text, opening, "(", ")")
        before = text[max(text.rfind(c, 0, m.start()) for c in ";}") + 1:m.start()]
        definitions[head[1]] = [Parameter(p) for p in split(text[opening + 1:closing - 1])]
        name = head[1]
        if not re.search(r"\btemplate\s*<", before):
            kernels.append((name, name, name + "_body"))
            name += "_body"
        out.append(text[at:m.start()] + f"static __device__ __forceinline__ void {name}(" +
                   re.sub(ATTRIBUTE, "", text[opening + 1:closing]))
        at = closing
    out.append(text[at:])
    launchers = []
    for host, name, expression in kernels:
        p = definitions[name]
        taken = [x.declared() for x in p if not x.value and not x.shared]
        declared = ", ".join(taken[:1] + ["const msl_uint3 grid"] + taken[1:])
        launchers.append(f'extern "C" __global__ void __launch_bounds__(256) {host}({declared})\n'
                         f"{{\n    {spaces_away(expression)}({', '.join(x.given() for x in p)});\n}}")
    return spaces_away("".join(out)), launchers


def main():
    root, source, out = [a for a in sys.argv[1:] if not a.startswith("-")]
    defines = [a for a in sys.argv[1:] if a.startswith("-D")]
    text, launchers = translate(preprocess(read(root, source), defines))
    with open(out, "w") as file:
        file.write('#include "cuda/msl.cuh"\nextern __shared__ __align__(16) unsigned char firn_shared[];\n' + text + "\n" + "\n".join(launchers) + "\n")


main()
