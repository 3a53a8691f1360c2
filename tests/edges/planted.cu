/* Kernels for `tools/check_edges.py --self-test`: it has to find fault with each bad_ one and with
 * no good_ one; with an early_ one only while it may not open early. Never launched, never part of
 * the extension. */
#include <stdint.h>

__device__ inline void wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ inline void open() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ inline int first() { return static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); }

extern "C" __global__ void good_plain(float *x, int n)
{
    wait();
    open();
    if (first() >= n) return;
    x[first()] = 2.0f;
    atomicAdd(x + n, 1.0f);
}

/* Loads and shared memory before the wait are what the edge is for. */
extern "C" __global__ void good_early_loads(const float *w, float *x)
{
    __shared__ float s[256];
    s[threadIdx.x] = w[first()];
    __syncthreads();
    wait();
    open();
    x[first()] += s[255 - threadIdx.x];
}

/* The compiler may copy what follows the wait into both branches. */
extern "C" __global__ void good_each_branch_waits(const float *w, float *x, int n)
{
    float sum = 0.0f;
    if (n > 3) {
        wait();
        x[n] = 1.0f;
        return;
    }
    for (int i = 0; i < n; i++) sum += w[i * 3];
    wait();
    x[0] = sum;
}

/* The same subroutine on both sides of the wait. */
extern "C" __global__ void good_call(const float *w, float *x, float d)
{
    const float early = __fdiv_rn(w[0], d);
    wait();
    open();
    x[first()] = __fdiv_rn(x[first()] + early, d + 1.0f);
}

/* Joins of branches on both sides of the wait, in the same barrier. */
extern "C" __global__ void good_joins(const float *w, float *x, int n)
{
    float sum = 0.0f;
    if (threadIdx.x < 7)
        for (int i = 0; i < n; i++) sum += sqrtf(w[i * 3 + threadIdx.x]);
    __syncwarp();
    wait();
    open();
    if (threadIdx.x < 9)
        for (int i = 0; i < n; i++) sum += sqrtf(x[i * 5 + threadIdx.x]);
    __syncwarp();
    x[first()] = sum;
}

/* The launch says where it waits. */
extern "C" __global__ void good_either(const float *w, float *x, int late, int n)
{
    if (!late) wait();
    float sum = 0.0f;
    for (int i = 0; i < n; i++) sum += w[i * 3 + threadIdx.x];
    if (late) wait();
    open();
    x[first()] = sum;
}

extern "C" __global__ void early_open(const float *w, float *x, int early)
{
    if (early) open();
    const float sum = w[first()];
    wait();
    if (!early) open();
    x[first()] = sum;
}

extern "C" __global__ void bad_early_store(float *x, int early)
{
    if (early) open();
    x[first()] = 1.0f;
    wait();
    if (!early) open();
}

extern "C" __global__ void bad_call(const float *w, float *x, float d)
{
    const float early = __fdiv_rn(w[0], d);
    x[1] = early;
    wait();
    open();
    x[first()] = __fdiv_rn(x[first()] + early, d + 1.0f);
}

/* Neither place when late is 2. */
extern "C" __global__ void bad_either(const float *w, float *x, int late, int n)
{
    if (late == 0) wait();
    float sum = 0.0f;
    for (int i = 0; i < n; i++) sum += w[i * 3 + threadIdx.x];
    if (late == 1) wait();
    open();
    x[first()] = sum;
}

/* What decides is no constant. */
extern "C" __global__ void bad_either_by_data(const float *w, float *x, const volatile int *late)
{
    if (!*late) wait();
    const float sum = w[first()];
    if (*late) wait();
    x[first()] = sum;
}

extern "C" __global__ void bad_exit(float *x, int n)
{
    if (first() >= n) return;
    wait();
    open();
    x[first()] = 2.0f;
}

extern "C" __global__ void bad_store(float *x, int n)
{
    x[n] = 1.0f;
    wait();
    open();
}

extern "C" __global__ void bad_atomic(int *x, int n)
{
    atomicAdd(x + n, 1);
    wait();
    open();
}

extern "C" __global__ void bad_bulk_store(float *x)
{
    __shared__ alignas(128) float s[32];
    const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(s));
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 128;" ::"l"(x), "r"(at)
                 : "memory");
    wait();
    open();
}

extern "C" __global__ void early_open_always(float *x, int n)
{
    open();
    wait();
    x[n] = 1.0f;
}

extern "C" __global__ void bad_no_wait(float *x, int n) { x[n] = 1.0f; }

/* One thread of a block waits, the others leave early. */
extern "C" __global__ void bad_some_wait(float *x, int n)
{
    if (threadIdx.x == 0) wait();
    if (n > 0) x[first()] = 1.0f;
}
