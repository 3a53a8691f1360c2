/* Weights out of a counter: blocks of every type of weights, each a pure function of a key and its
 * own number. Nothing is kept between blocks, so any range of any tensor can be made anywhere, in
 * any order, by any number of threads.
 *
 * What is random is the code bits. The fields that scale them are chosen such that values have a
 * mean near 0 and a wanted standard deviation. A block takes word j = 0, 1, ... of its own stretch
 * of SK_SYNTH_WORDS counters; elements of plain types take half a word each.
 *
 * This header is for the host and for kernels: no libc, nothing but arithmetic that rounds alike.
 */
#ifndef SK_SYNTH_H
#define SK_SYNTH_H

#include "base/sk_base.h"

#ifdef __CUDACC__
#define SK_SYNTH_FN static __host__ __device__ inline
#else
#define SK_SYNTH_FN static inline
#endif

#define SK_SYNTH_SLOTS 16 // scales of one tensor
#define SK_SYNTH_WORDS 64 // counters of a block; 37 words would be enough for the largest

typedef enum sk_synth_form {
    SK_SYNTH_F32, // plain elements: centre + step * (a random integer or fraction)
    SK_SYNTH_F16,
    SK_SYNTH_BF16,
    SK_SYNTH_HALF,  // a binary16 scale, and a minimum where min_at >= 0
    SK_SYNTH_Q2_K,  // also: the minimum of a sub-block is as many steps as its scale,
    SK_SYNTH_Q45_K, // so that each is centred
    SK_SYNTH_IQ1_M, // the scale in four parts
    SK_SYNTH_MXFP4, // an exponent
    SK_SYNTH_NVFP4  // four small floats
} sk_synth_form;

/* How to make one tensor; plain data, to be handed to a kernel as it is. */
typedef struct sk_synth {
    uint64_t key;        // of seed and name
    int32_t form;        // sk_synth_form
    int32_t block_bytes; // of an element, for plain types
    int32_t scale_at, min_at;
    int32_t uniform; // plain: even over a range, else nearly normal
    float centre, step;
    uint16_t scale[SK_SYNTH_SLOTS]; // bits; a block picks one at random
    uint16_t min[SK_SYNTH_SLOTS];   // and the minimum that belongs to it
} sk_synth;

/* Finaliser of splitmix64. */
SK_SYNTH_FN uint64_t sk_synth_mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

SK_SYNTH_FN uint64_t sk_synth_word(uint64_t key, uint64_t at)
{
    return sk_synth_mix(key + (at + 1) * UINT64_C(0x9e3779b97f4a7c15));
}

typedef union sk_synth_bits {
    float f;
    uint32_t u;
} sk_synth_bits;

/* Nearest binary16, ties to even; too large: infinity. Not for NaN. */
SK_SYNTH_FN uint16_t sk_synth_half(float x)
{
    sk_synth_bits v = {x};
    const uint32_t sign = (v.u >> 16) & 0x8000u, a = v.u & 0x7fffffffu;
    uint32_t shift = 13, kept = a - 0x38000000u;
    if (a >= 0x47800000u) return (uint16_t)(sign | 0x7c00u);
    if (a < 0x33000000u) return (uint16_t)sign; // below half of the smallest
    if (a < 0x38800000u) {                      // subnormal: a count of 2^-24
        shift = 126 - (a >> 23);
        kept = (a & 0x7fffffu) | 0x800000u;
    }
    kept += (1u << (shift - 1)) - 1 + (kept >> shift & 1u);
    return (uint16_t)(sign | kept >> shift);
}

SK_SYNTH_FN uint16_t sk_synth_bf16(float x) // likewise
{
    sk_synth_bits v = {x};
    return (uint16_t)((v.u + 0x7fffu + ((v.u >> 16) & 1u)) >> 16);
}

SK_SYNTH_FN float sk_synth_scaled(const sk_synth *s, float code)
{
#ifdef __CUDA_ARCH__
    return __fadd_rn(s->centre, __fmul_rn(s->step, code));
#else
    return s->centre + s->step * code;
#endif
}

/* An element of a plain tensor out of half a word. Nearly normal: the sum of four bytes, less its
 * mean. */
SK_SYNTH_FN float sk_synth_value(const sk_synth *s, uint32_t r)
{
    const uint32_t pairs = (r & 0x00ff00ffu) + ((r >> 8) & 0x00ff00ffu);
    if (s->uniform) return sk_synth_scaled(s, (float)(r >> 8) * 0x1p-24f);
    return sk_synth_scaled(s, (float)((int32_t)((pairs & 0xffffu) + (pairs >> 16)) - 510));
}

/* Element i: the low half of word i / 2, then the high one. */
SK_SYNTH_FN float sk_synth_element(const sk_synth *s, uint64_t i)
{
    return sk_synth_value(s, (uint32_t)(sk_synth_word(s->key, i >> 1) >> 32 * (i & 1)));
}

SK_SYNTH_FN void sk_synth_put(uint8_t *p, uint32_t bytes, uint64_t x)
{
    for (uint32_t k = 0; k < bytes; k++) p[k] = (uint8_t)(x >> 8 * k);
}

/* Four bits of binary16 at a time, lowest first, into the tops of four words. */
SK_SYNTH_FN void sk_synth_split_scale(uint8_t *words, uint32_t scale)
{
    for (uint32_t k = 0; k < 4; k++) {
        const uint32_t top = (scale >> 4 * k & 15u) << 4;
        words[2 * k + 1] = (uint8_t)((words[2 * k + 1] & 15u) | top);
    }
}

/* Puts right what must not be arbitrary in a block of random bytes. `more` is its last word, whose
 * upper half no block of NVFP4, and whose top byte no other block, has used for codes. */
SK_SYNTH_FN void sk_synth_mend(const sk_synth *s, uint64_t more, uint8_t *b)
{
    const uint32_t slot = (uint32_t)(more >> 56) % SK_SYNTH_SLOTS;
    switch (s->form) {
    case SK_SYNTH_Q2_K:
        for (uint32_t i = 0; i < 16; i++) b[i] = (uint8_t)((b[i] & 15u) * 17u);
        break;
    case SK_SYNTH_Q45_K:
        for (uint32_t i = 0; i < 4; i++) {
            b[8 + i] = b[4 + i];
            b[12 + i] = (uint8_t)((b[12 + i] & 15u) * 17u);
        }
        break;
    case SK_SYNTH_IQ1_M:
        sk_synth_split_scale(b + 48, s->scale[slot]);
        return;
    case SK_SYNTH_MXFP4:
        b[0] = (uint8_t)s->scale[slot];
        return;
    case SK_SYNTH_NVFP4:
        for (uint32_t i = 0; i < 4; i++)
            b[i] = (uint8_t)s->scale[(more >> (32 + 4 * i)) % SK_SYNTH_SLOTS];
        return;
    default:
        break;
    }
    sk_synth_put(b + s->scale_at, 2, s->scale[slot]);
    if (s->min_at >= 0) sk_synth_put(b + s->min_at, 2, s->min[slot]);
}

/* Block number `block` of a tensor whose type has blocks. */
SK_SYNTH_FN void sk_synth_block(const sk_synth *s, uint64_t block, uint8_t *out)
{
    const uint64_t at = block * SK_SYNTH_WORDS;
    const uint32_t n = (uint32_t)s->block_bytes / 8;
    uint64_t w;
    for (uint32_t j = 0; j < n; j++) {
        w = sk_synth_word(s->key, at + j);
#ifdef __CUDA_ARCH__
        sk_synth_put(out + 8 * j, 8, w);
#else
        __builtin_memcpy(out + 8 * j, &w, sizeof w); // hosts are little-endian
#endif
    }
    w = sk_synth_word(s->key, at + n);
    sk_synth_put(out + 8 * n, (uint32_t)s->block_bytes % 8, w);
    sk_synth_mend(s, w, out);
}

/* Block, or element, number `i` as it is stored, into the block_bytes bytes at `out`. */
SK_SYNTH_FN void sk_synth_one(const sk_synth *s, uint64_t i, uint8_t *out)
{
    sk_synth_bits v;
    uint32_t bits;
    if (s->form > SK_SYNTH_BF16) {
        sk_synth_block(s, i, out);
        return;
    }
    v.f = sk_synth_element(s, i);
    bits = v.u;
    if (s->form == SK_SYNTH_F16) bits = sk_synth_half(v.f);
    if (s->form == SK_SYNTH_BF16) bits = sk_synth_bf16(v.f);
    sk_synth_put(out, (uint32_t)s->block_bytes, bits);
}

/* ---- on the host (synth.c) ------------------------------------------------------------------- */

/* How values are spread. */
typedef enum sk_synth_kind {
    SK_SYNTH_NORMAL, // mean a, standard deviation b
    SK_SYNTH_UNIFORM // from a to b; plain types only
} sk_synth_kind;

/* The recipe for the tensor `name` of type `type` (sk_dtype). Returns NULL, or what was expected
 * instead: a type that can be made, a kind, a mean or a spread. */
const char *sk_synth_init(sk_synth *out, uint64_t seed, const char *name, uint64_t name_bytes,
                          int32_t type, int32_t kind, double a, double b);

/* Blocks (plain types: elements) first .. first + n of the tensor into `out`. */
void sk_synth_fill(const sk_synth *s, uint64_t first, uint64_t n, uint8_t *out);

#endif
