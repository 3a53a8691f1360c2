/* What a session takes, known before it takes anything. Opening one lays its memory out by this,
 * and reports it by this; whoever only wants to know calls the same. Needs no device. */
#ifndef SK_SIZES_H
#define SK_SIZES_H

#include "engine/program.h"

/* Blocks of memory that hold the buffers of a program. */
typedef enum sk_area {
    SK_AREA_WEIGHTS, // on a device; the CPU uses weights where they are
    SK_AREA_STATE,   // state and pending rows; on a device control too, but for the rings
    SK_AREA_CONTROL, // on the CPU, the rings among it
    SK_AREA_RINGS,   // on a device: pinned host memory
    SK_AREA_TABLES   // likewise, of weights that the options leave there
} sk_area;

typedef struct sk_sizes {
    uint64_t weights, state, control, rings, tables; // blocks
    uint64_t transients, work;                       // of the plan that wants most
    uint64_t scratch;                                // on a device: both in one block, and counters
    uint64_t staging;                                // on a device: freed once weights are loaded
} sk_sizes;

/* NOMEM for sizes beyond the address space. */
SK_MUST_USE sk_code sk_sizes_init(sk_sizes *out, const sk_program *p, sk_status *st);

/* Walks the buffers of an area; with `base` their addresses are handed out. */
SK_MUST_USE sk_code sk_sizes_lay_out(const sk_program *p, sk_area area, uint8_t *base,
                                     uint8_t **addr, uint64_t *bytes, sk_status *st);

/* The area of a buffer; false: it has none, being a transient, or a weight that the CPU uses. */
bool sk_sizes_area(const sk_program *p, size_t buf, sk_area *out);
/* Bytes that a buffer takes there: matrices are packed on a device. */
uint64_t sk_sizes_bytes(const sk_program *p, size_t buf);
bool sk_sizes_packs(const sk_buf *b); // is this weight packed on a device?

/* Labelled bytes of everything a session holds. Returns false past the end. */
typedef struct sk_mem_item {
    const char *owner;
    uint64_t bytes;
} sk_mem_item;
bool sk_sizes_item(const sk_sizes *s, const sk_program *p, size_t at, sk_mem_item *out);

#endif
