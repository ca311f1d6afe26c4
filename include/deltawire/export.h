/* The library exports only the functions that are marked with DW_API. */
#ifndef DELTAWIRE_EXPORT_H
#define DELTAWIRE_EXPORT_H

#if defined(__GNUC__)
#define DW_API __attribute__((visibility("default")))
#else
#define DW_API
#endif

#endif
