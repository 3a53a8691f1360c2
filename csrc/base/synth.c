/* See synth.h: what is computed once for a tensor. */
#include "base/synth.h"

#include "base/dtype.h"

#include <math.h>
#include <string.h>

/* Of a type with blocks whose bits are random: standard deviation of its values at scale 1, and
 * minimum over scale that centres them. Each is the root of a product of mean squares: of a scale
 * of a sub-block, which takes all its values alike, and of a code, over all codes or entries of the
 * grid (codebook_numbers.h). For example Q6_K: scales -128 .. 127, codes -32 .. 31; IQ2_S: scales
 * (n + 1/2) / 4 for n = 0 .. 15, grid of 8, 25 and 43. */
typedef struct layout {
    sk_dtype type;
    sk_synth_form form;
    int32_t scale_at, min_at;
    double spread, centre;
    bool flips; // codes have a mean of their own: half of the scales are negative
} layout;

static const layout layouts[] = {
    {SK_Q4_0, SK_SYNTH_HALF, 0, -1, 4.6368, 0, true},
    {SK_Q4_1, SK_SYNTH_HALF, 0, 2, 4.6098, -7.5, false},
    {SK_Q5_0, SK_SYNTH_HALF, 0, -1, 9.2466, 0, true},
    {SK_Q5_1, SK_SYNTH_HALF, 0, 2, 9.2331, -15.5, false},
    {SK_Q8_0, SK_SYNTH_HALF, 0, -1, 73.902, 0, false},
    {SK_IQ4_NL, SK_SYNTH_HALF, 0, -1, 67.4389, 0, true},
    {SK_Q1_0, SK_SYNTH_HALF, 0, -1, 1, 0, false},
    {SK_Q2_0, SK_SYNTH_HALF, 0, -1, 1.2247, 0, true},
    {SK_TQ1_0, SK_SYNTH_HALF, 52, -1, 0.8173, 0, false},
    {SK_TQ2_0, SK_SYNTH_HALF, 64, -1, 1.2247, 0, true},
    {SK_Q2_K, SK_SYNTH_Q2_K, 80, 82, 9.8425, 1.5, false},
    {SK_Q3_K, SK_SYNTH_HALF, 108, -1, 43.3388, 0, false},
    {SK_Q4_K, SK_SYNTH_Q45_K, 0, 2, 168.3356, 7.5, false},
    {SK_Q5_K, SK_SYNTH_Q45_K, 0, 2, 337.1659, 15.5, false},
    {SK_Q6_K, SK_SYNTH_HALF, 208, -1, 1365.6875, 0, false},
    {SK_IQ1_S, SK_SYNTH_HALF, 0, -1, 7.1995, 0, false},
    {SK_IQ1_M, SK_SYNTH_IQ1_M, 0, -1, 7.1995, 0, false},
    {SK_IQ2_XXS, SK_SYNTH_HALF, 0, -1, 53.3621, 0, false},
    {SK_IQ2_XS, SK_SYNTH_HALF, 0, -1, 55.9001, 0, false},
    {SK_IQ2_S, SK_SYNTH_HALF, 0, -1, 56.3919, 0, false},
    {SK_IQ3_XXS, SK_SYNTH_HALF, 0, -1, 142.4143, 0, false},
    {SK_IQ3_S, SK_SYNTH_HALF, 0, -1, 140.2359, 0, false},
    {SK_IQ4_XS, SK_SYNTH_HALF, 0, -1, 1246.2512, 0, false},
    {SK_MXFP4, SK_SYNTH_MXFP4, 0, -1, 5.8523, 0, false},
    {SK_NVFP4, SK_SYNTH_NVFP4, 0, -1, 5.8523, 0, false},
};

static const double byte_sum_spread = 147.80; // of the sum of four random bytes

static uint64_t name_hash(const char *name, uint64_t n) // FNV-1a
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (uint64_t i = 0; i < n; i++) h = (h ^ (uint8_t)name[i]) * UINT64_C(0x100000001b3);
    return h;
}

/* ---- scales ---------------------------------------------------------------------------------- */

/* Four sizes around `scale` whose root mean square it is, so that blocks differ. */
static bool half_slots(sk_synth *s, const layout *l, double scale)
{
    static const double factor[4] = {0.68313, 0.87831, 1.07349, 1.26866};
    const double most = 65504.0 / (1.3 * fmax(1, fabs(l->centre)));
    if (!(scale * factor[0] >= 0x1p-22) || !(scale <= most)) return false; // too coarse, too large
    for (int i = 0; i < SK_SYNTH_SLOTS; i++) {
        const double d = scale * factor[i % 4] * (l->flips && i / 4 % 2 ? -1 : 1);
        s->scale[i] = sk_synth_half((float)d);
        s->min[i] = sk_synth_half((float)(d * l->centre));
    }
    return true;
}

/* Codes of two neighbouring sizes in the proportion that makes the mean square right. */
static void two_slots(sk_synth *s, uint32_t low, double low_value, double high_value, double scale)
{
    const double part =
        (scale * scale - low_value * low_value) / (high_value * high_value - low_value * low_value);
    const int n_high = (int)lrint(SK_SYNTH_SLOTS * part);
    for (int i = 0; i < SK_SYNTH_SLOTS; i++) s->scale[i] = (uint16_t)(low + (i < n_high));
}

/* 2^(e - 128) */
static bool exponent_slots(sk_synth *s, double scale)
{
    int e;
    (void)frexp(scale, &e); // scale is in [2^(e-1), 2^e)
    e += 127;
    if (e < 2 || e > 253) return false;
    two_slots(s, (uint32_t)e, ldexp(1, e - 128), ldexp(1, e - 127), scale);
    return true;
}

/* Half of an unsigned float of four exponent and three fraction bits. */
static double small_float(uint32_t x)
{
    return x < 8 ? ldexp(x, -10) : ldexp(8 + (x & 7), (int)(x >> 3) - 11);
}

static bool small_float_slots(sk_synth *s, double scale)
{
    uint32_t low = 1;
    if (!(scale >= small_float(1)) || scale >= small_float(126)) return false;
    while (small_float(low + 1) <= scale) low++;
    two_slots(s, low, small_float(low), small_float(low + 1), scale);
    return true;
}

static const char *init_blocks(sk_synth *s, const layout *l, int32_t kind, double mean,
                               double sigma)
{
    const double scale = sigma / l->spread;
    bool fits;
    if (kind != SK_SYNTH_NORMAL || mean != 0)
        return "a normal distribution of mean 0 for a type with blocks";
    if (!(sigma > 0)) return "a standard deviation above 0 for a type with blocks";
    s->form = (int32_t)l->form;
    s->scale_at = l->scale_at;
    s->min_at = l->min_at;
    if (l->form == SK_SYNTH_MXFP4)
        fits = exponent_slots(s, scale);
    else if (l->form == SK_SYNTH_NVFP4)
        fits = small_float_slots(s, scale);
    else
        fits = half_slots(s, l, scale);
    return fits ? NULL : "a standard deviation that the scales of the type can express";
}

/* ---- plain types ----------------------------------------------------------------------------- */

static bool find_plain(int32_t type, int32_t *form)
{
    if (type == SK_F32) *form = SK_SYNTH_F32;
    if (type == SK_F16) *form = SK_SYNTH_F16;
    if (type == SK_BF16) *form = SK_SYNTH_BF16;
    return type == SK_F32 || type == SK_F16 || type == SK_BF16;
}

static const char *init_plain(sk_synth *s, int32_t kind, double a, double b)
{
    const double most = s->form == SK_SYNTH_F16 ? 1e3 : 1e30; // times 4 is still a number
    if (!(fabs(a) <= most) || !(fabs(b) <= most)) return "numbers that the type can hold";
    s->uniform = kind == SK_SYNTH_UNIFORM;
    if (s->uniform && !(a <= b)) return "a range from its lower end to its upper one";
    if (!s->uniform && !(b >= 0)) return "a standard deviation of at least 0";
    s->centre = (float)a;
    s->step = (float)(s->uniform ? b - a : b / byte_sum_spread);
    return NULL;
}

/* ---- the interface --------------------------------------------------------------------------- */

const char *sk_synth_init(sk_synth *out, uint64_t seed, const char *name, uint64_t name_bytes,
                          int32_t type, int32_t kind, double a, double b)
{
    const sk_dtype_info *info = sk_dtype_find(type);
    sk_synth s = {.scale_at = -1, .min_at = -1};
    if (kind != SK_SYNTH_NORMAL && kind != SK_SYNTH_UNIFORM)
        return "a normal or a uniform distribution";
    if (!isfinite(a) || !isfinite(b)) return "finite numbers";
    s.key = sk_synth_mix(sk_synth_mix(seed) ^ name_hash(name, name_bytes));
    if (info) s.block_bytes = info->block_bytes;
    *out = s;
    if (find_plain(type, &out->form)) return init_plain(out, kind, a, b);
    for (size_t i = 0; i < SK_COUNT(layouts); i++)
        if ((int32_t)layouts[i].type == type) return init_blocks(out, &layouts[i], kind, a, b);
    return "a type of weights";
}

/* One element or two, as they are stored. */
static void put_plain(int32_t form, const float *x, size_t n, uint8_t *out)
{
    uint16_t half[2];
    if (form == SK_SYNTH_F32) {
        memcpy(out, x, n * sizeof *x);
        return;
    }
    for (size_t i = 0; i < n; i++)
        half[i] = form == SK_SYNTH_F16 ? sk_synth_half(x[i]) : sk_synth_bf16(x[i]);
    memcpy(out, half, n * sizeof *half);
}

void sk_synth_fill(const sk_synth *s, uint64_t first, uint64_t n, uint8_t *out)
{
    float pair[2];
    uint64_t i = 0;
    if (s->form > SK_SYNTH_BF16) {
        const uint64_t bytes = (uint64_t)s->block_bytes;
        for (; i < n; i++) sk_synth_block(s, first + i, out + i * bytes);
        return;
    }
    if (n && first % 2) { // the second of a word
        pair[0] = sk_synth_element(s, first);
        put_plain(s->form, pair, 1, out);
        i = 1;
    }
    for (; i + 2 <= n; i += 2) {
        const uint64_t w = sk_synth_word(s->key, (first + i) >> 1);
        pair[0] = sk_synth_value(s, (uint32_t)w);
        pair[1] = sk_synth_value(s, (uint32_t)(w >> 32));
        put_plain(s->form, pair, 2, out + i * (uint64_t)s->block_bytes);
    }
    if (i < n) {
        pair[0] = sk_synth_element(s, first + i);
        put_plain(s->form, pair, 1, out + i * (uint64_t)s->block_bytes);
    }
}
