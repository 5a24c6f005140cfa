/* A main for the fuzz targets where libFuzzer is not: runs every file of the folders named on the command line once. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return 0;
    uint8_t *data = malloc(1 << 22);
    const size_t n = data ? fread(data, 1, 1 << 22, f) : 0;
    fclose(f);
    uint8_t *exact = malloc(n ? n : 1); /* so that the address sanitizer sees the end */
    if (!data || !exact)
        return 0;
    for (size_t i = 0; i < n; i++)
        exact[i] = data[i];
    LLVMFuzzerTestOneInput(exact, n);
    free(exact);
    free(data);
    return 1;
}

int main(int argc, char **argv)
{
    int n = 0;
    for (int i = 1; i < argc; i++) {
        DIR *dir = opendir(argv[i]);
        if (!dir) {
            fprintf(stderr, "%s: cannot open %s\n", argv[0], argv[i]);
            return 1;
        }
        for (struct dirent *e; (e = readdir(dir));) {
            char path[4096];
            if (e->d_name[0] == '.')
                continue;
            snprintf(path, sizeof path, "%s/%s", argv[i], e->d_name);
            n += replay(path);
        }
        closedir(dir);
    }
    printf("replayed %d inputs\n", n);
    return n == 0;
}
