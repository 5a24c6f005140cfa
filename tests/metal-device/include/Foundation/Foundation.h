/* The little of Foundation that the Metal runtime uses, with Apple's names. Implemented in Foundation.m over gcc's
 * Objective-C runtime; also what the syntax-only pass for macOS with ARC reads. */
#ifndef MDEV_FOUNDATION_H
#define MDEV_FOUNDATION_H

#if __has_include(<objc/objc.h>)
#include <objc/objc.h>
#else
#include "objc_types.h"
#endif
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef NS_ENUM
#define NS_ENUM(T, N)                                                                                                  \
    enum N : T N;                                                                                                      \
    enum N : T
#define NS_OPTIONS(T, N) NS_ENUM(T, N)
#endif
typedef long NSInteger;
typedef unsigned long NSUInteger;
typedef double CFTimeInterval;
typedef NSUInteger NSStringEncoding;
enum { NSUTF8StringEncoding = 4 };

@class NSString, NSError, NSArray;

@protocol NSObject
#if !__has_feature(objc_arc)
- (instancetype)retain;
- (oneway void)release;
- (instancetype)autorelease;
#endif
- (Class)class;
- (BOOL)respondsToSelector:(SEL)selector;
- (NSString *)description;
@end

__attribute__((objc_root_class))
@interface NSObject<NSObject> {
    Class isa;
    int _references;
}
+ (instancetype)alloc;
+ (instancetype)new;
+ (Class)class;
- (instancetype)init;
- (void)dealloc;
@end

#if !__has_feature(objc_arc)
@interface NSAutoreleasePool : NSObject {
    void **_objects;
    size_t _n, _capacity;
    NSAutoreleasePool *_above;
}
- (void)addObject:(id)object;
- (void)drain;
@end
#endif

@interface NSString : NSObject {
  @public
    const char *_bytes;
    unsigned _length;
}
+ (instancetype)stringWithUTF8String:(const char *)text;
- (instancetype)initWithBytes:(const void *)bytes length:(NSUInteger)length encoding:(NSStringEncoding)encoding;
- (const char *)UTF8String;
- (NSUInteger)length;
@end
@interface NSConstantString : NSString
@end

@interface NSArray : NSObject {
  @public
    void **_objects;
    NSUInteger _n;
}
- (NSUInteger)count;
- (id)objectAtIndex:(NSUInteger)index;
@end

@interface NSError : NSObject {
  @public
    NSString *_text;
}
- (NSString *)localizedDescription;
@end

#endif
