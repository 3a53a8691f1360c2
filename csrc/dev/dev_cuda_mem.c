/* Device memory, pinned memory and transfers.
 *
 * Pageable memory goes through the pinned staging ring, so that a transfer is stream-ordered and
 * the caller's bytes may change or vanish as soon as the call has returned. */
#include "base/fault.h"
#include "dev/dev_cuda_impl.h"

#include <string.h>

static sk_code no_room(sk_dev *d, uint64_t bytes, const char *what, sk_status *st)
{
    bool first = st && st->code == SK_OK;
    size_t room = 0;
    size_t total = 0;
    sk_code rc;
    (void)cudaGetLastError(); // see sk_dev_check
    if (cudaMemGetInfo(&room, &total) != cudaSuccess) room = 0;
    rc = SK_FAIL(st, SK_NOMEM, "CUDA device %d: expected %llu bytes for %s, %llu of %llu are free",
                 (int)d->index, (unsigned long long)bytes, what, (unsigned long long)room,
                 (unsigned long long)total);
    if (first) st->native = (int32_t)cudaErrorMemoryAllocation;
    return rc;
}

sk_code sk_dev_memory(sk_dev *d, uint64_t *free_bytes, uint64_t *total_bytes, sk_status *st)
{
    size_t room = 0;
    size_t total = 0;
    SK_TRY(sk_dev_use_live(d, "memory query", st));
    SK_TRY(sk_dev_try(cudaMemGetInfo(&room, &total), "cudaMemGetInfo", st));
    *free_bytes = room;
    *total_bytes = total;
    return SK_OK;
}

sk_code sk_dev_alloc(sk_dev *d, uint64_t bytes, const char *what, uint8_t **out, sk_status *st)
{
    void *p = NULL;
    cudaError_t e;
    sk_code rc;
    SK_TRY(sk_dev_use_live(d, "allocation", st));
    bytes = bytes < 256 ? 256 : bytes;
    e = SK_FAULT() ? cudaErrorMemoryAllocation : cudaMalloc(&p, bytes);
    if (e == cudaErrorMemoryAllocation) return no_room(d, bytes, what, st);
    SK_TRY(sk_dev_try(e, "cudaMalloc", st));
    rc = sk_dev_try(cudaMemsetAsync(p, 0, bytes, d->stream), "cudaMemsetAsync", st);
    // Waits, since the zeros have to be there for the branch streams too.
    if (rc == SK_OK) rc = sk_dev_sync(d, st);
    if (rc != SK_OK) {
        (void)cudaFree(p);
        return rc;
    }
    *out = p;
    return SK_OK;
}

void sk_dev_free(sk_dev *d, uint8_t *p)
{
    if (p && cudaSetDevice(d->index) == cudaSuccess) (void)cudaFree(p);
}

sk_code sk_dev_pin(sk_dev *d, uint64_t bytes, const char *what, void **host, uint8_t **device,
                   sk_status *st)
{
    void *p = NULL;
    void *seen = NULL;
    cudaError_t e;
    sk_code rc;
    SK_TRY(sk_dev_use_live(d, "allocation", st));
    bytes = bytes ? bytes : 1;
    e = SK_FAULT() ? cudaErrorMemoryAllocation
                   : cudaHostAlloc(&p, bytes, cudaHostAllocMapped | cudaHostAllocPortable);
    if (e == cudaErrorMemoryAllocation) (void)cudaGetLastError();
    if (e == cudaErrorMemoryAllocation)
        return SK_FAIL(st, SK_NOMEM, "pinned host memory: expected %llu bytes for %s, found less",
                       (unsigned long long)bytes, what);
    SK_TRY(sk_dev_try(e, "cudaHostAlloc", st));
    rc = sk_dev_try(cudaHostGetDevicePointer(&seen, p, 0), "cudaHostGetDevicePointer", st);
    if (rc != SK_OK) {
        (void)cudaFreeHost(p);
        return rc;
    }
    *host = p;
    if (device) *device = seen;
    return SK_OK;
}

void sk_dev_unpin(sk_dev *d, void *host)
{
    if (host && cudaSetDevice(d->index) == cudaSuccess) (void)cudaFreeHost(host);
}

/* Transfers */

static uint64_t piece_at(uint64_t done, uint64_t n)
{
    return n - done < SK_DEV_PIECE ? n - done : SK_DEV_PIECE;
}

/* The staging piece number `k`, once the device has let go of it. */
static sk_code piece_wait(sk_dev *d, uint64_t k, uint8_t **out, sk_status *st)
{
    uint64_t i = k % SK_DEV_PIECES;
    SK_TRY(sk_dev_try(cudaEventSynchronize(d->staged[i]), "cudaEventSynchronize", st));
    *out = d->stage + i * SK_DEV_PIECE;
    return SK_OK;
}

/* One piece, in the direction that the addresses say, and the event behind it. */
static sk_code piece_send(sk_dev *d, uint8_t *dst, const uint8_t *src, uint64_t n, sk_status *st)
{
    uint64_t i = d->n_staged++ % SK_DEV_PIECES;
    SK_TRY(sk_dev_try(cudaMemcpyAsync(dst, src, n, cudaMemcpyDefault, d->stream), "cudaMemcpyAsync",
                      st));
    return sk_dev_try(cudaEventRecord(d->staged[i], d->stream), "cudaEventRecord", st);
}

sk_code sk_dev_write(sk_dev *d, uint8_t *dst, const void *src, uint64_t n, sk_status *st)
{
    SK_TRY(sk_dev_use_live(d, "write", st));
    for (uint64_t done = 0; done < n; done += SK_DEV_PIECE) {
        uint64_t now = piece_at(done, n);
        uint8_t *stage;
        SK_TRY(piece_wait(d, d->n_staged, &stage, st));
        memcpy(stage, (const uint8_t *)src + done, now);
        SK_TRY(piece_send(d, dst + done, stage, now, st));
    }
    return SK_OK;
}

sk_code sk_dev_read(sk_dev *d, void *dst, const uint8_t *src, uint64_t n, sk_status *st)
{
    uint64_t asked = 0;
    uint8_t *stage;
    SK_TRY(sk_dev_use_live(d, "read", st));
    // The next piece is on its way while this one is taken out.
    for (uint64_t taken = 0; taken < n; taken += SK_DEV_PIECE) {
        for (; asked < n && asked < taken + SK_DEV_PIECES * SK_DEV_PIECE; asked += SK_DEV_PIECE) {
            SK_TRY(piece_wait(d, d->n_staged, &stage, st));
            SK_TRY(piece_send(d, stage, src + asked, piece_at(asked, n), st));
        }
        SK_TRY(piece_wait(d, d->n_staged - (asked - taken) / SK_DEV_PIECE, &stage, st));
        memcpy((uint8_t *)dst + taken, stage, piece_at(taken, n));
    }
    return SK_OK;
}

sk_code sk_dev_fill(sk_dev *d, uint8_t *dst, int32_t byte, uint64_t n, sk_status *st)
{
    if (n == 0) return SK_OK;
    SK_TRY(sk_dev_use(d, st));
    return sk_dev_try(cudaMemsetAsync(dst, byte, n, d->stream), "cudaMemsetAsync", st);
}

sk_code sk_dev_copy(sk_dev *d, uint8_t *dst, const uint8_t *src, uint64_t n, sk_status *st)
{
    if (n == 0) return SK_OK;
    SK_TRY(sk_dev_use(d, st));
    return sk_dev_try(cudaMemcpyAsync(dst, src, n, cudaMemcpyDefault, d->stream), "cudaMemcpyAsync",
                      st);
}
