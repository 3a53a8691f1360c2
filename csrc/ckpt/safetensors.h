/* The header of a safetensors file: a pure parser over bytes in memory, which opens nothing. What
 * is refused, in which order and by which name: docs/formats.md. */
#ifndef SK_SAFETENSORS_H
#define SK_SAFETENSORS_H

#include "ckpt/index.h"

typedef struct sk_safetensors {
    const uint8_t *bytes; // borrowed
    uint64_t size;
    uint64_t data_off; // of the byte buffer
    uint32_t n_meta;
    uint32_t n_tensors;
    sk_meta *meta;      // [n_meta] of __metadata__, all strings
    sk_tensor *tensors; // [n_tensors], header order
    sk_index by_key;    // over meta
    sk_index by_name;   // over tensors
    char *text;         // names and values that are not in the file as they are
} sk_safetensors;

/* Reads and checks everything but the tensors' contents. `label` stands in front of every message:
 * the path of the file. `bytes` stays with the caller and must outlive *out. */
SK_MUST_USE sk_code sk_safetensors_init(sk_safetensors *out, const uint8_t *bytes, uint64_t size,
                                        const char *label, bool strict, sk_status *st);
/* Accepts a zeroed header and leaves one. */
void sk_safetensors_fini(sk_safetensors *s);

#endif
