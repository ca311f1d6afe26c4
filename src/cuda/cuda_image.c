#include "cuda/cuda_image.h"

#include <stddef.h>

#ifdef DW_CUDA_FATBIN /* the path of the file; DW_CUDA_TARGETS names what it is for */

__asm__(".pushsection .rodata\n"
        ".balign 16\n"
        ".hidden dw_cuda_fatbin\n"
        ".global dw_cuda_fatbin\n"
        "dw_cuda_fatbin:\n"
        ".incbin \"" DW_CUDA_FATBIN "\"\n"
        ".popsection\n");
extern const unsigned char dw_cuda_fatbin[] __attribute__((visibility("hidden")));

const dw_cuda_image *dw_cuda_image_get(void)
{
    static const dw_cuda_image image = {dw_cuda_fatbin, DW_CUDA_TARGETS};
    return &image;
}

#else

const dw_cuda_image *dw_cuda_image_get(void)
{
    return NULL;
}

#endif
