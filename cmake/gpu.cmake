# GPU backends: src/gpu, which they share, and those whose interface is there. The others have their folder's absent.c.
file(GLOB FIRN_GPU_KERNELS CONFIGURE_DEPENDS src/gpu/kernels/*.metal)
# What their text is made of, and what reads it.
file(GLOB FIRN_GPU_HEADERS CONFIGURE_DEPENDS src/gpu/kernels/*.h src/gpu/kernels/*.def src/format/*.h src/op/elementary.h src/op/elementwise.def)
list(APPEND FIRN_GPU_HEADERS ${CMAKE_SOURCE_DIR}/cmake/kernel_text.py)
include(cmake/metal.cmake)
if(FIRN_METAL)
    file(GLOB FIRN_GPU_SOURCES CONFIGURE_DEPENDS src/gpu/*.c)
    target_sources(firn_objects PRIVATE ${FIRN_GPU_SOURCES})
else()
    target_sources(firn_objects PRIVATE src/metal/absent.c)
endif()
include(cmake/cuda.cmake)
