/* The emulated kernels of products of small shapes and of hyper-connections, and the norms and
 * elementwise ops around them: a part of hybrid_emulated.cpp. */
#include "tests/c/emulated_cases.h"

#include "kernels/linear/uneven.cuh"

namespace
{

using emulated::Argument;

/* ---- hyper-connections -------------------------------------------------------------------------
 */

std::vector<float> values_of(int32_t type, const std::vector<uint8_t> &raw, int64_t n)
{
    std::vector<float> v(static_cast<size_t>(n));
    sk_quant_row(static_cast<sk_dtype>(type), raw.data(), static_cast<uint64_t>(n), v.data());
    return v;
}

double largest(const std::vector<float> &v)
{
    double most = 1e-9;
    for (const float x : v) most = fmax(most, fabs(x));
    return most;
}

void weight(Op &o, const char *field, int32_t type, int64_t n, int64_t k, double *most = nullptr)
{
    const std::vector<uint8_t> raw = some_blocks(type, n * k);
    o.raw(field, kNothing, type, {n, k}, raw.data()).packed = true;
    if (most) *most = largest(values_of(type, raw, n * k));
}

void check_down(int32_t type, int32_t inject, int64_t streams, int64_t n, int64_t low, int64_t rows,
                bool fuses = false)
{
    const int64_t wide = streams * n;
    double most = 1;
    Op o("hyper_down");
    o.name += " " + std::string(sk_dtype_name(type)) + sizes({streams, n, low, rows});
    weight(o, "w[0]", type, low, wide, &most);
    if (inject != -1) weight(o, "w[1]", inject, streams, wide);
    o.put("s", kRows, SK_F32, {rows, streams, n}, 2.0);
    o.put("gain", kNothing, SK_F32, {wide},
          floats(wide, 0.5, 4 / (most * sqrt(static_cast<double>(wide)))));
    count(o, rows);
    o.out("low", kRows, SK_BF16, {rows, low});
    o.out("factor", kRows, SK_F32, {rows, streams});
    if (inject != -1) o.out("inject", kRows, SK_F32, {rows, streams});
    o.set("eps", 1e-6);
    o.of("s").gap = fuses ? 4 : 1; // rows apart, and aligned
    check(o, kNear);
    Op before("hyper_inject");
    before.put("x", kRows, SK_F32, {rows, n}).gap = n % 4 ? 1 : 4;
    before.put("inject", kRows, SK_F32, {rows, streams});
    before.of("s") = o.of("s");
    before.of("count") = o.of("count");
    check_after(before, o, fuses ? 3 : 0);
}

void check_mix(int32_t type, int64_t streams, int64_t n, int64_t low, int64_t rows,
               bool fuses = false)
{
    double most = 1;
    Op o("hyper_mix");
    o.name += " " + std::string(sk_dtype_name(type)) + sizes({streams, n, low, rows});
    weight(o, "w", type, streams * n, low, &most);
    o.put("low", kRows, SK_BF16, {rows, low}, 1 / most).gap = 8; // as products want them
    o.put("s", kRows, SK_F32, {rows, streams, n}, 2.0);
    o.put("factor", kRows, SK_F32, {rows, streams}, floats(rows * streams, 0.5, 1));
    o.put("gain", kNothing, SK_F32, {streams * n}, floats(streams * n, 0.25, 1));
    count(o, rows);
    o.out("out", kRows, SK_BF16, {rows, n});
    Bounds bounds;
    bounds.fuses = fuses;
    o.of("s").gap = fuses ? 4 : 1;
    check(o, bounds);
}

/* Two products of one input, the first with a bias; and the first onto what is there. */
void check_linear(int32_t type, int32_t other, int64_t n, int64_t k, int64_t rows)
{
    const double scale = 1 / sqrt(static_cast<double>(k));
    Op o("linear"), add("linear_add");
    for (Op *p : {&o, &add}) {
        p->name += " " + std::string(sk_dtype_name(type)) + sizes({n, k, rows});
        p->put("x", kRows, SK_BF16, {rows, k}, scale).gap = k % 32 ? 1 : 8;
        count(*p, rows);
    }
    weight(o, "w[0]", type, n, k);
    weight(o, "w[1]", other, 3, k);
    o.put("bias[0]", kNothing, SK_F32, {n});
    o.out("y[0]", kRows, SK_F32, {rows, n});
    o.out("y[1]", kRows, SK_F32, {rows, 3});
    check(o, kNear);
    add.of("w") = o.of("w[0]");
    add.put("y", kRows, SK_F32, {rows, n});
    check(add, kNear);
}

/* Few outputs of a long K, shared out among few multiprocessors and among many; of two segments
 * (the second ends in a tile of its own) and added to what is there. */
void check_spread(int32_t type, int64_t n, int64_t other, int64_t k, int64_t rows)
{
    const double scale = 1 / sqrt(static_cast<double>(k));
    Op o("linear"), add("linear_add");
    for (Op *p : {&o, &add}) {
        p->name += " spread " + std::string(sk_dtype_name(type)) + sizes({n, other, k, rows});
        p->put("x", kRows, SK_BF16, {rows, k}, scale).gap = 8;
        count(*p, rows);
    }
    weight(o, "w[0]", type, n, k);
    o.put("bias[0]", kNothing, SK_F32, {n});
    o.out("y[0]", kRows, SK_F32, {rows, n});
    if (other) {
        weight(o, "w[1]", type, other, k);
        // Where a row has one sum that cancels, its error is out of proportion to it.
        o.put("bias[1]", kNothing, SK_F32, {other}, floats(other, 0.25, 2));
        o.out("y[1]", kRows, SK_F32, {rows, other});
    }
    add.of("w") = o.of("w[0]");
    add.put("y", kRows, SK_F32, {rows, n});
    for (const Op *p : {&o, &add}) {
        const auto few = computed(*p, emulated::kPlainly, 0);
        check(*p, kNear);
        for (const int32_t n_sm : {24, 132}) {
            emulated::How how = {"on more multiprocessors", emulated::kShuffled, true, false, 0};
            how.n_sm = n_sm;
            CHECK(computed(*p, how, 0) == few, "%s: other bits on %d multiprocessors",
                  p->name.c_str(), n_sm);
        }
        const emulated::How wide = {"with room", emulated::kAscending, true, false, 41};
        CHECK(computed(*p, wide, 0) == few, "%s: other bits by the wide kernel", p->name.c_str());
        for (const int32_t live : {0, 1}) {
            Op part = *p;
            part.ints("count", kNothing, {1}, {live});
            const size_t at = static_cast<size_t>(p->field(p == &o ? "y[0]" : "y"));
            const auto is = computed(part, emulated::kPlainly, 0)[at];
            const size_t row = static_cast<size_t>(n) * 4, done = static_cast<size_t>(live) * row;
            CHECK(memcmp(is.data(), few[at].data(), done) == 0 &&
                      memcmp(is.data() + done, p->arguments[at].bytes.data() + done,
                             is.size() - done) == 0,
                  "%s: of %d rows", p->name.c_str(), live);
        }
    }
}

/* The kernel for rows of no whole blocks has the arithmetic of the others: where both could be. */
void check_uneven(int32_t type, int64_t n, int64_t k, int64_t rows)
{
    Op o("linear");
    weight(o, "w[0]", type, n, k);
    o.put("x", kRows, SK_BF16, {rows, k});
    count(o, rows);
    o.out("y[0]", kRows, SK_F32, {rows, n});
    const auto want = computed(o, emulated::kPlainly, 0)[static_cast<size_t>(o.field("y[0]"))];
    const Argument &w = o.of("w[0]"), &x = o.of("x");
    Memory packed(static_cast<size_t>(sk_k_packed_bytes(type, n, k))), y(want.size());
    std::vector<uint8_t> raw = w.bytes;
    sk_k_pack(type, raw.data(), packed.p, 0, n, n, k, nullptr);
    const int32_t live = static_cast<int32_t>(rows);
    sk::UnevenArgs a = {};
    a.seg.n = 1;
    a.seg.n_tiles = static_cast<int32_t>((n + 15) / 16);
    a.seg.of[0].w = packed.p;
    a.seg.of[0].y = reinterpret_cast<float *>(y.p);
    a.seg.of[0].y_step = n;
    a.seg.of[0].n = static_cast<int32_t>(n);
    a.x = reinterpret_cast<const uint16_t *>(x.bytes.data());
    a.x_step = k;
    a.count = &live;
    a.rows = live;
    a.k = static_cast<int32_t>(k);
    sk_launch l = {};
    l.n_sm = 3;
    emulated::setting.name = "uneven";
    CHECK(sk::launch_uneven(type, a, &l) == 0, "uneven");
    CHECK(memcmp(y.p, want.data(), want.size()) == 0, "%s %d x %d: other bits than linear",
          sk_dtype_name(type), static_cast<int>(n), static_cast<int>(k));
}

/* The best of the outputs alone, and rows of the same matrix. */
void check_best(int32_t type, int64_t n, int64_t k, int64_t rows)
{
    Op o("linear_argmax"), gather("gather_rows");
    weight(o, "w", type, n, k);
    o.put("x", kRows, SK_BF16, {rows, k}).gap = 8;
    count(o, rows);
    o.out("id", kRows, SK_I32, {rows});
    check(o, kExact);
    gather.of("table") = o.of("w");
    gather.ints("ids", kRows, {rows}, some(rows, static_cast<int32_t>(n)));
    count(gather, rows);
    gather.out("out", kRows, SK_F32, {rows, k});
    gather.set("scale", 1.5);
    check(gather, kExact);
}

} // namespace

void check_products()
{
    check_best(SK_F32, 90, 64, 5);
    check_best(SK_BF16, 333, 96, 9);
    check_best(SK_Q8_0, 77, 320, 41);
    check_best(SK_Q4_K, 40, 256, 3);
    for (const int32_t type : {SK_F32, SK_F16, SK_BF16})
        for (const int64_t k : {32, 96, 1536, 2080}) check_uneven(type, 33, k, 9);

    for (const int32_t type : {SK_F32, SK_F16, SK_BF16})
        for (const int64_t k : {1, 16, 31, 33, 48, 80, 1000, 1553})
            check_linear(type, SK_BF16, k == 48 ? 90 : 17, k, k == 16 ? 42 : 5);
    check_spread(SK_F32, 512, 1, 2560, 5);
    check_spread(SK_F32, 48, 48, 2560, 20);
    check_spread(SK_F32, 5, 0, 2560, 40);
    check_spread(SK_F32, 19, 3, 1568, 9);
    check_spread(SK_F32, 16, 0, 6144, 1);
    check_spread(SK_F32, 17, 0, 10240, 8); // slices of 512: not shared out
    check_spread(SK_F16, 33, 1, 1568, 8);
    check_spread(SK_BF16, 40, 7, 2592, 20);
    check_spread(SK_BF16, 9, 0, 2048, 38);
    check_linear(SK_BF16, SK_F32, 33, 96, 5);
    check_linear(SK_F32, SK_BF16, 17, 64, 18);
    check_linear(SK_Q8_0, SK_Q8_0, 40, 320, 42);
    check_linear(SK_Q4_K, SK_Q8_0, 37, 4096, 5); // slices left apart, as many as there may be
    check_linear(SK_Q8_0, SK_F16, 16, 6144, 20);
    check_linear(SK_F16, SK_Q4_K, 130, 10240, 35);
    check_linear(SK_Q4_K, SK_Q8_0, 19, 256, 9);
}

void check_hyper()
{
    // Streams of whole slices, that cross them, and the product of the first kernel's own.
    check_down(SK_BF16, SK_F32, 4, 64, 16, 5);
    check_down(SK_BF16, SK_BF16, 4, 64, 16, 3);
    check_down(SK_BF16, SK_F32, 4, 512, 19, 3, true);
    check_down(SK_Q8_0, SK_F32, 4, 512, 33, 9, true);
    check_down(SK_F16, SK_F32, 4, 2560, 130, 2, true);
    check_down(SK_F16, -1, 8, 256, 16, 30, true);
    check_down(SK_BF16, SK_F32, 6, 512, 70, 6, true); // more own outputs than wait in registers
    check_down(SK_Q8_0, SK_F32, 2, 4608, 9, 2, true); // more columns of a stream than threads have
    check_down(SK_F16, SK_F32, 1, 2048, 64, 34, true);
    check_down(SK_F16, SK_F16, 4, 512, 19, 2);
    check_down(SK_Q8_0, SK_F32, 4, 256, 70, 42); // more rows than one launch of parts takes
    check_down(SK_BF16, -1, 4, 512, 80, 20);     // by teams of warps
    check_down(SK_F32, -1, 2, 48, 5, 4);
    check_down(SK_Q4_K, SK_Q4_K, 2, 256, 7, 2);
    check_down(SK_BF16, SK_F32, 12, 32, 17, 2);
    check_down(SK_BF16, SK_F32, 2, 1040, 9, 2); // by several warps
    check_down(SK_BF16, SK_F32, 3, 7, 5, 3);    // of no whole blocks
    check_down(SK_F32, SK_BF16, 2, 8, 4, 9);
    check_mix(SK_BF16, 4, 64, 32, 5, true);
    check_mix(SK_F16, 4, 48, 320, 3, true);
    check_mix(SK_Q8_0, 3, 16, 96, 34, true);
    check_mix(SK_F16, 6, 32, 32, 19, true);
    check_mix(SK_BF16, 2, 32, 2048, 9, true);
    check_mix(SK_F32, 2, 5, 64, 4);
    check_mix(SK_Q8_0, 4, 300, 64, 3);
    check_mix(SK_Q4_K, 16, 33, 256, 2);
    check_mix(SK_BF16, 1, 8, 64, 42);
    check_mix(SK_BF16, 4, 64, 16, 5);
    check_mix(SK_F32, 2, 9, 7, 41);
}

namespace
{

/* ---- around them -------------------------------------------------------------------------------
 */

void check_norms(int64_t n)
{
    for (const int32_t type : kActs) {
        Op o("rms_norm");
        o.put("x", kRows, SK_F32, {5, n});
        o.put("gain", kNothing, SK_F32, {n}, floats(n, 0.5, 1));
        count(o, 5);
        o.out("out", kRows, type, {5, n});
        o.set("eps", 1e-6);
        check(o, kNear);
    }
    Op o("norm_add");
    o.put("x", kRows, SK_F32, {5, n});
    o.put("gain", kNothing, SK_F32, {n}, floats(n, 0.5, 1));
    count(o, 5);
    o.put("y", kRows, SK_F32, {5, n});
    o.set("eps", 1e-6);
    check(o, kNear);
}

void check_elements(int64_t n)
{
    Op add("add"), copy("copy_rows");
    add.put("x", kRows, SK_F32, {5, n});
    count(add, 5);
    add.put("y", kRows, SK_F32, {5, n});
    check(add, kExact);
    copy.put("x", kRows, SK_F32, {5, n});
    count(copy, 5);
    copy.out("out", kRows, SK_F32, {5, n});
    check(copy, kExact);
    for (const char *name : {"silu_mul", "gelu_mul"})
        for (const int32_t type : kActs) {
            Op o(name);
            o.put("gate", kRows, SK_F32, {5, n}, 4.0);
            o.put("up", kRows, SK_F32, {5, n});
            count(o, 5);
            o.out("out", kRows, type, {5, n});
            check(o, kNear);
        }
}

void check_rope(int32_t type, int64_t heads, int64_t n, int64_t pairs, int neox)
{
    const Pass p(3, {{2, 3, 5}, {0, 1, 0}, {1, 2, 3000}});
    Op o("rope");
    o.put("x", kRows, SK_F32, {p.n(), heads, n});
    o.put("freq", kNothing, SK_F32, {pairs}, floats(pairs, 0.5, 0.6));
    p.give(o);
    o.out("out", kRows, type, {p.n(), heads, n});
    o.set("neox", neox);
    check(o, kNear);
}

void check_append(int32_t type, int64_t heads, int64_t n)
{
    const Pass p(3, {{2, 3, 5}, {0, 1, 0}, {1, 2, 3}});
    Op o("kv_append");
    o.put("k", kRows, type, {p.n(), heads, n}).gap = 4;
    o.put("v", kRows, SK_F32, {p.n(), heads, n}).gap = 4;
    p.give(o);
    o.put("k_cache", kSlots, SK_BF16, {3, 9, heads, n}).gap = 8;
    o.put("v_cache", kSlots, SK_BF16, {3, 9, heads, n}).gap = 8;
    check(o, kExact);
}

/* Many that are equal, some that are none. */
void check_argmax(int64_t n)
{
    std::vector<float> x = floats(5 * n, 3);
    for (float &v : x) v = next_random() % 9 ? roundf(v) : NAN;
    std::fill(x.begin(), x.begin() + n, NAN);
    Op o("argmax");
    o.put("x", kRows, SK_F32, {5, n}, x);
    count(o, 5);
    o.out("id", kRows, SK_I32, {5});
    check(o, kExact);
}

} // namespace

void check_around()
{
    for (int neox = 0; neox < 2; neox++) {
        check_rope(SK_BF16, 3, 32, 8, neox);
        check_rope(SK_F32, 2, 7, 3, neox);
        check_rope(SK_BF16, 1, 256, 128, neox);
    }
    check_append(SK_BF16, 2, 32);
    check_append(SK_F32, 1, 80);
    for (const int64_t n : {1, 33, 1000, 20001}) check_argmax(n);
    for (const int64_t n : {1, 45, 512, 1030}) {
        check_norms(n);
        check_elements(n);
    }
}

int failed_products() { return failures; }
