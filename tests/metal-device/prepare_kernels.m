/* prepare_kernels FILE...: compiles kernel texts into the software device's cache. */
#import <Metal/Metal.h>

#include <stdio.h>
#include <stdlib.h>

static char *read_text(const char *path)
{
    static char text[4 << 20];
    FILE *f = fopen(path, "rb");

    if (!f)
        return NULL;
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    return text;
}

int main(int argc, char **argv)
{
    int failed = 0;

    @autoreleasepool {
        id<MTLDevice> device = MTLCreateSystemDefaultDevice();
        MTLCompileOptions *options = [[MTLCompileOptions alloc] init]; /* as src/metal/runtime.m has them */
        options.fastMathEnabled = NO;
        for (int i = 1; i < argc; i++) {
            NSError *error = NULL;
            const char *text = read_text(argv[i]);
            id<MTLLibrary> library = text ? [device newLibraryWithSource:[NSString stringWithUTF8String:text]
                                                                 options:options
                                                                   error:&error]
                                          : NULL;
            if (!library)
                fprintf(stderr, "%s: %s\n", argv[i], error ? [[error localizedDescription] UTF8String] : "unreadable");
            failed |= !library;
            [(id)library release];
        }
        [options release];
        [(id)device release];
    }
    return failed;
}
