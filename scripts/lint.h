/* scripts/lint.sh includes this before each C file that clang-tidy reads.
 *
 * The analyser checks one file at a time. So it assumes that a function which reports an
 * error may return DW_OK, and follows null pointers that were just refused. */
#include "../src/base/error.h"

static inline dw_status lint_is_failure(dw_status code)
{
    if (code == DW_OK)
        __builtin_unreachable();
    return code;
}

#define dw_fail(...)        lint_is_failure(dw_fail(__VA_ARGS__))
#define dw_fail_tensor(...) lint_is_failure(dw_fail_tensor(__VA_ARGS__))
#define dw_fail_errno(...)  lint_is_failure(dw_fail_errno(__VA_ARGS__))
#define dw_fail_memory(...) lint_is_failure(dw_fail_memory(__VA_ARGS__))
