# GPU backends: src/gpu, which they share, and those whose interface is there. The others have their folder's absent.c.
include(cmake/metal.cmake)
if(FIRN_METAL)
    file(GLOB FIRN_GPU_SOURCES CONFIGURE_DEPENDS src/gpu/*.c)
    target_sources(firn_objects PRIVATE ${FIRN_GPU_SOURCES})
else()
    target_sources(firn_objects PRIVATE src/metal/absent.c)
endif()
include(cmake/cuda.cmake)
