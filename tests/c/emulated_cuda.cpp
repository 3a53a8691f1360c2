/* The machine of emulated_cuda.h: fibers, barriers, copies, the matrix unit. Contexts are made by
 * makecontext and left by longjmp, which, unlike swapcontext, asks the kernel for nothing. */
#include "emulated_cuda.h"

#include <link.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <algorithm>
#include <map>
#include <vector>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

/* Dynamic shared memory, and the other names that kernels give it. */
namespace sk
{
alignas(1024) thread_local uint8_t bytes[227 * 1024];
#define SK_ALSO __attribute__((alias("_ZN2sk5bytesE")))
extern thread_local SK_ALSO uint8_t memory[sizeof bytes];
extern thread_local SK_ALSO uint64_t keys[sizeof bytes / 8];
extern thread_local SK_ALSO float key[sizeof bytes / 4];
extern thread_local SK_ALSO float q[sizeof bytes / 4];
extern thread_local SK_ALSO float shared[sizeof bytes / 4];
} // namespace sk

namespace emulated
{

Setting setting;
int launches;

namespace
{

constexpr size_t kStack = 64 * 1024;
constexpr int kMostThreads = 1024;

enum State { kReady, kInWarp, kInBlock, kPolling, kDone };

struct Warp {
    Words brought[2][32]; // by parity of the operation
    uint32_t operation;
    uint32_t some; // lanes that wait for some others
    int there;
    const char *what;
};

struct Copy {
    uint8_t *to;
    const uint8_t *from;
    uint32_t bytes;
};

struct Fiber {
    jmp_buf at;
    ucontext_t first;
    State state;
    bool begun, waited;                    // waited for earlier launches
    const char *why;                       // what it waits for
    std::vector<std::vector<Copy>> groups; // of its own copies, the last one open
    std::vector<uint64_t *> unfenced;      // barriers it waited for; it may still be reading
};

/* What eight bytes of shared memory stand for; `armed`: the phase has had its arrival. */
struct Barrier {
    uint32_t phases = 0;
    bool armed = false;
    int64_t expected = 0;
    std::vector<Copy> copies;
};
constexpr uint32_t kStaticStart = 1 << 20; // of shared memory with a size of its own: anywhere else
constexpr uint64_t kBarrierMark = 0x6261727269657221;

Fiber fibers[kMostThreads];
Warp warps[kMostThreads / 32];
std::map<uint64_t *, Barrier> barriers;
std::vector<uint8_t> stacks;
jmp_buf scheduler;
const std::function<void()> *body;
int threads, live, in_block, counted, current;
std::vector<uint8_t> kept; // what the launch's dependent memory has, while it is hidden
bool hidden;
size_t shared_bytes;
bool progress, before_done;

void enter()
{
    (*body)();
    Fiber &f = fibers[current];
    if (!f.waited) fail("a thread ends without having waited for earlier launches");
    for (const std::vector<Copy> &group : f.groups)
        if (!group.empty() && setting.waits) fail("a copy that its thread does not wait for");
    f.state = kDone;
    live--;
    progress = true;
    _longjmp(scheduler, 1);
}

/* The current fiber waits, in this state; comes back when its turn has come. */
__attribute__((noinline)) void leave(State state, const char *why)
{
    Fiber &f = fibers[current];
    f.state = state;
    f.why = why;
    if (state != kPolling) progress = true;
    if (_setjmp(f.at) == 0) _longjmp(scheduler, 1);
}

/* Lets a fiber run until it waits. */
__attribute__((noinline)) void resume(int i)
{
    Fiber &f = fibers[i];
    current = i;
    threadIdx.x = static_cast<unsigned>(i) % blockDim.x;
    threadIdx.y = static_cast<unsigned>(i) / blockDim.x;
    f.state = kReady;
    if (_setjmp(scheduler)) return;
    if (f.begun) _longjmp(f.at, 1);
    f.begun = true;
    getcontext(&f.first);
    f.first.uc_stack.ss_sp = stacks.data() + kStack * static_cast<size_t>(i);
    f.first.uc_stack.ss_size = kStack;
    f.first.uc_link = nullptr;
    makecontext(&f.first, enter, 0);
    setcontext(&f.first);
}

uint32_t next_random()
{
    static uint64_t state = 20250301;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state >> 33);
}

std::vector<int> order_of(int n)
{
    std::vector<int> order(static_cast<size_t>(n));
    for (int i = 0; i < n; i++)
        order[static_cast<size_t>(i)] = setting.order == kDescending ? n - 1 - i : i;
    for (int i = n - 1; setting.order == kShuffled && i > 0; i--)
        std::swap(order[static_cast<size_t>(i)],
                  order[next_random() % (static_cast<size_t>(i) + 1)]);
    return order;
}

/* A warp until all of its lanes wait for others. */
void run_warp(int warp, const std::vector<int> &lanes)
{
    for (bool first = true, ran = true; ran; first = false) {
        ran = false;
        for (const int lane : lanes) {
            const int i = 32 * warp + lane;
            const State s = fibers[i].state;
            if (s == kReady || (s == kPolling && first)) {
                resume(i);
                ran = true;
            }
        }
    }
}

/* All shared memory, of all kernels: what this program has of the kind. */
const Range &all_shared()
{
    static Range all;
    const auto find = [](dl_phdr_info *info, size_t, void *) { // the program is the first one
        for (int i = 0; i < info->dlpi_phnum; i++)
            if (info->dlpi_phdr[i].p_type == PT_TLS)
                all = {static_cast<uint8_t *>(info->dlpi_tls_data), info->dlpi_phdr[i].p_memsz};
        return 1;
    };
    if (!all.p) dl_iterate_phdr(find, nullptr);
    if (all.p > sk::bytes || all.p + all.bytes < sk::bytes + sizeof sk::bytes)
        fail("shared memory is not where it should be");
    return all;
}

bool all_ones(const uint8_t *p, size_t n)
{
    return n == 0 || (*p == 0xFF && memcmp(p, p + 1, n - 1) == 0);
}

void hide_dependent()
{
    size_t at = 0;
    for (const Range &r : setting.dependent) at += r.bytes;
    kept.resize(at);
    at = 0;
    for (const Range &r : setting.dependent) {
        memcpy(kept.data() + at, r.p, r.bytes);
        memset(r.p, 0xFF, r.bytes);
        at += r.bytes;
    }
    hidden = true;
}

void show_dependent()
{
    size_t at = 0;
    for (const Range &r : setting.dependent) {
        if (!all_ones(r.p, r.bytes)) fail("a write ahead of the wait for earlier launches");
        memcpy(r.p, kept.data() + at, r.bytes);
        at += r.bytes;
    }
    hidden = false;
}

void run_block(int n)
{
    int idle = 0;
    threads = live = n;
    in_block = counted = 0;
    barriers.clear();
    for (int i = 0; i < n; i++) {
        fibers[i].state = kReady;
        fibers[i].begun = fibers[i].waited = false;
        fibers[i].groups.assign(1, {});
        fibers[i].unfenced.clear();
    }
    memset(warps, 0, sizeof warps);
    memset(all_shared().p, 0xFF, all_shared().bytes);
    hide_dependent();
    while (live > 0 && idle < 2) {
        const std::vector<int> lanes = order_of(32);
        progress = false;
        for (const int w : order_of(n / 32)) run_warp(w, lanes);
        idle = progress ? 0 : idle + 1;
    }
    if (live > 0) fail("deadlock");
    for (const auto &b : barriers)
        if (!b.second.copies.empty()) fail("a copy that nobody waits for");
    if (!all_ones(sk::bytes + shared_bytes, sizeof sk::bytes - shared_bytes))
        fail("write behind the end of shared memory");
}

Barrier &barrier_at(uint64_t *bar)
{
    const auto found = barriers.find(bar);
    if (found == barriers.end()) fail("no barrier");
    if (*bar != kBarrierMark) fail("a barrier is overwritten");
    return found->second;
}

void expect(uint64_t *bar, Barrier &b, uint32_t n)
{
    for (int i = 0; i < threads && setting.fences; i++)
        for (const uint64_t *waited : fibers[i].unfenced)
            if (waited == bar) fail("a bulk copy may overtake reads of what its place had before");
    if (b.armed) fail("two arrivals in a phase of a barrier");
    b.armed = true;
    b.expected += n;
}

void ask(std::vector<Copy> &copies, uint8_t *to, const uint8_t *from, uint32_t n)
{
    const uint64_t all = reinterpret_cast<uint64_t>(to) | reinterpret_cast<uint64_t>(from) | n;
    if (all % (n < 16 ? 4 : 16) || n == 0) fail("a copy of no multiples of 16 bytes, nor of four");
    shared_address(to);
    shared_address(to + n);
    memset(to, 0xFF, n);
    copies.push_back({to, from, n});
}

void deliver(Barrier &b)
{
    for (const Copy &c : b.copies) {
        memcpy(c.to, c.from, c.bytes);
        b.expected -= c.bytes;
    }
    b.copies.clear();
    if (b.armed && b.expected == 0) {
        b.armed = false;
        b.phases++;
    }
}

/* All lanes with the same arguments, and one of them acts. */
bool elected(const char *what, const Words &mine)
{
    const Words *all = exchange(what, mine);
    for (int i = 0; i < 32; i++)
        if (memcmp(all + i, &mine, sizeof mine) != 0) fail("lanes ask for different copies");
    return lane() == 0;
}

uint64_t word(const void *p) { return reinterpret_cast<uint64_t>(p); }

float low(uint32_t pair) { return __uint_as_float(pair << 16); }
float high(uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000u); }

} // namespace

void fail(const char *what)
{
    static const char *const names[] = {"runs", "waits for its warp at", "waits for its CTA at",
                                        "waits for", "has ended"};
    const auto why = [](const Fiber &f) {
        return f.state == kReady || f.state == kDone ? "" : f.why;
    };
    printf("%s: %s; CTA %u %u %u, thread %d\n", setting.name.c_str(), what, blockIdx.x, blockIdx.y,
           blockIdx.z, current);
    for (int i = 0; i < threads; i++) {
        const Fiber &f = fibers[i];
        if (i == 0 || f.state != fibers[i - 1].state || why(f) != why(fibers[i - 1]))
            printf("  from thread %d: %s %s\n", i, names[f.state], why(f));
    }
    fflush(stdout);
    _Exit(1);
}

const Words *exchange(const char *what, const Words &mine)
{
    Warp &w = warps[current / 32];
    const uint32_t now = w.operation;
    Words *const all = w.brought[now & 1];
    all[current & 31] = mine;
    if (w.there == 0) w.what = what;
    if (w.what != what && strcmp(w.what, what) != 0)
        fail("lanes of a warp are at different operations");
    if (++w.there < 32) {
        leave(kInWarp, what);
        return all;
    }
    w.there = 0;
    w.operation++;
    progress = true;
    for (int i = current & ~31; i <= (current | 31); i++) fibers[i].state = kReady;
    return all;
}

void sync_lanes(uint32_t mask)
{
    Warp &w = warps[current / 32];
    if (!(mask >> (current & 31) & 1)) fail("a lane that is not in its own mask");
    w.some |= 1u << (current & 31);
    if ((w.some & mask) != mask) return leave(kInWarp, "syncwarp of some lanes");
    w.some &= ~mask;
    progress = true;
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1) fibers[(current & ~31) + i].state = kReady;
}

void syncthreads()
{
    if (++in_block < live) return leave(kInBlock, "syncthreads");
    in_block = 0;
    progress = true;
    for (int i = 0; i < threads; i++)
        if (fibers[i].state == kInBlock) fibers[i].state = kReady;
}

int syncthreads_count(bool mine)
{
    static int sum[2];
    static uint32_t turn;
    const uint32_t now = turn;
    if (counted == 0) sum[now & 1] = 0;
    counted++;
    sum[now & 1] += mine;
    if (in_block + 1 == live) { // the last one
        counted = 0;
        turn++;
    }
    syncthreads();
    return sum[now & 1];
}

void spin() { leave(kPolling, "another thread's word"); }

void edge_wait()
{
    fibers[current].waited = true;
    if (hidden) show_dependent();
    if (!before_done && setting.before) setting.before();
    before_done = true;
}

void edge_open()
{
    if (!fibers[current].waited && !setting.open_early)
        fail("the next launch is let go ahead of the wait for earlier ones");
}

cudaError_t run(dim3 grid, dim3 block, size_t shared, const std::function<void()> &kernel)
{
    if (shared > static_cast<size_t>(setting.shared)) return cudaErrorInvalidValue;
    gridDim = grid;
    blockDim = block;
    body = &kernel;
    shared_bytes = shared;
    before_done = false;
    launches++;
    stacks.resize(kStack * kMostThreads);
    const unsigned n = block.x * block.y;
    if (block.x % 32 || n > kMostThreads || block.z != 1)
        fail("a CTA of no whole warps, or of too many");
    for (blockIdx.z = 0; blockIdx.z < grid.z; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < grid.y; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < grid.x; blockIdx.x++) run_block(static_cast<int>(n));
    return cudaSuccess;
}

uint32_t shared_address(const void *p)
{
    const uint8_t *at = static_cast<const uint8_t *>(p), *end = sk::bytes + sizeof sk::bytes;
    const Range &all = all_shared();
    if (at >= sk::bytes && at <= sk::bytes + shared_bytes)
        return kSharedStart + static_cast<uint32_t>(at - sk::bytes);
    if (at < all.p || at > all.p + all.bytes || (at >= sk::bytes && at < end))
        fail("no address of shared memory");
    return kStaticStart + static_cast<uint32_t>(at - all.p);
}

void *shared_place(uint32_t address)
{
    if (address < kSharedStart || address - kSharedStart >= shared_bytes)
        fail("a read outside shared memory");
    return sk::bytes + (address - kSharedStart);
}

/* Fragments as in the PTX manual: lane 4 g + t has of `a` rows g and g + 8, of `b` column g, each
 * 2t, 2t + 1 and eight on; of `d` those rows, columns 2t and 2t + 1. */
void mma(float *d, const uint32_t *a, const uint32_t *b)
{
    const Words *all = exchange("mma", {{a[0], a[1], a[2], a[3], b[0], b[1]}});
    const int g = lane() >> 2, t = lane() & 3;
    for (int i = 0; i < 4; i++) {
        const Words *row = all + 4 * g, *column = all + 4 * (2 * t + (i & 1));
        const int half = i >> 1;
        float sum = d[i];
        for (int k = 0; k < 8; k++) {
            const uint32_t x = static_cast<uint32_t>(row[k & 3].of[half + 2 * (k >> 2)]);
            const uint32_t y = static_cast<uint32_t>(column[k & 3].of[4 + (k >> 2)]);
            sum += low(x) * low(y);
            sum += high(x) * high(y);
        }
        d[i] = sum;
    }
}

void mma8(float *d, const uint32_t *a, uint32_t b)
{
    const Words *all = exchange("mma", {{a[0], a[1], b}});
    const int g = lane() >> 2, t = lane() & 3;
    for (int i = 0; i < 4; i++) {
        const Words *row = all + 4 * g, *column = all + 4 * (2 * t + (i & 1));
        float sum = d[i];
        for (int k = 0; k < 4; k++) {
            const uint32_t x = static_cast<uint32_t>(row[k].of[i >> 1]);
            const uint32_t y = static_cast<uint32_t>(column[k].of[2]);
            sum += low(x) * low(y);
            sum += high(x) * high(y);
        }
        d[i] = sum;
    }
}

/* Lane 8 i + r names row r of tile i, and gets of each tile row lane / 4, elements 2 (lane % 4) and
 * the next one. */
void load_tiles(uint32_t (&to)[4], const void *row, bool turned)
{
    if (shared_address(row) % 16) fail("a row of a tile that is not aligned");
    const Words *all = exchange("ldmatrix", {{word(row)}});
    const int g = lane() >> 2, t = lane() & 3;
    for (int i = 0; i < 4; i++) {
        const auto element = [&](int r, int c) {
            return static_cast<uint32_t>(
                reinterpret_cast<const uint16_t *>(all[8 * i + r].of[0])[c]);
        };
        to[i] = turned ? element(2 * t, g) | element(2 * t + 1, g) << 16
                       : element(g, 2 * t) | element(g, 2 * t + 1) << 16;
    }
    exchange("ldmatrix done", {}); // all have read before any of them writes
}

void copy_async(void *shared, const void *global, uint32_t bytes)
{
    ask(fibers[current].groups.back(), static_cast<uint8_t *>(shared),
        static_cast<const uint8_t *>(global), bytes);
}

} // namespace emulated

namespace sk
{

using namespace emulated;

void barrier_init(uint64_t *bar)
{
    emulated::shared_address(bar);
    if (barriers.count(bar)) fail("a barrier is begun twice");
    *bar = kBarrierMark;
    barriers[bar] = Barrier();
}

void barrier_init_done() {}

void barrier_expect(uint64_t *bar, uint32_t n, bool mine)
{
    if (mine) expect(bar, barrier_at(bar), n);
}

void bulk_copy(uint8_t *to, const uint8_t *from, uint32_t n, uint64_t *bar)
{
    ask(barrier_at(bar).copies, to, from, n);
}

void barrier_wait(uint64_t *bar, uint32_t parity)
{
    while ((barrier_at(bar).phases & 1) == parity) {
        deliver(barrier_at(bar));
        if ((barrier_at(bar).phases & 1) == parity) leave(kPolling, "a phase of a barrier");
    }
    fibers[current].unfenced.push_back(bar);
}

void proxy_fence() { fibers[current].unfenced.clear(); }

void bulk_copy_elected(uint64_t, uint8_t *to, const uint8_t *from, uint32_t n, uint64_t *bar)
{
    if (!elected("bulk copy", {{word(to), word(from), n, word(bar)}})) return;
    Barrier &b = barrier_at(bar);
    expect(bar, b, n);
    ask(b.copies, to, from, n);
}

void bulk_copy_two(uint64_t, uint8_t *to0, const uint8_t *from0, uint8_t *to1, const uint8_t *from1,
                   uint32_t n, uint64_t *bar)
{
    if (!elected("two bulk copies",
                 {{word(to0), word(from0), word(to1), word(from1), n, word(bar)}}))
        return;
    Barrier &b = barrier_at(bar);
    expect(bar, b, 2 * n);
    ask(b.copies, to0, from0, n);
    ask(b.copies, to1, from1, n);
}

void copy_async16(uint16_t *shared, const uint16_t *global) { copy_async(shared, global, 16); }

void copy_async4(int32_t *shared, const int32_t *global) { copy_async(shared, global, 4); }

void copy_async_commit() { fibers[current].groups.emplace_back(); }

void copy_async_wait_for(int pending)
{
    std::vector<std::vector<Copy>> &groups = fibers[current].groups;
    while (static_cast<int>(groups.size()) > pending + 1) {
        for (const Copy &c : groups.front()) memcpy(c.to, c.from, c.bytes);
        groups.erase(groups.begin());
    }
}

} // namespace sk

/* ---- what launchers ask the runtime ------------------------------------------------------------
 */

extern "C" cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}

extern "C" cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr, int)
{
    *value = emulated::setting.shared;
    return cudaSuccess;
}
