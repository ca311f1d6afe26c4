/* The parts that records are made of: covers, objects, the table of tensors. */
#ifndef DW_STREAM_RECORD_PARTS_H
#define DW_STREAM_RECORD_PARTS_H

#include "stream/record_fields.h"

#define DW_MAX_OBJECTS 65536   /* of one record */
#define DW_MAX_TENSORS 1000000 /* of one stream */

/* The words for dw_receipt_says, and NULL. */
extern const char *const dw_receipt_words[];

/* Each takes member NAME; a fault goes to F. What was taken up to a fault is released by
 * the record's release function. */
void dw_field_covers(dw_fields *f, dw_cover **covers, size_t *n_covers, const char *name);
void dw_field_objects(dw_fields *f, dw_objects *objects);
void dw_field_tensors(dw_fields *f, dw_stream_record *out);

/* Without the member's name. */
void dw_write_covers(dw_writer *out, const dw_cover *covers, size_t n_covers);
void dw_write_objects(dw_writer *out, const dw_objects *objects);
void dw_write_tensors(dw_writer *out, const dw_tensor *tensors, size_t n_tensors);

#endif
