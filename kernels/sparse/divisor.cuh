/* Division by the number of positions in a block, which as a rule is a power of two: a shift then,
 * as a division would take as long as a good part of a trip to memory. */
#pragma once

#include <stdint.h>

namespace sk
{

struct divisor {
    uint32_t by;
    int32_t shift; // its logarithm, or -1
};

__device__ inline uint32_t divided(uint32_t x, const divisor &d)
{
    return d.shift >= 0 ? x >> d.shift : x / d.by;
}

inline divisor divisor_of(int32_t by)
{
    divisor d = {static_cast<uint32_t>(by), -1};
    for (int32_t i = 0; i < 31; i++)
        if (by == 1 << i) d.shift = i;
    return d;
}

} // namespace sk
