/* Packing and unpacking by the fields of a format: one thread a packed word. Not in any recorded
 * graph: weights are packed once, at load. */
#pragma once

#include "kernels/linear/formats.cuh"

namespace sk
{

struct PackArgs {
    uint8_t *raw;    // rows [row, row + rows) in file order
    uint8_t *packed; // the whole weight
    int64_t row, rows, n, row_bytes;
    int32_t units;
};

/* Where the bits of a field are in the file; NULL in the padding. */
template <typename D>
__device__ inline uint8_t *field_byte(const PackArgs &a, int64_t tile, int unit, const Field &f)
{
    const int64_t row = tile * 16 + f.row - a.row;
    const int64_t byte = static_cast<int64_t>(unit) * D::kRowBytes + f.byte;
    if (row >= a.rows || byte >= a.row_bytes) return nullptr;
    return a.raw + row * a.row_bytes + byte;
}

template <typename D, bool Unpack> __global__ void __launch_bounds__(256) pack(const PackArgs a)
{
    constexpr int kWords = D::kUnitBytes / 4;
    const int64_t tiles = (a.rows + 15) / 16, n = tiles * a.units * kWords;
    const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
         i += step) {
        const int word = static_cast<int>(i % kWords),
                  unit = static_cast<int>(i / kWords % a.units);
        const int64_t tile = i / kWords / a.units + a.row / 16;
        uint32_t *at =
            reinterpret_cast<uint32_t *>(a.packed) + (tile * a.units + unit) * kWords + word;
        uint32_t bits = Unpack ? *at : 0;
        for (int k = 0; k < D::fields(word); k++) {
            const Field f = D::field(word, k);
            uint8_t *byte = field_byte<D>(a, tile, unit, f);
            if (!byte) continue;
            if (Unpack) // several words share a byte; the whole raw array starts from zero
                atomicOr(reinterpret_cast<uint32_t *>(reinterpret_cast<uintptr_t>(byte) & ~3ull),
                         field_unpacked(bits, f) << (8 * (reinterpret_cast<uintptr_t>(byte) & 3)));
            else
                bits |= field_packed(byte, f);
        }
        if (!Unpack) *at = bits;
    }
}

} // namespace sk
