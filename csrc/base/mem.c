/* See mem.h. */
#include "base/mem.h"

#include "base/fault.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static sk_code no_memory(size_t n, size_t size, const char *what, sk_status *st)
{
    return SK_FAIL(st, SK_NOMEM, "host memory: expected %zu x %zu bytes for %s, found less", n,
                   size, what);
}

sk_code sk_mem_new(void **out, size_t n, size_t size, const char *what, sk_status *st)
{
    void *p = SK_FAULT() ? NULL : calloc(n ? n : 1, size ? size : 1); // calloc checks n * size
    if (!p) return no_memory(n, size, what, st);
    *out = p;
    return SK_OK;
}

sk_code sk_mem_new_aligned(void **out, size_t bytes, const char *what, sk_status *st)
{
    uint64_t room;
    void *p = NULL;
    if (sk_align_up(bytes ? bytes : 1, 64, &room) && !SK_FAULT()) p = aligned_alloc(64, room);
    if (!p) return no_memory(1, bytes, what, st);
    memset(p, 0, room);
    *out = p;
    return SK_OK;
}

sk_code sk_mem_grow(void **items, size_t n, size_t *cap, size_t size, const char *what,
                    sk_status *st)
{
    size_t want = *cap ? *cap * 2 : 16;
    void *p;
    if (n < *cap) return SK_OK;
    if (want < *cap || want > SIZE_MAX / size || SK_FAULT()) return no_memory(want, size, what, st);
    p = realloc(*items, want * size);
    if (!p) return no_memory(want, size, what, st);
    memset((char *)p + *cap * size, 0, (want - *cap) * size);
    *items = p;
    *cap = want;
    return SK_OK;
}

void sk_mem_free(void *p) { free(p); }

sk_code sk_block_init(sk_block *out, uint64_t bytes, const char *what, sk_status *st)
{
    sk_block b = {.bytes = bytes};
    uint64_t room;
    // calloc hands out fresh pages of a large block as they are: zero, and not yet there.
    if (sk_add_u64(bytes, 64, &room) && room <= SIZE_MAX && !SK_FAULT()) b.raw = calloc(1, room);
    if (!b.raw) return no_memory(1, bytes, what, st);
    b.p = (char *)b.raw + (64 - (uintptr_t)b.raw % 64) % 64;
    *out = b;
    return SK_OK;
}

void sk_block_fini(sk_block *b)
{
    free(b->raw);
    memset(b, 0, sizeof *b);
}

/* The number that follows `name` in a small text file, times `unit`; UINT64_MAX without one. */
static uint64_t number_in(const char *root, const char *file, const char *name, uint64_t unit)
{
    char text[4096], path[256];
    const char *at;
    uint64_t n = 0;
    ssize_t got;
    int fd;
    (void)snprintf(path, sizeof path, "%s%s", root, file);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return UINT64_MAX;
    got = read(fd, text, sizeof text - 1);
    (void)close(fd);
    text[got > 0 ? got : 0] = 0;
    at = strstr(text, name);
    if (!at) return UINT64_MAX;
    at += strlen(name);
    while (*at == ' ') at++;
    if (*at < '0' || *at > '9') return UINT64_MAX; // "max": no limit
    for (; *at >= '0' && *at <= '9'; at++)
        if (!sk_mul_u64(n, 10, &n) || !sk_add_u64(n, (uint64_t)(*at - '0'), &n)) return UINT64_MAX;
    return sk_mul_u64(n, unit, &n) ? n : UINT64_MAX;
}

/* What a control group leaves. Cached pages of files, those of a mapped model among them, count as
 * used and are given back when somebody needs them. */
static uint64_t left_by_group(uint64_t limit, uint64_t used, uint64_t cached)
{
    if (limit == UINT64_MAX || used == UINT64_MAX) return UINT64_MAX;
    if (cached != UINT64_MAX) used -= cached < used ? cached : used;
    return limit > used ? limit - used : 0;
}

static uint64_t less(uint64_t a, uint64_t b) { return a < b ? a : b; }

uint64_t sk_mem_available_in(const char *root)
{
    const char *v2 = "/sys/fs/cgroup/memory.stat", *v1 = "/sys/fs/cgroup/memory/memory.stat";
    uint64_t system = number_in(root, "/proc/meminfo", "MemAvailable:", 1024);
    uint64_t cached = number_in(root, v2, "\nfile ", 1),
             shared = number_in(root, v2, "\nshmem ", 1);
    if (cached != UINT64_MAX && shared != UINT64_MAX) cached -= less(shared, cached);
    system = less(system,
                  left_by_group(number_in(root, "/sys/fs/cgroup/memory.max", "", 1),
                                number_in(root, "/sys/fs/cgroup/memory.current", "", 1), cached));
    cached = number_in(root, v1, "\ntotal_cache ", 1);
    shared = number_in(root, v1, "\ntotal_shmem ", 1);
    if (cached != UINT64_MAX && shared != UINT64_MAX) cached -= less(shared, cached);
    return less(system,
                left_by_group(number_in(root, "/sys/fs/cgroup/memory/memory.limit_in_bytes", "", 1),
                              number_in(root, "/sys/fs/cgroup/memory/memory.usage_in_bytes", "", 1),
                              cached));
}

uint64_t sk_mem_available(void) { return sk_mem_available_in(""); }
