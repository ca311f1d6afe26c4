# The kernels as one file for all devices (a fatbin), which src/cuda/cuda_image.c embeds. Machine
# code for each of DW_CUDA_ARCHS that nvcc knows, and PTX of the first one for devices between
# and after them. Without an nvcc that works, the library is built without kernels, and says so.
find_program(DW_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
mark_as_advanced(DW_NVCC)

# nvcc may be too old for the kernels, or for this compiler's headers.
if(DW_CUDA AND DW_NVCC AND NOT DEFINED DW_NVCC_ARCHS)
    set(probe ${CMAKE_CURRENT_BINARY_DIR}/nvcc_probe.cu)
    file(WRITE ${probe} "#include <stdint.h>\n"
         "__global__ void probe(uint64_t *x) { *x = (uint64_t)((unsigned __int128)*x * *x >> 64); }\n")
    set(known "")
    foreach(arch ${DW_CUDA_ARCHS})
        execute_process(
            COMMAND ${DW_NVCC} -cubin -std=c++17 -arch=sm_${arch} -o ${probe}.cubin ${probe}
            RESULT_VARIABLE result OUTPUT_QUIET ERROR_QUIET)
        if(result EQUAL 0)
            list(APPEND known ${arch})
        else()
            message(WARNING "${DW_NVCC} cannot compile for sm_${arch}: no kernels for it")
        endif()
    endforeach()
    set(DW_NVCC_ARCHS "${known}" CACHE INTERNAL "those of DW_CUDA_ARCHS that nvcc can compile for")
endif()

if(DW_CUDA AND DW_NVCC AND DW_NVCC_ARCHS)
    set(cuda_fatbin ${CMAKE_CURRENT_BINARY_DIR}/kernels.fatbin)
    set(cuda_code "")
    set(cuda_targets "")
    foreach(arch ${DW_NVCC_ARCHS})
        list(APPEND cuda_code -gencode arch=compute_${arch},code=sm_${arch})
        string(APPEND cuda_targets "sm_${arch} ")
    endforeach()
    list(GET DW_NVCC_ARCHS 0 arch)
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
