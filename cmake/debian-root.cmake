# Compiles against the packages that scripts/debian-root.sh put into DW_DEBIAN_ROOT (in the
# environment), for their processor.
set(root $ENV{DW_DEBIAN_ROOT})
if(EXISTS ${root}/usr/lib/aarch64-linux-gnu)
    set(CMAKE_SYSTEM_PROCESSOR aarch64)
else()
    set(CMAKE_SYSTEM_PROCESSOR x86_64)
endif()
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_LIBRARY_ARCHITECTURE ${CMAKE_SYSTEM_PROCESSOR}-linux-gnu)
set(CMAKE_C_COMPILER ${CMAKE_LIBRARY_ARCHITECTURE}-gcc)
set(CMAKE_SYSROOT ${root})
set(CMAKE_C_FLAGS_INIT -ffile-prefix-map=${root}=) # the same bytes, wherever the root is
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
foreach(kind LIBRARY INCLUDE PACKAGE)
    set(CMAKE_FIND_ROOT_PATH_MODE_${kind} ONLY)
endforeach()
