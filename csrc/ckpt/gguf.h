/* The directory of a GGUF file: a pure parser over bytes in memory, which opens nothing and keeps
 * pointing into those bytes. Accepts versions 2 and 3, little-endian. What is refused, in which
 * order and by which name: docs/formats.md. */
#ifndef SK_GGUF_H
#define SK_GGUF_H

#include "ckpt/index.h"

typedef struct sk_gguf {
    const uint8_t *bytes; // borrowed
    uint64_t size;
    uint32_t version;
    uint64_t alignment;
    uint64_t data_off; // of the data section
    uint64_t data_end; // end of the last tensor in the file
    uint32_t n_meta;
    uint32_t n_tensors;
    sk_meta *meta;      // [n_meta], file order
    sk_tensor *tensors; // [n_tensors], file order
    sk_index by_key;    // over meta
    sk_index by_name;   // over tensors
} sk_gguf;

/* Reads and checks everything but the tensors' contents. `label` stands in front of every message:
 * the path of the file. `bytes` stays with the caller and must outlive *out. */
SK_MUST_USE sk_code sk_gguf_init(sk_gguf *out, const uint8_t *bytes, uint64_t size,
                                 const char *label, bool strict, sk_status *st);
/* Accepts a zeroed directory and leaves one. */
void sk_gguf_fini(sk_gguf *g);

#endif
