/* The parts that records are made of: covers, objects, the table of tensors. */
#ifndef DW_STREAM_RECORD_PARTS_H
#define DW_STREAM_RECORD_PARTS_H

#include "stream/record_fields.h"

#define DW_MAX_OBJECTS 65536   /* of one record */
#define DW_MAX_TENSORS 1000000 /* of one stream */

extern const dw_member_own dw_tensors_member; /* of a dw_stream_record */
extern const dw_member_own dw_objects_member; /* a dw_objects */

/* What was taken up to a fault is released by the record's release function. */
void dw_field_covers(dw_fields *f, dw_cover **covers, size_t *n_covers, const char *name);
/* Without the member's name. */
void dw_write_covers(dw_writer *out, const dw_cover *covers, size_t n_covers);

#endif
