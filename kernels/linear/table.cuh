/* Look-ups of codebook formats. A format says what its entries are, as fragment words: entry(i, to)
 * of kEntries, kEntryBytes (4, 8 or 16) each, computed when this is compiled. A lane of odd t
 * begins kPart bytes into an entry.
 *
 * Two tables with one interface. GlobalTable is one copy in global memory. SharedTable has for each
 * entry a row of 128 bytes full of copies, so that every lane has banks of its own and a look-up
 * never conflicts: a row's address is the index shifted to bit 7, which one shift of the packed
 * word and one mask-and-or with the lane's own offset give. Where every index is a byte, rows may
 * begin 256 bytes apart: one permutation of bytes then makes the whole address, and the other half
 * of a row is free for something else. Where an index is a byte and a ninth bit, that bit chooses
 * between the halves of such a row. It is the first thing in dynamic shared memory: where that
 * begins is then a constant of the architecture and part of the instruction. */
#pragma once

#include "kernels/linear/fragment.cuh"

namespace sk
{

template <typename D> struct alignas(16) TableWords { // for the widest entry
    uint32_t of[D::kEntries * D::kEntryBytes / 4];
};

template <typename D> constexpr TableWords<D> table_words()
{
    TableWords<D> t = {};
    for (int i = 0; i < D::kEntries; i++) D::entry(i, t.of + i * (D::kEntryBytes / 4));
    return t;
}

template <typename D> static __device__ const TableWords<D> kDeviceTable = table_words<D>();
template <typename D> constexpr TableWords<D> kHostTable = table_words<D>();

template <typename D> __host__ __device__ inline const uint8_t *table_bytes()
{
#ifdef __CUDA_ARCH__
    return reinterpret_cast<const uint8_t *>(kDeviceTable<D>.of);
#else
    return reinterpret_cast<const uint8_t *>(kHostTable<D>.of);
#endif
}

constexpr int kTableRow = 128;
constexpr int kByteTableRow = 256; // from one row to the next where an index is a byte
template <typename D> constexpr bool kIndexIsByte = D::kEntries == 256;
/* Bytes of indices stand in words of their own, a word for a block, and all ninth bits in another
 * one: that of byte k of block b at bit 8k + 7 - b. */
template <typename D> constexpr bool kNinthApart = D::kEntries == 512;
/* Bytes of the table in shared memory. */
template <typename D, int Row = kTableRow> constexpr int kSharedTableBytes = D::kEntries *Row;

/* at<N>(words, pos, bits): N bytes of entry First + bits [pos, pos + bits) of the words, from byte
 * `plus` of it on. at_byte<N>(word, k, ninths(bits, b)): of the entry of byte k of block b's word
 * where kNinthApart. */
template <typename D> struct GlobalTable {
    const uint8_t *table;
    __host__ __device__ explicit GlobalTable(int lane)
        : table(table_bytes<D>() + (lane & 1) * D::kPart)
    {
    }
    template <typename T, int First = 0>
    __host__ __device__ T at(const uint32_t *words, int pos, int bits, uint32_t plus = 0) const
    {
        const uint32_t i = bits_at(words, pos, bits, 0) & ((1u << bits) - 1u);
        return *reinterpret_cast<const T *>(table + (First + i) * D::kEntryBytes + plus);
    }
    __host__ __device__ uint32_t ninths(uint32_t bits, int b) const
    {
        return (bits >> (7 - b)) & 0x01010101u;
    }
    template <typename T> __host__ __device__ T at_byte(uint32_t word, int k, uint32_t ninth) const
    {
        const uint32_t byte = static_cast<uint32_t>(k); // byte, its ninth bit, that one's sign
        const uint32_t i = byte_perm(word, ninth, (0xCC40u + 0x1110u * byte) | byte);
        return *reinterpret_cast<const T *>(table + i * D::kEntryBytes);
    }
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
#define SK_SHARED_START 1024 // without static shared memory; SharedTable traps when it is not so
template <int At> __device__ inline void shared_at(uint32_t *to, uint32_t address)
{
    asm volatile("ld.shared.u32 %0, [%1+%2];" : "=r"(*to) : "r"(address), "n"(At));
}
template <int At> __device__ inline void shared_at(uint2 *to, uint32_t address)
{
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2+%3];"
                 : "=r"(to->x), "=r"(to->y)
                 : "r"(address), "n"(At));
}
template <int At> __device__ inline void shared_at(uint4 *to, uint32_t address)
{
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4+%5];"
                 : "=r"(to->x), "=r"(to->y), "=r"(to->z), "=r"(to->w)
                 : "r"(address), "n"(At));
}
template <int At> __device__ inline void shared_at(uint16_t *to, uint32_t address)
{
    asm volatile("ld.shared.u16 %0, [%1+%2];" : "=h"(*to) : "r"(address), "n"(At));
}
template <int At> __device__ inline void shared_at(uint8_t *to, uint32_t address)
{
    uint32_t byte;
    asm volatile("ld.shared.u8 %0, [%1+%2];" : "=r"(byte) : "r"(address), "n"(At));
    *to = static_cast<uint8_t>(byte);
}
#elif defined(SK_SHARED_START) // a test on the host
template <int At, typename T> inline void shared_at(T *to, uint32_t address)
{
    *to = *static_cast<const T *>(__cvta_shared_to_generic(address + At));
}
#endif

template <typename D, int Row = kTableRow> struct SharedTable {
    static_assert(Row == kTableRow || (Row == kByteTableRow && kIndexIsByte<D>), "rows");
    const uint8_t *table;
    uint32_t mine; // this lane's copy within a row

    __host__ __device__ SharedTable(const uint8_t *shared, int lane) : table(shared)
    {
        constexpr bool kTwoShare = 2 * D::kPart == D::kEntryBytes; // lanes t and t + 1, a copy
        const int copy = kTwoShare ? lane >> 1 : lane;
        // the zero keeps the compiler from forming this anew, with a mask, in every look-up
        uint32_t at = static_cast<uint32_t>(((copy * D::kEntryBytes) & (kTableRow - 1)) +
                                            (lane & 1) * D::kPart);
        if (kNinthApart<D>) at *= 0x01010101u;
        mine = in_register<0>() | at;
#ifdef SK_SHARED_START
        if (static_cast<uint32_t>(__cvta_generic_to_shared(shared)) != SK_SHARED_START) __trap();
#endif
    }
    template <typename T, int First = 0>
    __host__ __device__ T at(const uint32_t *words, int pos, int bits, uint32_t plus = 0) const
    {
        const uint32_t address = address_of(words, pos, bits) | plus;
#ifdef SK_SHARED_START
        T v;
        shared_at<SK_SHARED_START + First * Row>(&v, address);
        return v;
#else
        return *reinterpret_cast<const T *>(table + First * Row + address);
#endif
    }

    /* The low bytes of the addresses of a block's entries. */
    __host__ __device__ uint32_t ninths(uint32_t bits, int b) const
    {
        return ((bits << b) & 0x80808080u) | mine;
    }
    /* The index byte is the second one of the address, and nothing but its sign can stand above
     * it: so rows are counted from -128 on. */
    template <typename T> __host__ __device__ T at_byte(uint32_t word, int k, uint32_t ninth) const
    {
        static_assert(kNinthApart<D> && Row == kTableRow, "rows");
        const uint32_t byte = static_cast<uint32_t>(k);
        const uint32_t address = byte_perm(word, ninth, 0x8804u + 0x1111u * byte);
#ifdef SK_SHARED_START
        T v;
        shared_at<SK_SHARED_START + 128 * kByteTableRow>(&v, address);
        return v;
#else
        return *reinterpret_cast<const T *>(table + 128 * kByteTableRow +
                                            static_cast<int32_t>(address));
#endif
    }

  private:
    __host__ __device__ uint32_t address_of(const uint32_t *words, int pos, int bits) const
    {
        if constexpr (Row == kByteTableRow) { // bytes: mine, the index, zero, zero
            const uint32_t index = static_cast<uint32_t>(pos & 31) >> 3;
            return byte_perm(words[pos >> 5], mine, 0x5504u | index << 4);
        } else {
            return (bits_at(words, pos, bits, 7) & (((1u << bits) - 1u) << 7)) | mine;
        }
    }
};

/* Where the copies of entry i begin. */
template <typename D, int Row> __host__ __device__ inline int row_of(int i)
{
    if (!kNinthApart<D>) return i * Row;
    return ((i & 255) ^ 128) * kByteTableRow + (i >> 8) * kTableRow;
}

/* Thread `tid` of `n`: the row of every n-th entry, its pieces in an order of its own so that
 * neighbours write to different banks. A barrier has to follow. */
template <typename D, int Row = kTableRow>
__host__ __device__ inline void fill_table(uint8_t *shared, int tid, int n)
{
    constexpr int kWords = D::kEntryBytes / 4;
    const auto entry = [](int i) {
        const uint32_t *e = reinterpret_cast<const uint32_t *>(table_bytes<D>()) + i * kWords;
        return uint4{e[0], e[1 % kWords], e[2 % kWords], e[3 % kWords]};
    };
    for (int i = tid; i < D::kEntries; i += 2 * n) { // two at a time: reading takes long
        const bool more = i + n < D::kEntries;
        const uint4 first = entry(i), second = entry(more ? i + n : i);
        SK_UNROLL
        for (int piece = 0; piece < kTableRow / 16; piece++)
            reinterpret_cast<uint4 *>(shared + row_of<D, Row>(i))[(piece + tid) & 7] = first;
        if (!more) break;
        SK_UNROLL
        for (int piece = 0; piece < kTableRow / 16; piece++)
            reinterpret_cast<uint4 *>(shared + row_of<D, Row>(i + n))[(piece + tid) & 7] = second;
    }
}

/* What kernels without a table in shared memory pass to codes(). */
template <typename D, bool HasTable = (D::kEntries > 0)> struct TableChoice {
    using Type = NoTable;
};
template <typename D> struct TableChoice<D, true> {
    using Type = GlobalTable<D>;
};
template <typename D> using TableOf = typename TableChoice<D>::Type;

/* ---- entries -----------------------------------------------------------------------------------
 */

/* A whole number of at most eight significant bits as BF16. */
constexpr uint32_t bf16_of_int(int x)
{
    uint32_t m = static_cast<uint32_t>(x < 0 ? -x : x), exponent = 127 + 7;
    if (m == 0) return 0;
    while (m < 128) {
        m <<= 1;
        exponent--;
    }
    return (x < 0 ? 0x8000u : 0u) | exponent << 7 | (m & 127u);
}

constexpr uint32_t bf16_pair_of(int low, int high)
{
    return bf16_of_int(low) | bf16_of_int(high) << 16;
}

} // namespace sk
