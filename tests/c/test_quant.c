/* Types and decoding: groups agree with rows, any alignment serves, conversions are exact. */
#include "tests/c/sk_test.h"

#include "base/quant.h"

#include <math.h>
#include <string.h>

static const struct {
    sk_dtype type;
    int32_t elems; // of a group
} decodable[] = {
    {SK_F32, 32},     {SK_F16, 32},     {SK_BF16, 32},  {SK_F64, 32},    {SK_I8, 32},
    {SK_I16, 32},     {SK_I32, 32},     {SK_I64, 32},   {SK_Q4_0, 32},   {SK_Q4_1, 32},
    {SK_Q5_0, 32},    {SK_Q5_1, 32},    {SK_Q8_0, 32},  {SK_Q2_K, 16},   {SK_Q3_K, 16},
    {SK_Q4_K, 32},    {SK_Q5_K, 32},    {SK_Q6_K, 16},  {SK_Q8_K, 32},   {SK_IQ2_XXS, 32},
    {SK_IQ2_XS, 16},  {SK_IQ3_XXS, 32}, {SK_IQ1_S, 32}, {SK_IQ4_NL, 32}, {SK_IQ3_S, 32},
    {SK_IQ2_S, 16},   {SK_IQ4_XS, 32},  {SK_IQ1_M, 16}, {SK_TQ1_0, 32},  {SK_TQ2_0, 32},
    {SK_MXFP4, 32},   {SK_NVFP4, 16},   {SK_Q1_0, 32},  {SK_Q2_0, 32},   {SK_U8, 32},
    {SK_BOOL, 32},    {SK_U16, 32},     {SK_U32, 32},   {SK_U64, 32},    {SK_F8_E4M3, 32},
    {SK_F8_E5M2, 32}, {SK_F8_E8M0, 32}};

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static bool same(float a, float b) { return isnan(a) ? isnan(b) : bits_of(a) == bits_of(b); }

static void fill(uint8_t *p, size_t n, uint32_t x)
{
    for (size_t i = 0; i < n; i++) {
        x = 1103515245u * x + 12345u;
        p[i] = (uint8_t)(x >> 16);
    }
}

static void sizes(void)
{
    uint64_t n = 7;
    SK_EXPECT_STR("Q4_1", sk_dtype_name(3));
    SK_EXPECT_STR("?", sk_dtype_name(4));
    SK_EXPECT_STR("?", sk_dtype_name(-1));
    SK_EXPECT(!sk_dtype_find(43) && !sk_dtype_find(INT64_MAX) && sk_dtype_find(42));
    SK_EXPECT(sk_dtype_row_bytes(SK_Q6_K, 512, &n));
    SK_EXPECT_U64(420, n);
    SK_EXPECT(sk_dtype_row_bytes(SK_Q4_0, 0, &n));
    SK_EXPECT_U64(0, n);
    SK_EXPECT(!sk_dtype_row_bytes(SK_Q4_0, 33, &n));
    SK_EXPECT(!sk_dtype_row_bytes(5, 32, &n));
    SK_EXPECT(!sk_dtype_row_bytes(SK_F64, UINT64_C(1) << 61, &n));
    SK_EXPECT_U64(0, n); // untouched
}

static void what_can_be_decoded(void)
{
    size_t n = 0;
    for (int64_t id = -2; id < 1100; id++) {
        bool yes = sk_dtype_decodable(id);
        int32_t elems = 0;
        n += yes;
        SK_EXPECT(!yes || sk_dtype_find(id));
        SK_EXPECT(sk_dtype_is_weight(id) ==
                  (yes && id != SK_Q8_K && id != SK_F8_E8M0 && (id < SK_U8 || id > SK_U64)));
        if (!sk_dtype_find(id)) continue;
        for (size_t i = 0; i < SK_COUNT(decodable); i++)
            if (decodable[i].type == id) elems = decodable[i].elems;
        SK_EXPECT_INT(elems, sk_quant_group_elems((sk_dtype)id));
    }
    SK_EXPECT_INT((int64_t)SK_COUNT(decodable), (int64_t)n);
    SK_EXPECT(!sk_dtype_decodable(SK_Q8_1) && !sk_dtype_decodable(SK_F8_E4M3FNUZ));
    SK_EXPECT(sk_quant_has_min(SK_Q4_K) && sk_quant_has_min(SK_Q5_1) && sk_quant_has_min(SK_Q2_K));
    SK_EXPECT(!sk_quant_has_min(SK_Q6_K) && !sk_quant_has_min(SK_F32));
}

/* At most eight significant bits: an integer, or a number of eighths in IQ1. */
static bool is_code(sk_dtype type, float x)
{
    float unit = type == SK_IQ1_S || type == SK_IQ1_M ? 8 : 1;
    return fabsf(x) <= 128 && unit * x == (float)(int)(unit * x);
}

/* 512 elements of random bytes: the value of each is scale * code + min, whatever the alignment of
 * the row, and codes are small integers. */
static void check_type(sk_dtype type)
{
    static uint8_t room[512 * 8 + 8];
    float row[512];
    float moved[512];
    uint64_t n_bytes;
    int32_t each = sk_quant_group_elems(type);
    bool plain = sk_dtype_find(type)->block_elems == 1;
    SK_REQUIRE(sk_dtype_row_bytes(type, 512, &n_bytes));
    fill(room, n_bytes, 99);
    sk_quant_row(type, room, 512, row);
    for (size_t shift = 1; shift < 8; shift++) {
        memmove(room + shift, room + shift - 1, n_bytes);
        sk_quant_row(type, room + shift, 512, moved);
        for (int i = 0; i < 512; i++) SK_REQUIRE(same(row[i], moved[i]));
    }
    for (int32_t g = 0; g < 512 / each; g++) {
        sk_group group;
        sk_quant_group(type, room + 7, (uint64_t)g, each, &group);
        SK_EXPECT(sk_quant_has_min(type) || group.min == 0);
        SK_EXPECT(!plain || group.scale == 1);
        for (int32_t j = 0; j < each; j++) {
            float product = group.scale * group.code[j];
            float want = sk_quant_has_min(type) ? product + group.min : product;
            SK_REQUIRE(same(want, row[g * each + j]));
            SK_REQUIRE(plain || is_code(type, group.code[j]));
        }
    }
}

static void groups_and_rows_agree(void)
{
    for (size_t i = 0; i < SK_COUNT(decodable); i++) check_type(decodable[i].type);
}

static void products_are_exact(void) // so that the order of multiplication is free
{
    static uint8_t row[210 * 2];
    int n_checked = 0;
    for (size_t i = 0; i < SK_COUNT(decodable); i++) {
        sk_dtype type = decodable[i].type;
        if (sk_dtype_find(type)->block_elems == 1 || type == SK_Q8_K) continue;
        for (uint32_t seed = 0; seed < 64; seed++) {
            sk_group group;
            fill(row, sizeof row, seed);
            sk_quant_group(type, row, 0, sk_quant_group_elems(type), &group);
            if (!isfinite(group.scale)) continue;
            for (int32_t j = 0; j < sk_quant_group_elems(type); j++) {
                double exact = (double)group.scale * (double)group.code[j];
                if (fabs(exact) > 0x1.fffffep127) continue; // MXFP4 with the largest exponents
                SK_REQUIRE(exact == (double)(group.scale * group.code[j]));
                n_checked++;
            }
        }
    }
    SK_EXPECT(n_checked > 20000);
}

/* Groups are numbered through the blocks of a row: the same block again gives the same groups. */
static void groups_of_the_second_block(void)
{
    static uint8_t row[2 * 292];
    for (size_t i = 0; i < SK_COUNT(decodable); i++) {
        const sk_dtype_info *info = sk_dtype_find(decodable[i].type);
        size_t bytes = (size_t)info->block_bytes;
        uint64_t n = (uint64_t)(info->block_elems / decodable[i].elems);
        if (info->block_elems == 1) continue;
        fill(row, bytes, 5);
        memcpy(row + bytes, row, bytes);
        for (uint64_t g = 0; g < n; g++) {
            sk_group a;
            sk_group b;
            sk_quant_group((sk_dtype)info->id, row, g, decodable[i].elems, &a);
            sk_quant_group((sk_dtype)info->id, row, n + g, decodable[i].elems, &b);
            SK_REQUIRE(same(a.scale, b.scale) && same(a.min, b.min));
            for (int32_t j = 0; j < decodable[i].elems; j++) SK_REQUIRE(a.code[j] == b.code[j]);
        }
    }
}

static void short_last_group(void)
{
    const uint8_t row[35 * 2] = {[64] = 0x80, [65] = 0x3f, [68] = 0x80, [69] = 0xbf}; // BF16
    sk_group group;
    sk_quant_group(SK_BF16, row, 1, 3, &group);
    SK_EXPECT(group.code[0] == 1 && group.code[1] == 0 && group.code[2] == -1);
}

static void half_to_float(void)
{
    SK_EXPECT(sk_f16_to_f32(0x3c00) == 1 && sk_f16_to_f32(0xc000) == -2);
    SK_EXPECT(sk_f16_to_f32(0x7bff) == 65504 && sk_f16_to_f32(0x0001) == 0x1p-24f);
    SK_EXPECT(sk_f16_to_f32(0x03ff) == 0x3ffp-24f && sk_f16_to_f32(0x0400) == 0x1p-14f);
    SK_EXPECT_INT(INT64_C(0x80000000), bits_of(sk_f16_to_f32(0x8000)));
    SK_EXPECT(isinf(sk_f16_to_f32(0x7c00)) && sk_f16_to_f32(0xfc00) < 0);
    for (int h = 0x7c01; h < 0x8000; h++)
        SK_REQUIRE(bits_of(sk_f16_to_f32((uint16_t)h)) >= 0x7fc00000u); // NaN, quiet
    for (int h = 0; h < 0x7c00; h++) {                                  // ascending and exact
        float x = sk_f16_to_f32((uint16_t)h);
        int e = h >> 10;
        double want = e ? ldexp(1024 + (h & 1023), e - 25) : ldexp(h, -24);
        SK_REQUIRE((double)x == want);
        SK_REQUIRE(sk_f16_to_f32((uint16_t)(h | 0x8000)) == -x);
    }
}

static void float_to_bfloat(void)
{
    static const struct {
        uint32_t from;
        uint16_t to;
    } cases[] = {
        {0x00000000, 0x0000}, {0x80000000, 0x8000},
        {0x3f800000, 0x3f80}, {0x3f807fff, 0x3f80}, // below half
        {0x3f808000, 0x3f80},                       // half: to even
        {0x3f818000, 0x3f82},                       // half: to even, upwards
        {0x3f808001, 0x3f81},                       // above half
        {0x7f7fffff, 0x7f80},                       // largest number: rounds to infinity
        {0x7f800000, 0x7f80}, {0xff800000, 0xff80},
        {0x7f800001, 0x7fc0}, // signalling NaN with no bit above: stays NaN, quiet
        {0xffffffff, 0xffff}, {0x00000001, 0x0000},
        {0x00008001, 0x0001}, {0x007fffff, 0x0080},
    };
    for (size_t i = 0; i < SK_COUNT(cases); i++) {
        float x;
        memcpy(&x, &cases[i].from, sizeof x);
        SK_EXPECT_U64(cases[i].to, sk_f32_to_bf16(x));
    }
    for (uint32_t h = 0; h < 65536; h++) { // every bfloat comes back, NaN quiet
        float x = sk_bf16_to_f32((uint16_t)h);
        SK_REQUIRE(sk_f32_to_bf16(x) == (isnan(x) ? (h | 0x40) : h));
    }
}

/* Nearest by definition: no other bfloat is closer, and ties go to the even one. */
static void bfloat_is_nearest(void)
{
    uint32_t bits = 1;
    for (int i = 0; i < 200000; i++) {
        float x;
        double d;
        uint16_t h;
        bits = 1664525u * bits + 1013904223u;
        memcpy(&x, &bits, sizeof x);
        if (!isfinite(x) || fabsf(x) > 0x1.fep127f) continue;
        h = sk_f32_to_bf16(x);
        d = fabs((double)sk_bf16_to_f32(h) - (double)x);
        for (int step = -1; step <= 1; step += 2) {
            uint16_t next = (uint16_t)(h + step);
            double other = fabs((double)sk_bf16_to_f32(next) - (double)x);
            if ((next ^ h) & 0x8000) continue; // across zero
            SK_REQUIRE(d < other || (d == other && !(h & 1)));
        }
    }
}

const sk_test sk_tests_quant[] = {{"sizes", sizes},
                                  {"what_can_be_decoded", what_can_be_decoded},
                                  {"groups_and_rows_agree", groups_and_rows_agree},
                                  {"products_are_exact", products_are_exact},
                                  {"groups_of_the_second_block", groups_of_the_second_block},
                                  {"short_last_group", short_last_group},
                                  {"half_to_float", half_to_float},
                                  {"float_to_bfloat", float_to_bfloat},
                                  {"bfloat_is_nearest", bfloat_is_nearest},
                                  {0}};
