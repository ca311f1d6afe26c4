/* The kernels, compiled: a fatbin for cuModuleLoadData, if nvcc was there at build time.
 */
#ifndef DW_CUDA_CUDA_IMAGE_H
#define DW_CUDA_CUDA_IMAGE_H

typedef struct dw_cuda_image {
    const void *bytes;
    const char *targets; /* "sm_80 sm_90 sm_100 PTX" */
} dw_cuda_image;

/* NULL in a build without kernels. */
const dw_cuda_image *dw_cuda_image_get(void);

#endif
