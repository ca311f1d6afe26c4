# The kernels as one file for all devices (a fatbin), which src/cuda/cuda_image.c embeds. Machine
# code for each of DW_CUDA_ARCHS, and PTX of the first one for devices between and after
# them. Without an nvcc the library is built without kernels, and says so.
find_program(DW_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
mark_as_advanced(DW_NVCC)
if(DW_CUDA AND DW_NVCC)
    set(cuda_fatbin ${CMAKE_CURRENT_BINARY_DIR}/kernels.fatbin)
    set(cuda_code "")
    set(cuda_targets "")
    foreach(arch ${DW_CUDA_ARCHS})
        list(APPEND cuda_code -gencode arch=compute_${arch},code=sm_${arch})
        string(APPEND cuda_targets "sm_${arch} ")
    endforeach()
    list(GET DW_CUDA_ARCHS 0 arch)
    list(APPEND cuda_code -gencode arch=compute_${arch},code=compute_${arch})
    file(GLOB cuda_sources CONFIGURE_DEPENDS src/cuda/*.cu src/cuda/*.cuh src/cuda/kernels.h
         src/cuda/jobs.h)
    add_custom_command(OUTPUT ${cuda_fatbin}
        COMMAND ${DW_NVCC} -fatbin -O3 -std=c++17 -Werror all-warnings ${cuda_code}
                -I${CMAKE_CURRENT_SOURCE_DIR}/src -MD -MF ${cuda_fatbin}.d
                -o ${cuda_fatbin} ${CMAKE_CURRENT_SOURCE_DIR}/src/cuda/kernels.cu
        DEPENDS ${cuda_sources} DEPFILE ${cuda_fatbin}.d
        COMMENT "Compiling the CUDA kernels"
        VERBATIM)
    set_source_files_properties(src/cuda/cuda_image.c PROPERTIES
        OBJECT_DEPENDS ${cuda_fatbin}
        COMPILE_DEFINITIONS
        "DW_CUDA_FATBIN=\"${cuda_fatbin}\";DW_CUDA_TARGETS=\"${cuda_targets}PTX\"")
endif()
