/* Files that people give as models: see other.h. */
#include "gguf/other.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { SAFETENSORS_HEADER = 100 << 20 }; /* the format's own limit for its header */

/* A little-endian length, then a JSON object of that length. */
static bool is_safetensors(const unsigned char *d, size_t size)
{
    uint64_t n = 0;

    if (size < 10)
        return false;
    for (int i = 7; i >= 0; i--)
        n = n << 8 | d[i];
    return n >= 2 && n <= SAFETENSORS_HEADER && d[8] == '{' && (d[9] == '"' || d[9] == '}' || d[9] == ' ');
}

const char *firn_gguf_other(const void *data, size_t size)
{
    static const struct {
        const char *begin, *what;
    } known[] = {
        {"version https://git-lfs", "a Git LFS pointer, not the file that it stands for: fetch that with git lfs pull"},
        {"PK\3\4", "a PyTorch file or another ZIP archive: convert the model's folder with llama.cpp's "
                   "convert_hf_to_gguf.py, or download a GGUF of the model"},
        {"lmgg", "a GGML file of an older llama.cpp (before August 2023): download a GGUF of the model"},
        {"fmgg", "a GGML file of an older llama.cpp (before August 2023): download a GGUF of the model"},
        {"tjgg", "a GGML file of an older llama.cpp (before August 2023): download a GGUF of the model"},
        {"<!DOCTYPE", "a web page: the download gave a page in place of the file"},
        {"<!doctype", "a web page: the download gave a page in place of the file"},
        {"<html", "a web page: the download gave a page in place of the file"},
        {"\x1f\x8b", "compressed with gzip: decompress it first (gunzip)"},
        {"\x28\xb5\x2f\xfd", "compressed with zstd: decompress it first (unzstd)"},
        {"\xfd"
         "7zXZ",
         "compressed with xz: decompress it first (unxz)"},
    };

    if (is_safetensors(data, size))
        return "a safetensors file: convert the model's folder with llama.cpp's convert_hf_to_gguf.py, or download a "
               "GGUF of the model";
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (size >= strlen(known[i].begin) && memcmp(data, known[i].begin, strlen(known[i].begin)) == 0)
            return known[i].what;
    return NULL;
}
