/* See include/Foundation/Foundation.h. References are counted; one release too many aborts. */
#import <Foundation/Foundation.h>

#include "executor.h"

#include <objc/runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local NSAutoreleasePool *the_pool;
static long n_live;

long mdev_live_objects(void)
{
    return __atomic_load_n(&n_live, __ATOMIC_RELAXED);
}

@implementation NSObject
+ (void)initialize
{
}
+ (instancetype)alloc
{
    NSObject *o = class_createInstance(self, 0);
    o->_references = 1;
    __atomic_add_fetch(&n_live, 1, __ATOMIC_RELAXED);
    return o;
}
+ (instancetype)new
{
    return [[self alloc] init];
}
+ (Class)class
{
    return self;
}
- (instancetype)init
{
    return self;
}
- (void)dealloc
{
    __atomic_sub_fetch(&n_live, 1, __ATOMIC_RELAXED);
    object_dispose(self);
}
- (instancetype)retain
{
    __atomic_add_fetch(&_references, 1, __ATOMIC_RELAXED);
    return self;
}
- (oneway void)release
{
    const int n = __atomic_sub_fetch(&_references, 1, __ATOMIC_ACQ_REL);
    if (n == 0)
        [self dealloc];
    else if (n < 0) {
        fprintf(stderr, "one release too many of a %s\n", class_getName(object_getClass(self)));
        abort();
    }
}
- (instancetype)autorelease
{
    if (!the_pool) {
        fprintf(stderr, "autorelease without a pool: a %s leaks\n", class_getName(object_getClass(self)));
        abort();
    }
    [the_pool addObject:self];
    return self;
}
- (Class)class
{
    return object_getClass(self);
}
- (BOOL)respondsToSelector:(SEL)selector
{
    return class_respondsToSelector(object_getClass(self), selector);
}
- (NSString *)description
{
    return [NSString stringWithUTF8String:class_getName(object_getClass(self))];
}
@end

@implementation NSAutoreleasePool
- (instancetype)init
{
    _above = the_pool;
    the_pool = self;
    return self;
}
- (void)addObject:(id)object
{
    if (_n == _capacity) {
        _capacity = _capacity ? 2 * _capacity : 64;
        _objects = realloc(_objects, sizeof *_objects * _capacity);
    }
    _objects[_n++] = object;
}
- (void)drain
{
    [self release];
}
- (void)dealloc
{
    for (size_t i = 0; i < _n; i++)
        [(id)_objects[i] release];
    free(_objects);
    the_pool = _above;
    [super dealloc];
}
@end

@implementation NSString
+ (instancetype)stringWithUTF8String:(const char *)text
{
    return [[[NSString alloc] initWithBytes:text length:strlen(text) encoding:NSUTF8StringEncoding] autorelease];
}
- (instancetype)initWithBytes:(const void *)bytes length:(NSUInteger)length encoding:(NSStringEncoding)encoding
{
    (void)encoding;
    char *copy = malloc(length + 1);
    memcpy(copy, bytes, length);
    copy[length] = 0;
    _bytes = copy;
    _length = (unsigned)length;
    return self;
}
- (void)dealloc
{
    free((char *)_bytes);
    [super dealloc];
}
- (const char *)UTF8String
{
    return _bytes;
}
- (NSUInteger)length
{
    return _length;
}
- (NSString *)description
{
    return self;
}
@end

/* The compiler lays a constant string out as class, characters, length: an NSObject without a count. */
typedef struct {
    Class isa;
    const char *bytes;
    unsigned length;
} constant_string;
@implementation NSConstantString
- (const char *)UTF8String
{
    return ((constant_string *)self)->bytes;
}
- (NSUInteger)length
{
    return ((constant_string *)self)->length;
}
- (instancetype)retain
{
    return self;
}
- (oneway void)release
{
}
- (instancetype)autorelease
{
    return self;
}
@end

@implementation NSArray
- (NSUInteger)count
{
    return _n;
}
- (id)objectAtIndex:(NSUInteger)index
{
    return (id)_objects[index];
}
- (void)dealloc
{
    for (NSUInteger i = 0; i < _n; i++)
        [(id)_objects[i] release];
    free(_objects);
    [super dealloc];
}
@end

@implementation NSError
- (NSString *)localizedDescription
{
    return _text;
}
- (void)dealloc
{
    [_text release];
    [super dealloc];
}
@end
