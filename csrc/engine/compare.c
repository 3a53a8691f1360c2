/* See compare.h. */
#include "engine/compare.h"

#include "base/quant.h"

#include <math.h>
#include <string.h>

static const struct {
    const char *name;
    double bound;
} rules[SK_RULE_COUNT] = {
#define X(name, text, bound) [SK_RULE_##name] = {text, bound},
    SK_RULES(X)
#undef X
};

const char *sk_rule_name(sk_rule rule) { return rules[rule].name; }

double sk_rule_bound(sk_rule rule) { return rules[rule].bound; }

sk_rule sk_rule_find(const char *name)
{
    int rule = 0;
    while (rule < SK_RULE_COUNT && strcmp(rules[rule].name, name) != 0) rule++;
    return (sk_rule)rule;
}

void sk_gap_init(sk_gap *g) { *g = (sk_gap){.row = -1}; }

bool sk_gap_knows(int32_t dtype)
{
    return dtype == SK_F32 || dtype == SK_BF16 || dtype == SK_I32 || dtype == SK_I64 ||
           dtype == SK_U8;
}

static double element(int32_t dtype, const uint8_t *row, int64_t i)
{
    switch (dtype) {
    case SK_F32:
        return (double)((const float *)(const void *)row)[i];
    case SK_BF16:
        return (double)sk_bf16_to_f32(((const uint16_t *)(const void *)row)[i]);
    case SK_I32:
        return (double)((const int32_t *)(const void *)row)[i];
    case SK_I64:
        return (double)((const int64_t *)(const void *)row)[i];
    default:
        return (double)row[i];
    }
}

/* A BF16 value's place in the order of all values: neighbours are 1 apart. */
static int32_t place_of(const uint8_t *row, int64_t i)
{
    const int32_t bits = ((const uint16_t *)(const void *)row)[i];
    return bits & 0x8000 ? -(bits & 0x7fff) : bits;
}

static void note(sk_gap *g, int64_t row, int64_t col, double got, double want)
{
    g->row = row;
    g->col = col;
    g->got = got;
    g->want = want;
}

static void add_bytes(sk_gap *g, int32_t dtype, const uint8_t *got, const uint8_t *want, int64_t n,
                      int64_t row)
{
    const size_t bytes = (size_t)sk_dtype_find(dtype)->block_bytes;
    g->n += n;
    for (int64_t i = 0; i < n; i++) {
        const size_t at = (size_t)i * bytes;
        if (memcmp(got + at, want + at, bytes) == 0) continue;
        if (g->row < 0) note(g, row, i, element(dtype, got, i), element(dtype, want, i));
        g->mismatches++;
    }
}

static void add_ulps(sk_gap *g, const uint8_t *got, const uint8_t *want, int64_t i)
{
    const int32_t apart = place_of(got, i) - place_of(want, i);
    const int32_t ulps = apart < 0 ? -apart : apart;
    if (!ulps) return;
    g->off++;
    if (ulps > g->ulps) g->ulps = ulps;
}

static double largest(int32_t dtype, const uint8_t *row, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++) most = fmax(most, fabs(element(dtype, row, i)));
    return most;
}

static void add_floats(sk_gap *g, int32_t dtype, const uint8_t *got, const uint8_t *want, int64_t n,
                       int64_t row)
{
    const double most = largest(dtype, want, n), scale = most > 0 ? most : 1;
    double error2 = 0, norm2 = 0, norm;
    for (int64_t i = 0; i < n; i++) {
        const double a = element(dtype, got, i), b = element(dtype, want, i);
        const double rel = fabs(a - b) / scale;
        if (!isfinite(a) || !isfinite(b)) {
            if (!g->not_finite++) note(g, row, i, a, b);
            continue;
        }
        error2 += (a - b) * (a - b);
        norm2 += b * b;
        if (dtype == SK_BF16 && rel > rules[SK_RULE_ELEMENTS].bound) add_ulps(g, got, want, i);
        if (rel <= g->max_rel) continue;
        g->max_rel = rel;
        if (!g->not_finite) note(g, row, i, a, b);
    }
    norm = fmax(sqrt(norm2), g->beside);
    g->rel_l2 = fmax(g->rel_l2, sqrt(error2) / (norm > 0 ? norm : 1));
}

void sk_gap_add(sk_gap *g, int32_t dtype, const uint8_t *got, const uint8_t *want, int64_t n,
                int64_t row)
{
    add_bytes(g, dtype, got, want, n, row);
    if (dtype == SK_F32 || dtype == SK_BF16) add_floats(g, dtype, got, want, n, row);
}

double sk_gap_value(const sk_gap *g, sk_rule rule)
{
    switch (rule) {
    case SK_RULE_LINEAR:
        return g->rel_l2;
    case SK_RULE_ELEMENTS:
        return g->max_rel;
    case SK_RULE_BF16:
        return g->n ? (double)g->off / (double)g->n : 0;
    case SK_RULE_CHOICE:
        return g->score;
    default:
        return (double)(g->mismatches + g->stray);
    }
}

bool sk_gap_ok(const sk_gap *g, sk_rule rule)
{
    if (g->not_finite || g->stray) return false;
    if (rule != SK_RULE_BF16) return sk_gap_value(g, rule) <= rules[rule].bound;
    // A small output may have one.
    return g->ulps <= SK_RULE_ULPS &&
           (g->off <= 1 || (double)g->off <= rules[rule].bound * (double)g->n);
}
