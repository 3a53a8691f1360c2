/* A view: which part of which buffer an op's argument is, and, once bound, where that is.
 *
 * Views are plain values and own nothing. In a semantic plan `p` is NULL and (buf, off) say where
 * the data will be; binding fills in `p`. The last dimension is dense; the stride of every other
 * one is explicit, in bytes, so a view may be a slice of packed rows. */
#ifndef SK_VIEW_H
#define SK_VIEW_H

#include "base/dtype.h"

#define SK_VIEW_DIMS 4

typedef struct sk_view {
    uint8_t *p;                       // bound address, NULL before binding
    uint64_t off;                     // bytes from the start of the buffer
    int64_t dim[SK_VIEW_DIMS];        // elements, outermost first
    int64_t stride[SK_VIEW_DIMS - 1]; // bytes between neighbours along dims 0 .. rank-2
    int32_t buf;                      // buffer number; -1: an optional argument that is absent
    int32_t dtype;                    // sk_dtype
    int32_t rank;                     // 1 .. SK_VIEW_DIMS
} sk_view;

#define SK_VIEW_NONE                                                                               \
    {                                                                                              \
        .buf = -1, .dtype = SK_DTYPE_NONE                                                          \
    }

static inline bool sk_view_present(const sk_view *v) { return v->buf >= 0; }

/* Address of row i (along dim 0) of a bound view. */
static inline uint8_t *sk_view_row(const sk_view *v, int64_t i)
{
    return v->p + (v->rank > 1 ? i * v->stride[0] : 0);
}

/* Bytes from the first to one past the last byte the view may touch; false on overflow, on a rank
 * or dimension outside its domain, or when the row is no whole number of blocks. */
bool sk_view_span(const sk_view *v, uint64_t *out);

/* A dense view of a whole buffer. */
sk_view sk_view_dense(int32_t buf, int32_t dtype, int32_t rank, const int64_t *dim);

#endif
