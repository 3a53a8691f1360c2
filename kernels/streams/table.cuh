/* Rows of a table in the order of the file: what gather_heads looks up. A value is scale times
 * code, exact, as the CPU decodes it. */
#pragma once

#include "kernels/common/bf16.cuh"
#include "kernels/common/rows.cuh"
#include "kernels/common/setup.cuh"

#include <cuda_fp16.h>

namespace sk
{

/* Two bytes at an even or odd place. */
__device__ inline float half_at(const uint8_t *p)
{
    const uint16_t bits = static_cast<uint16_t>(p[0] | p[1] << 8);
    return __half2float(__ushort_as_half(bits));
}

/* Element i of a row. */
struct table_f32 {
    __device__ static float at(const uint8_t *row, int32_t i)
    {
        return reinterpret_cast<const float *>(row)[i];
    }
};

struct table_f16 {
    __device__ static float at(const uint8_t *row, int32_t i) { return half_at(row + 2 * i); }
};

struct table_bf16 {
    __device__ static float at(const uint8_t *row, int32_t i)
    {
        return from_bf16(reinterpret_cast<const uint16_t *>(row)[i]);
    }
};

/* Blocks of 32: a scale in F16, and the codes. */
struct table_q8_0 {
    __device__ static float at(const uint8_t *row, int32_t i)
    {
        const uint8_t *block = row + i / 32 * 34;
        const int8_t code = static_cast<int8_t>(block[2 + i % 32]);
        return __fmul_rn(half_at(block), static_cast<float>(code));
    }
};

/* The first half of a block's elements is in the low nibbles. */
__device__ inline int32_t nibble_of(const uint8_t *block, int32_t j)
{
    return j < 16 ? block[2 + j] & 15 : block[2 + j - 16] >> 4;
}

struct table_q4_0 {
    __device__ static float at(const uint8_t *row, int32_t i)
    {
        const uint8_t *block = row + i / 32 * 18;
        return __fmul_rn(half_at(block), static_cast<float>(nibble_of(block, i % 32) - 8));
    }
};

struct table_iq4_nl {
    __device__ static float at(const uint8_t *row, int32_t i)
    {
        const uint8_t *block = row + i / 32 * 18;
        const int32_t nibble = nibble_of(block, i % 32);
        // The sixteen codes of the format, four in a word.
        const uint32_t word = nibble < 8 ? (nibble < 4 ? 0xBFAD9881u : 0xF6EADDCFu)
                                         : (nibble < 12 ? 0x26190D01u : 0x71594535u);
        const int8_t code = static_cast<int8_t>(word >> 8 * (nibble % 4));
        return __fmul_rn(half_at(block), static_cast<float>(code));
    }
};

template <typename Out> struct lookup_views {
    const uint8_t *table;
    int64_t row_bytes;
    rows<const int32_t> ids;
    rows<Out> out;
    int32_t n_heads, n;
    float scale;
};

constexpr int32_t kTableWarps = 4; // of a CTA

/* A warp a (row, head). Pieces of a table follow each other on the device, wherever they lie in the
 * files, so where they begin is not looked at. */
template <typename Table, typename Out>
__global__ void __launch_bounds__(32 * kTableWarps) look_up(lookup_views<Out> v, pass p)
{
    const int32_t r = blockIdx.x;
    const int32_t h = static_cast<int32_t>(blockIdx.y) * kTableWarps + threadIdx.x / 32;
    if (r >= wait_rows(p) || h >= v.n_heads) return;
    const int32_t id = v.ids[r][h];
    const uint8_t *row = v.table + id * v.row_bytes;
    Out *out = v.out[r] + static_cast<int64_t>(h) * v.n;
    for (int32_t i = threadIdx.x % 32; i < v.n; i += 32)
        put(out + i, __fmul_rn(v.scale, Table::at(row, i)));
}

template <typename Table, typename Out>
int32_t launch_look_up(const sk_gather_heads_args *a, const sk_launch *l)
{
    const int32_t n_heads = static_cast<int32_t>(a->ids.dim[1]);
    const lookup_views<Out> v = {a->table.p,
                                 a->table.stride[0],
                                 rows_of<const int32_t>(a->ids),
                                 rows_of<Out>(a->out),
                                 n_heads,
                                 static_cast<int32_t>(a->table.dim[1]),
                                 a->scale};
    const dim3 grid(static_cast<unsigned>(a->ids.dim[0]),
                    static_cast<unsigned>((n_heads + kTableWarps - 1) / kTableWarps));
    return launch(l, look_up<Table, Out>, grid, dim3(32 * kTableWarps), 0, v,
                  pass_of(l, a->count, a->ids.dim[0]));
}

/* `out` has the activation type. */
template <typename Table> int32_t launch_table(const sk_gather_heads_args *a, const sk_launch *l)
{
    if (a->out.dtype == SK_BF16) return launch_look_up<Table, __nv_bfloat16>(a, l);
    return launch_look_up<Table, float>(a, l);
}

template <typename Table> int32_t prefer_table()
{
    return prefer_shared_all(look_up<Table, float>, look_up<Table, __nv_bfloat16>);
}

} // namespace sk
