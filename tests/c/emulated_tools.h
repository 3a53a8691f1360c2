/* What the tests of emulated kernels share: memory that shows what a kernel should not have done to
 * it, views of it, random numbers. */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <vector>

extern "C" { // ahead of what includes it too
#include "op/view.h"
}

#include "tests/c/check.h"

namespace
{

inline float random_float() { return static_cast<float>(next_random() % 2001) / 1000.0f - 1.0f; }

template <typename T> T *at(std::vector<T> &v, int64_t i) { return v.data() + i; }
template <typename T> const T *at(const std::vector<T> &v, int64_t i) { return v.data() + i; }

/* Memory of a kernel: NaNs at first and in front of it, and no memory at all behind it. */
struct Memory {
    static constexpr size_t kPage = 65536; // or a part of it
    size_t room;                           // whole pages
    uint8_t *pages, *p;

    explicit Memory(size_t bytes)
    {
        const size_t whole = (bytes + 15) / 16 * 16;
        room = (whole + 2 * kPage - 1) / kPage * kPage;
        pages = static_cast<uint8_t *>(mmap(nullptr, room + kPage, PROT_READ | PROT_WRITE,
                                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        if (pages == MAP_FAILED || mprotect(pages + room, kPage, PROT_NONE) != 0) {
            printf("no memory\n");
            exit(1);
        }
        memset(pages, 0xFF, room);
        p = pages + room - whole;
    }
    Memory(const Memory &) = delete;
    Memory &operator=(const Memory &) = delete;
    ~Memory() { munmap(pages, room + kPage); }
    bool intact() const // in front of it
    {
        const auto kept = [](uint8_t byte) { return byte == 0xFF; };
        return std::all_of(static_cast<const uint8_t *>(pages), static_cast<const uint8_t *>(p),
                           kept);
    }
};

inline sk_view no_view()
{
    sk_view v = {};
    v.buf = -1;
    return v;
}

inline sk_view view_of(uint8_t *p, int32_t dtype, std::vector<int64_t> dim, int64_t row_bytes)
{
    sk_view v = {};
    v.p = p;
    v.dtype = dtype;
    v.rank = static_cast<int32_t>(dim.size());
    std::copy(dim.begin(), dim.end(), v.dim);
    if (v.rank > 1) v.stride[v.rank - 2] = row_bytes;
    if (v.rank > 2) v.stride[0] = row_bytes * v.dim[1];
    return v;
}

/* Steps of BF16 between two numbers. */
inline int steps_between(uint16_t a, uint16_t b)
{
    const auto place = [](uint16_t v) { return v & 0x8000 ? -(v & 0x7FFF) : v & 0x7FFF; };
    return abs(place(a) - place(b));
}

} // namespace
