#!/usr/bin/env python3
"""Writes src/format/grids.h: the codebooks that are part of the IQ1, IQ2 and IQ3 formats.
They are data, taken from the PyPI package gguf (MIT licence), 0.19.0 when the file in the repository was written.
usage: make_grids.py > src/format/grids.h      (pip install gguf)"""
import importlib.metadata

from gguf import quants

GRIDS = [  # name, class, bits of a code in the packed 16-bit word
    ("iq2_xxs", quants.IQ2_XXS, 2),
    ("iq2_xs", quants.IQ2_XS, 2),
    ("iq2_s", quants.IQ2_S, 2),
    ("iq3_xxs", quants.IQ3_XXS, 4),
    ("iq3_s", quants.IQ3_S, 4),
    ("iq1", quants.IQ1_S, 2),
]


def words(grid, bits):
    """One 16-bit word per grid point, made again from the package's decoded grid: code j in bits j*bits and up."""
    grid.init_grid()
    codes = {value: code for code, value in enumerate(grid.grid_map)}
    for point in grid.grid.reshape(grid.grid_shape):
        yield sum(codes[int(value)] << bits * j for j, value in enumerate(point))


print(f"""/* The codebooks of IQ1, IQ2 and IQ3: grid points as 16-bit words, eight codes of 2 bits (IQ1, IQ2) or four of 4 bits
 * (IQ3), the first lowest. What a code stands for is said where the format is decoded.
 *
 * Written by scripts/make_grids.py from the PyPI package gguf {importlib.metadata.version("gguf")}: data that is part of the formats,
 * Copyright (c) 2023-2026 The ggml authors, MIT licence. Not to be edited. */
#ifndef FIRN_FORMAT_GRIDS_H
#define FIRN_FORMAT_GRIDS_H

#include "format/common.h"

/* clang-format off */""")
for name, grid, bits in GRIDS:
    print(f"FIRN_TABLE uint16_t firn_{name}_grid[{grid.grid_shape[0]}] = {{")
    w = [f"0x{x:04x}," for x in words(grid, bits)]
    for i in range(0, len(w), 16):
        print("    " + " ".join(w[i:i + 16]))
    print("};\n")
print("/* clang-format on */\n\n#endif")
