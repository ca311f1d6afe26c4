#define KERNELS      qwen_kernels_avx512
#define KERNELS_NAME "avx512"
#include "qwen_kernels.inc"
