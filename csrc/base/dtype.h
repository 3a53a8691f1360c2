/* Element and block types: the ggml tensor types as files store them, by their ggml ids, and the
 * further ones of safetensors files and of our own buffers. One table gives every size; nothing
 * else in the tree knows that a Q4_1 block is 20 bytes. Sizes: GGUF specification and the ggml type
 * table; safetensors. */
#ifndef SK_DTYPE_H
#define SK_DTYPE_H

#include "base/status.h"

/* X(name, ggml id, elements per block, bytes per block) */
#define SK_DTYPES(X)                                                                               \
    X(F32, 0, 1, 4)                                                                                \
    X(F16, 1, 1, 2)                                                                                \
    X(Q4_0, 2, 32, 18)                                                                             \
    X(Q4_1, 3, 32, 20)                                                                             \
    X(Q5_0, 6, 32, 22)                                                                             \
    X(Q5_1, 7, 32, 24)                                                                             \
    X(Q8_0, 8, 32, 34)                                                                             \
    X(Q8_1, 9, 32, 36)                                                                             \
    X(Q2_K, 10, 256, 84)                                                                           \
    X(Q3_K, 11, 256, 110)                                                                          \
    X(Q4_K, 12, 256, 144)                                                                          \
    X(Q5_K, 13, 256, 176)                                                                          \
    X(Q6_K, 14, 256, 210)                                                                          \
    X(Q8_K, 15, 256, 292)                                                                          \
    X(IQ2_XXS, 16, 256, 66)                                                                        \
    X(IQ2_XS, 17, 256, 74)                                                                         \
    X(IQ3_XXS, 18, 256, 98)                                                                        \
    X(IQ1_S, 19, 256, 50)                                                                          \
    X(IQ4_NL, 20, 32, 18)                                                                          \
    X(IQ3_S, 21, 256, 110)                                                                         \
    X(IQ2_S, 22, 256, 82)                                                                          \
    X(IQ4_XS, 23, 256, 136)                                                                        \
    X(I8, 24, 1, 1)                                                                                \
    X(I16, 25, 1, 2)                                                                               \
    X(I32, 26, 1, 4)                                                                               \
    X(I64, 27, 1, 8)                                                                               \
    X(F64, 28, 1, 8)                                                                               \
    X(IQ1_M, 29, 256, 56)                                                                          \
    X(BF16, 30, 1, 2)                                                                              \
    X(TQ1_0, 34, 256, 54)                                                                          \
    X(TQ2_0, 35, 256, 66)                                                                          \
    X(MXFP4, 39, 32, 17)                                                                           \
    X(NVFP4, 40, 64, 36)                                                                           \
    X(Q1_0, 41, 128, 18)                                                                           \
    X(Q2_0, 42, 64, 18)                                                                            \
    X(U8, 1000, 1, 1) /* from here on ours: never in a GGUF file */                                \
    X(BOOL, 1001, 1, 1)                                                                            \
    X(U16, 1002, 1, 2)                                                                             \
    X(U32, 1003, 1, 4)                                                                             \
    X(U64, 1004, 1, 8)                                                                             \
    X(F8_E4M3, 1005, 1, 1)                                                                         \
    X(F8_E5M2, 1006, 1, 1)                                                                         \
    X(F8_E8M0, 1007, 1, 1)                                                                         \
    X(F8_E4M3FNUZ, 1008, 1, 1)                                                                     \
    X(F8_E5M2FNUZ, 1009, 1, 1)                                                                     \
    X(F4, 1010, 2, 1)                                                                              \
    X(F6_E2M3, 1011, 4, 3)                                                                         \
    X(F6_E3M2, 1012, 4, 3)                                                                         \
    X(C64, 1013, 1, 8)

typedef enum sk_dtype {
#define X(name, id, n, bytes) SK_##name = (id),
    SK_DTYPES(X)
#undef X
        SK_DTYPE_NONE = -1
} sk_dtype;

typedef struct sk_dtype_info {
    const char *name;
    int32_t id;
    int32_t block_elems;
    int32_t block_bytes;
} sk_dtype_info;

/* NULL for an id that names no type (dead, foreign or unknown). */
const sk_dtype_info *sk_dtype_find(int64_t id);

/* "Q4_1"; "?" for an unknown id. */
const char *sk_dtype_name(int64_t id);

/* Bytes of a row of `n` elements. False when n is no multiple of the block or the size overflows.
 */
bool sk_dtype_row_bytes(int64_t id, uint64_t n, uint64_t *out);

/* Can sk_quant_* decode it? Not so Q8_1, about whose block size programs disagree, U8, and the
 * types of safetensors that no checkpoint here is known to need (FNUZ, F4, F6, C64). */
bool sk_dtype_decodable(int64_t id);

/* May a matrix or a vector of a model have it? Q8_K, a format of activations whose scale times code
 * is not exact, may not, nor may unsigned integers and bools, which are codes, or F8_E8M0, a type
 * of scales. */
bool sk_dtype_is_weight(int64_t id);

#endif
