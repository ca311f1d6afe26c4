#include "deltawire/deltawire.h"

const char *dw_version(void)
{
    return DW_VERSION_STRING;
}
