/* CUDA kernels on the host, without a GPU: what their text needs of the language and of the
 * hardware when a plain C++ compiler has it, which reads this file first. The threads of a CTA are
 * fibers that take turns; a lane waits at every warp-wide operation until its whole warp is there,
 * CTAs run one after the other. Slow, and nothing is like the hardware in time; but what a kernel
 * computes, whom it waits for and where it reads and writes is the same.
 *
 * Harsher than the hardware where a kernel must not rely on it: shared memory begins as NaNs, an
 * asynchronous copy ruins its destination at once and arrives only when somebody waits for it, a
 * bulk copy is not asked for again before all who waited for the last one have fenced their reads,
 * threads run in any order. What comes before a dependent launch is written only when it is waited
 * for, and until a thread of the CTA has waited, none may write there or let the next launch go.
 * Waiting for what never comes ends the program and says who waits. Milder: every warp-wide
 * operation orders the memory of its lanes, as only some do, so that a __syncwarp missing next to
 * another one is not seen; CTAs never overlap, nor do launches. */
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include <functional>
#include <string>
#include <vector>

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

namespace emulated
{

constexpr uint32_t kSharedStart = 1024; // as on sm_90

/* In which order threads take turns. */
enum Order { kAscending, kDescending, kShuffled };

/* Memory that earlier launches write, or this one. */
struct Range {
    uint8_t *p;
    size_t bytes;
};

/* How the next launches are done. */
struct Setting {
    std::string name; // of a failure
    Order order = kAscending;
    int32_t shared = 227 * 1024;  // bytes that a CTA may have
    std::function<void()> before; // the end of all earlier launches; once a launch
    bool open_early = false;      // the next launch may be let go before a thread has waited
    bool waits = true;            // a thread waits for its own copies before it ends
    bool fences = true; // what a bulk copy brought is fenced ahead of the next copy to its place
    // For each CTA anew: NaNs until one of its threads has waited, and untouched until then.
    std::vector<Range> dependent;
};
extern Setting setting;
extern int launches; // so far

/* Words that each lane of a warp brings to an operation of all. */
struct Words {
    uint64_t of[6];
};

/* Waits for the whole warp, which has to come for the same operation. Returns what its lanes have
 * brought, good until the operation after the next one. */
const Words *exchange(const char *what, const Words &mine);

/* Waits for the lanes of the mask, of the caller's own warp. */
void sync_lanes(uint32_t mask);

[[noreturn]] void fail(const char *what);
void syncthreads();
int syncthreads_count(bool mine);
void spin(); // in a loop that waits for another thread
void edge_wait();
void edge_open();
cudaError_t run(dim3 grid, dim3 block, size_t shared, const std::function<void()> &kernel);

/* d += a b on 16 x 8 outputs, sixteen of K in ascending order. */
void mma(float *d, const uint32_t *a, const uint32_t *b);
void mma8(float *d, const uint32_t *a, uint32_t b); // eight of K

/* Four 8 x 8 tiles of 16-bit elements out of shared memory, each transposed or not. */
void load_tiles(uint32_t (&to)[4], const void *row, bool turned);

/* Asks for a copy of the thread's own, in its open group. */
void copy_async(void *shared, const void *global, uint32_t bytes);

uint32_t shared_address(const void *p);
void *shared_place(uint32_t address);

inline int lane() { return static_cast<int>(threadIdx.x & 31); }

inline int32_t any_bits(int32_t x)
{
    const Words *all = exchange("redux", {{static_cast<uint32_t>(x)}});
    uint64_t bits = 0;
    for (int i = 0; i < 32; i++) bits |= all[i].of[0];
    return static_cast<int32_t>(bits);
}

inline int sum(int x)
{
    const Words *all = exchange("redux", {{static_cast<uint32_t>(x)}});
    uint32_t bits = 0;
    for (int i = 0; i < 32; i++) bits += static_cast<uint32_t>(all[i].of[0]);
    return static_cast<int>(bits);
}

template <typename T> T largest(T x)
{
    const Words *all = exchange("redux", {{static_cast<uint32_t>(x)}});
    for (int i = 0; i < 32; i++) {
        const T other = static_cast<T>(all[i].of[0]);
        if (other > x) x = other;
    }
    return x;
}

template <typename T> T shuffle(T x, int from)
{
    static_assert(sizeof x == 4 || sizeof x == 8, "words");
    uint64_t bits = 0;
    __builtin_memcpy(&bits, &x, sizeof x);
    bits = exchange("shuffle", {{bits}})[from & 31].of[0];
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
}

/* Work of one thread that waits for nothing and nobody. */
template <typename Kernel> void alone(Kernel kernel)
{
    threadIdx = blockIdx = {0, 0, 0};
    gridDim = blockDim = dim3(1);
    kernel();
}

template <typename... Params>
cudaError_t launch(const cudaLaunchConfig_t *cfg, void (*kernel)(Params...), Params... args)
{
    return run(cfg->gridDim, cfg->blockDim, cfg->dynamicSmemBytes, [&] { kernel(args...); });
}

} // namespace emulated

/* ---- the language ------------------------------------------------------------------------------
 */

#define __launch_bounds__(...)
#define cudaLaunchKernelEx emulated::launch
/* One for the program, as fibers are no threads of the language, and found by what poisons it. */
#undef __shared__
#define __shared__ thread_local
#ifndef __clang__
#define __builtin_assume(x)
#endif

template <typename Kernel> cudaError_t cudaFuncSetAttribute(Kernel, cudaFuncAttribute, int)
{
    return cudaSuccess;
}

inline void __syncthreads() { emulated::syncthreads(); }
inline int __syncthreads_count(bool mine) { return emulated::syncthreads_count(mine); }
inline int __syncthreads_and(bool mine) { return emulated::syncthreads_count(!mine) == 0; }
inline int __syncthreads_or(bool mine) { return emulated::syncthreads_count(mine) > 0; }
inline void __syncwarp() { emulated::exchange("syncwarp", {}); }
inline void __syncwarp(uint32_t mask) { emulated::sync_lanes(mask); }
inline void __threadfence_block() {}
inline void __threadfence() {}
inline void __threadfence_system() {}
inline void __trap() { emulated::fail("trap"); }

template <typename T> T __shfl_sync(uint32_t, T x, int from) { return emulated::shuffle(x, from); }
inline int __shfl_sync(uint32_t, bool x, int from)
{
    return emulated::shuffle(static_cast<int>(x), from);
}
template <typename T> T __shfl_xor_sync(uint32_t, T x, int by)
{
    return emulated::shuffle(x, emulated::lane() ^ by);
}
template <typename T> T __shfl_up_sync(uint32_t, T x, int by, int width = 32)
{
    const int lane = emulated::lane(), from = lane - by;
    return emulated::shuffle(x, from < lane / width * width ? lane : from);
}
template <typename T> T __shfl_down_sync(uint32_t, T x, int by)
{
    const int lane = emulated::lane(), from = lane + by;
    return emulated::shuffle(x, from < 32 ? from : lane);
}
inline int __reduce_add_sync(uint32_t, int x) { return emulated::sum(x); }
template <typename T> T __reduce_max_sync(uint32_t, T x) { return emulated::largest(x); }
inline uint32_t __match_any_sync(uint32_t, uint32_t mine)
{
    const emulated::Words *all = emulated::exchange("match", {{mine}});
    uint32_t bits = 0;
    for (int i = 0; i < 32; i++) bits |= static_cast<uint32_t>(all[i].of[0] == mine) << i;
    return bits;
}
inline uint32_t __ballot_sync(uint32_t, bool mine)
{
    const emulated::Words *all = emulated::exchange("ballot", {{mine}});
    uint32_t bits = 0;
    for (int i = 0; i < 32; i++) bits |= static_cast<uint32_t>(all[i].of[0]) << i;
    return bits;
}

inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline uint32_t min(uint32_t a, uint32_t b) { return a < b ? a : b; }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<uint32_t>(x)); }
inline int __popc(uint32_t x) { return __builtin_popcount(x); }
inline int __ffs(uint32_t x) { return __builtin_ffs(static_cast<int>(x)); }
inline uint32_t __dp4a(uint32_t a, uint32_t b, uint32_t sum)
{
    for (int i = 0; i < 32; i += 8) sum += (a >> i & 0xFF) * (b >> i & 0xFF);
    return sum;
}
inline uint32_t __umulhi(uint32_t a, uint32_t b)
{
    return static_cast<uint32_t>((static_cast<uint64_t>(a) * b) >> 32);
}
inline float __uint_as_float(uint32_t bits)
{
    float x;
    __builtin_memcpy(&x, &bits, 4);
    return x;
}
inline uint32_t __float_as_uint(float x)
{
    uint32_t bits;
    __builtin_memcpy(&bits, &x, 4);
    return bits;
}
inline float __int_as_float(int32_t bits) { return __uint_as_float(static_cast<uint32_t>(bits)); }
inline int32_t __float_as_int(float x) { return static_cast<int32_t>(__float_as_uint(x)); }
inline int64_t __double_as_longlong(double x)
{
    int64_t bits;
    __builtin_memcpy(&bits, &x, 8);
    return bits;
}
inline float __expf(float x) { return expf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
template <typename T> T atomicAdd(T *at, T x)
{
    const T was = *at;
    *at += x;
    return was;
}
template <typename T, typename U> T atomicMax(T *at, U x)
{
    const T was = *at;
    if (x > was) *at = x;
    return was;
}
template <typename T> T atomicMin(T *at, T x)
{
    const T was = *at;
    if (x < was) *at = x;
    return was;
}
template <typename T> T atomicExch(T *at, T x)
{
    const T was = *at;
    *at = x;
    return was;
}
template <typename T> T atomicOr(T *at, T bits)
{
    const T was = *at;
    *at |= bits;
    return was;
}
template <typename T> T __ldcg(const T *p) { return *p; }
inline size_t __cvta_generic_to_shared(const void *p) { return emulated::shared_address(p); }
inline void *__cvta_shared_to_generic(size_t address)
{
    return emulated::shared_place(static_cast<uint32_t>(address));
}

/* ---- kernels/common/bulk.cuh -------------------------------------------------------------------
 */

#ifndef SK_BULK
#define SK_BULK 1 // 0: as on what has no bulk copies
#endif
#if SK_BULK
#define SK_SHARED_START 1024
#endif

namespace sk
{

inline uint32_t shared_address(const void *p) { return emulated::shared_address(p); }

void barrier_init(uint64_t *bar);
void barrier_init_done();
void barrier_expect(uint64_t *bar, uint32_t bytes, bool mine = true);
void barrier_wait(uint64_t *bar, uint32_t parity);
void proxy_fence();
void bulk_copy_elected(uint64_t policy, uint8_t *to, const uint8_t *from, uint32_t bytes,
                       uint64_t *bar);
void bulk_copy_two(uint64_t policy, uint8_t *to0, const uint8_t *from0, uint8_t *to1,
                   const uint8_t *from1, uint32_t bytes, uint64_t *bar);
void bulk_copy(uint8_t *to, const uint8_t *from, uint32_t bytes, uint64_t *bar);
inline void bulk_copy_once(uint8_t *to, const uint8_t *from, uint32_t bytes, uint64_t *bar,
                           bool mine = true)
{
    if (mine) bulk_copy(to, from, bytes, bar);
}
inline uint64_t once_policy() { return 0; }

void copy_async16(uint16_t *shared, const uint16_t *global);
void copy_async4(int32_t *shared, const int32_t *global);
void copy_async_commit();
void copy_async_wait_for(int pending);
template <int Pending> void copy_async_wait() { copy_async_wait_for(Pending); }

} // namespace sk
