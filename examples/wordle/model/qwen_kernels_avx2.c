#define KERNELS      qwen_kernels_avx2
#define KERNELS_NAME "avx2"
#include "qwen_kernels.inc"
