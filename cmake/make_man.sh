#!/bin/sh
# Man pages from what the command says of itself, so that they cannot differ: make_man.sh FIRN OUTDIR
# Writes firn.1 and one firn-<command>.1 for each line of `firn --help`.
set -eu
firn=$1
out=$2
mkdir -p "$out"
version=$("$firn" --version | cut -d' ' -f2)

escape() { sed -e 's/\\/\\e/g' -e 's/-/\\-/g' -e "s/^\\([.']\\)/\\\\\&\\1/"; }

header() { # NAME "one line"
    printf '.TH %s 1 "" "firn %s" "firn"\n.SH NAME\n%s \\- %s\n' "$(echo "$1" | tr a-z A-Z)" "$version" "$1" "$2"
}

commands=$("$firn" --help | sed -n 's/^  \([a-z-]*\) .*/\1/p')
{
    header firn "fine-tunes Mixture-of-Experts models through their frozen, quantized experts"
    printf '.SH SYNOPSIS\n.B firn\nCOMMAND [arguments]\n.SH COMMANDS\n.nf\n'
    "$firn" --help | sed -n 's/^  \([a-z-]*  *.*\)/\1/p' | escape
    printf '.fi\n.SH EXIT STATUS\n0: done. 1: refused or failed. 2: usage. 130 after Ctrl\\-C and 143 after SIGTERM, with a checkpoint written.\n'
    printf '.SH ENVIRONMENT\n.B FIRN_CPU\noverrides the kernel set of the CPU: scalar, vector, avx2, avx512, avx512vnni or neon; with \\-\\-precision bf16 scalar\\-bf16, avx512bf16 or amx.\n.TP\n.B FIRN_BACKENDS\nfolders, with colons between them, in which backends in shared objects (libfirn\-<name>.so) are looked for, before the library\(aqs own.\n.SH SEE ALSO\n'
    for c in $commands; do printf '.BR firn-%s (1)\n' "$c"; done
} >"$out/firn.1"
for c in $commands; do
    line=$("$firn" --help | sed -n "s/^  $c  *//p")
    {
        header "firn-$c" "$line"
        printf '.SH DESCRIPTION\n.nf\n'
        "$firn" "$c" --help | escape
        printf '.fi\n.SH SEE ALSO\n.BR firn (1)\n'
    } >"$out/firn-$c.1"
done
