/* The part of the Metal API that the software device has; names, selectors and values are Apple's. See Metal.m. */
#ifndef MDEV_METAL_H
#define MDEV_METAL_H

#import <Foundation/Foundation.h>

typedef struct {
    NSUInteger width, height, depth;
} MTLSize;
static inline MTLSize MTLSizeMake(NSUInteger width, NSUInteger height, NSUInteger depth)
{
    return (MTLSize){width, height, depth};
}

typedef NS_OPTIONS(NSUInteger, MTLResourceOptions) {
    MTLResourceStorageModeShared = 0,
    MTLResourceStorageModePrivate = 2 << 4,
};
typedef NS_ENUM(NSUInteger, MTLCommandBufferStatus) {
    MTLCommandBufferStatusNotEnqueued = 0,
    MTLCommandBufferStatusEnqueued,
    MTLCommandBufferStatusCommitted,
    MTLCommandBufferStatusScheduled,
    MTLCommandBufferStatusCompleted,
    MTLCommandBufferStatusError,
};
typedef NS_OPTIONS(NSUInteger, MTLPipelineOption) {
    MTLPipelineOptionNone = 0,
};
typedef NS_ENUM(NSUInteger, MTLDataType) {
    MTLDataTypeFloat = 3,
    MTLDataTypeHalf = 16,
    MTLDataTypeInt = 29,
    MTLDataTypeUInt = 33,
    MTLDataTypeShort = 37,
    MTLDataTypeUShort = 41,
    MTLDataTypeBool = 53,
};
typedef NS_ENUM(NSInteger, MTLGPUFamily) {
    MTLGPUFamilyApple7 = 1007,
    MTLGPUFamilyMetal3 = 5001,
};

@protocol MTLDevice
, MTLLibrary, MTLFunction, MTLComputePipelineState, MTLBuffer, MTLCommandQueue, MTLCommandBuffer,
    MTLComputeCommandEncoder;

@interface MTLCompileOptions : NSObject {
    BOOL _fast;
}
@property(nonatomic) BOOL fastMathEnabled;
@end

@interface MTLFunctionConstantValues : NSObject {
  @public
    struct {
        unsigned char size;
        char bytes[16];
    } _values[256];
}
- (void)setConstantValue:(const void *)value type:(MTLDataType)type atIndex:(NSUInteger)index;
@end

@protocol MTLFunction;
@interface MTLComputePipelineDescriptor : NSObject {
    id<MTLFunction> _function;
    NSUInteger _threads;
    BOOL _whole;
}
@property(nonatomic, retain) id<MTLFunction> computeFunction;
@property(nonatomic) NSUInteger maxTotalThreadsPerThreadgroup;
@property(nonatomic) BOOL threadGroupSizeIsMultipleOfThreadExecutionWidth;
@end

@protocol MTLBuffer <NSObject>
- (void *)contents;
- (NSUInteger)length;
@end

@protocol MTLFunction <NSObject>
- (NSString *)name;
@end

@protocol MTLLibrary <NSObject>
- (id<MTLFunction>)newFunctionWithName:(NSString *)name;
- (id<MTLFunction>)newFunctionWithName:(NSString *)name
                        constantValues:(MTLFunctionConstantValues *)values
                                 error:(NSError **)error;
@end

@protocol MTLComputePipelineState <NSObject>
- (NSUInteger)maxTotalThreadsPerThreadgroup;
- (NSUInteger)threadExecutionWidth;
- (NSUInteger)staticThreadgroupMemoryLength;
@end

@protocol MTLDevice <NSObject>
- (NSString *)name;
- (NSUInteger)maxThreadgroupMemoryLength;
- (NSUInteger)maxBufferLength;
- (uint64_t)recommendedMaxWorkingSetSize;
- (NSUInteger)currentAllocatedSize;
- (BOOL)hasUnifiedMemory;
- (BOOL)supportsFamily:(MTLGPUFamily)family;
- (id<MTLCommandQueue>)newCommandQueue;
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options;
- (id<MTLBuffer>)newBufferWithBytesNoCopy:(void *)memory
                                   length:(NSUInteger)length
                                  options:(MTLResourceOptions)options
                              deallocator:(void (^)(void *, NSUInteger))deallocator;
- (id<MTLLibrary>)newLibraryWithSource:(NSString *)source options:(MTLCompileOptions *)options error:(NSError **)error;
- (id<MTLComputePipelineState>)newComputePipelineStateWithFunction:(id<MTLFunction>)function error:(NSError **)error;
- (id<MTLComputePipelineState>)newComputePipelineStateWithDescriptor:(MTLComputePipelineDescriptor *)descriptor
                                                             options:(MTLPipelineOption)options
                                                          reflection:(id *)reflection
                                                               error:(NSError **)error;
@end

@protocol MTLCommandQueue <NSObject>
- (id<MTLCommandBuffer>)commandBuffer;
@end

typedef void (^MTLCommandBufferHandler)(id<MTLCommandBuffer>);
@protocol MTLCommandBuffer <NSObject>
- (id<MTLComputeCommandEncoder>)computeCommandEncoder;
- (void)commit;
- (void)waitUntilCompleted;
- (void)addCompletedHandler:(MTLCommandBufferHandler)block;
- (MTLCommandBufferStatus)status;
- (NSError *)error;
- (CFTimeInterval)GPUStartTime;
- (CFTimeInterval)GPUEndTime;
@end

@protocol MTLComputeCommandEncoder <NSObject>
- (void)setComputePipelineState:(id<MTLComputePipelineState>)pipeline;
- (void)setBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index;
- (void)setBytes:(const void *)bytes length:(NSUInteger)length atIndex:(NSUInteger)index;
- (void)setThreadgroupMemoryLength:(NSUInteger)length atIndex:(NSUInteger)index;
- (void)dispatchThreadgroups:(MTLSize)threadgroups threadsPerThreadgroup:(MTLSize)threads;
- (void)endEncoding;
@end

#ifdef __cplusplus
extern "C" {
#endif
id<MTLDevice> MTLCreateSystemDefaultDevice(void);
NSArray *MTLCopyAllDevices(void) __attribute__((ns_returns_retained));
#ifdef __cplusplus
}
#endif
#endif
