/* What the tests of emulated ops make their cases of: passes, counts, contents. */
#pragma once

#include <math.h>

#include <string>
#include <vector>

#include "tests/c/emulated_ops.h"
#include "tests/c/emulated_tools.h"

/* Of the other files of the program, each the checks of its ops. */
void check_products();
void check_hyper();
void check_around();
void check_rounds();
int failed_products();
int failed_rounds();

namespace
{

using emulated::Along;
using emulated::Bounds;
using emulated::Op;
using Dim = std::vector<int64_t>;

constexpr Along kNothing = Along::kNothing, kRows = Along::kRows, kSlots = Along::kSlots;
constexpr int32_t kActs[] = {SK_BF16, SK_F32};
const Bounds kExact = {true};
const Bounds kNear = {};

/* Rows of a pass: of each slot some neighbours, at consecutive positions. */
struct Pass {
    std::vector<int32_t> slots, pos, table;
    int32_t n_slots;

    /* {slot, rows, first position} */
    Pass(int32_t n, const std::vector<std::vector<int32_t>> &runs) : n_slots(n)
    {
        for (const auto &run : runs)
            for (int32_t i = 0; i < run[1]; i++) {
                slots.push_back(run[0]);
                pos.push_back(run[2] + i);
                table.insert(table.end(), {run[0], run[2] + i, i});
            }
    }
    int64_t n() const { return static_cast<int64_t>(slots.size()); }
    void give(Op &o) const
    {
        o.ints("rows", kRows, {n(), 3}, table);
        o.ints("count", kNothing, {1}, {static_cast<int32_t>(n())});
    }
};

inline void count(Op &o, int64_t n) { o.ints("count", kNothing, {1}, {static_cast<int32_t>(n)}); }

inline std::string sizes(const Dim &d)
{
    std::string s;
    for (const int64_t n : d) s += " " + std::to_string(n);
    return s;
}

inline std::vector<int32_t> some(int64_t n, int32_t below)
{
    std::vector<int32_t> v(static_cast<size_t>(n));
    for (int32_t &x : v) x = static_cast<int32_t>(next_random() % static_cast<uint32_t>(below));
    return v;
}

inline std::vector<float> floats(int64_t n, double scale, double middle = 0)
{
    std::vector<float> v(static_cast<size_t>(n));
    for (float &x : v) x = static_cast<float>(middle + scale * random_float());
    return v;
}

/* Bits of any type, with scales that are moderate. */
inline std::vector<uint8_t> some_blocks(int32_t type, int64_t n)
{
    const sk_dtype_info *info = sk_dtype_find(type);
    const int64_t blocks = n / info->block_elems, bytes = info->block_bytes;
    std::vector<uint8_t> raw(static_cast<size_t>(blocks * bytes));
    for (uint8_t &b : raw) b = static_cast<uint8_t>(next_random());
    for (int64_t i = 0; i < blocks; i++) {
        uint8_t *b = at(raw, i * bytes);
        const float plain = random_float();
        const uint16_t half = sk_f32_to_bf16(plain), scale = 0x2000; // 2^-7 in F16
        if (type == SK_F32)
            memcpy(b, &plain, 4);
        else if (type == SK_BF16)
            memcpy(b, &half, 2);
        else if (type == SK_F16)
            b[1] = static_cast<uint8_t>((b[1] & 0x83) | 0x38); // 0.5 .. 1
        else
            memcpy(b, &scale, 2); // of Q8_0, Q4_0, IQ4_NL, Q4_1, Q4_K
        if (type == SK_Q4_1 || type == SK_Q4_K) memcpy(b + 2, &scale, 2);
    }
    return raw;
}

} // namespace
