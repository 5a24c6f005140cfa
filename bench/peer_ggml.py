"""bench/peer-ggml: brings llama.cpp's Python package, which exports ggml's C interface, and build/.../peer-ggml.so into
one process; the latter measures (bench/peer_ggml.c)."""
import ctypes
import glob
import importlib.util
import os
import sys

package = importlib.util.find_spec("xllamacpp")
ctypes.CDLL(glob.glob(os.path.join(package.submodule_search_locations[0], "xllamacpp*.so"))[0], mode=ctypes.RTLD_GLOBAL)
arguments = [a.encode() for a in sys.argv[2:]]
run = ctypes.CDLL(sys.argv[1]).peer_ggml
sys.exit(run(len(arguments), (ctypes.c_char_p * (len(arguments) + 1))(*arguments)))
