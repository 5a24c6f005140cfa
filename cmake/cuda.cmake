# The CUDA backend: libfirn-cuda.so, a backend as a shared object (core/plugin.c). Off by default: it needs nvcc and g++,
# and scripts/build-cuda does all of it. The kernels (src/gpu/kernels) are translated (embed_cuda.py), compiled for each
# architecture and put into the object as fat binaries; NVIDIA's driver is loaded at run time.
option(FIRN_CUDA "Build the CUDA backend, libfirn-cuda.so (needs nvcc)" OFF)
set(FIRN_CUDA_ARCHITECTURES "80;86;89;90a;100;120" CACHE STRING "What the CUDA kernels are compiled for")
if(NOT FIRN_CUDA)
    return()
endif()
find_program(FIRN_NVCC nvcc HINTS /usr/local/cuda/bin REQUIRED)
find_package(Python3 REQUIRED COMPONENTS Interpreter)
get_filename_component(FIRN_CUDA_ROOT ${FIRN_NVCC} REALPATH)
get_filename_component(FIRN_CUDA_ROOT ${FIRN_CUDA_ROOT}/../.. ABSOLUTE)
find_path(FIRN_CUDA_INCLUDE cuda.h HINTS ${FIRN_CUDA_ROOT}/include REQUIRED)

set(gencode)
foreach(arch ${FIRN_CUDA_ARCHITECTURES})
    list(APPEND gencode -gencode arch=compute_${arch},code=sm_${arch})
endforeach()
file(GLOB own_headers CONFIGURE_DEPENDS src/cuda/kernels/*.h)
set(images)
set(declarations)
set(rows)
# firn_cuda_image(SOURCE SUFFIX [-D...]): the fat binary of a kernel file, and its name in images.c.
function(firn_cuda_image source suffix)
    get_filename_component(name ${source} NAME_WE)
    set(out ${CMAKE_BINARY_DIR}/cuda/${name}${suffix})
    add_custom_command(OUTPUT ${out}.fatbin
        COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/cuda
        COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/cmake/embed_cuda.py ${ARGN} ${CMAKE_SOURCE_DIR}/src ${source} ${out}.cu
        # 550: the matrix instruction's rows that are not used
        COMMAND ${FIRN_NVCC} -std=c++17 -O3 -I${CMAKE_SOURCE_DIR}/src -fatbin -diag-suppress 550 ${gencode} -o ${out}.fatbin ${out}.cu
        DEPENDS ${source} ${FIRN_GPU_HEADERS} ${own_headers} ${CMAKE_SOURCE_DIR}/cmake/embed_cuda.py ${CMAKE_SOURCE_DIR}/src/cuda/msl.cuh
        VERBATIM)
    set(images ${images} ${out}.fatbin PARENT_SCOPE)
    string(APPEND declarations "__asm__(\".section .rodata\\n.balign 64\\nfirn_cuda_${name}${suffix}:\\n.incbin \\\"${out}.fatbin\\\"\\n.previous\\n\");\nextern const unsigned char firn_cuda_${name}${suffix}[];\n")
    set(declarations "${declarations}" PARENT_SCOPE)
endfunction()
foreach(source ${FIRN_GPU_KERNELS})
    firn_cuda_image(${source} "")
    get_filename_component(name ${source} NAME_WE)
    if(name MATCHES "^(mul_mat|out_prod)$")
        firn_cuda_image(${source} _bf16 -DFIRN_PRECISION_BF16)
        string(APPEND rows "    [FIRN_GPU_LIBRARY_${name}] = {firn_cuda_${name}, firn_cuda_${name}_bf16},\n")
    else()
        string(APPEND rows "    [FIRN_GPU_LIBRARY_${name}] = {firn_cuda_${name}, 0},\n")
    endif()
endforeach()
string(REPLACE ";" " " architectures "${FIRN_CUDA_ARCHITECTURES}")
file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/cuda/images.c CONTENT "/* Made by cmake/cuda.cmake. */
#include \"cuda/cuda.h\"

${declarations}
static const unsigned char *const images[FIRN_GPU_N_LIBRARIES][2] = {
${rows}};

const void *firn_cuda_image(firn_gpu_library library, bool bf16)
{
    return images[library][bf16];
}

const char firn_cuda_architectures[] = \"${architectures}\";
")
set_source_files_properties(${CMAKE_BINARY_DIR}/cuda/images.c PROPERTIES GENERATED TRUE OBJECT_DEPENDS "${images}")

file(GLOB sources CONFIGURE_DEPENDS src/cuda/*.c src/gpu/*.c)
add_library(firn-cuda MODULE ${sources} ${CMAKE_BINARY_DIR}/cuda/images.c)
target_include_directories(firn-cuda PRIVATE include src)
target_include_directories(firn-cuda SYSTEM PRIVATE ${FIRN_CUDA_INCLUDE})
target_link_libraries(firn-cuda PRIVATE Threads::Threads ${CMAKE_DL_LIBS} m)
set_target_properties(firn-cuda PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
