/* See room.h. */
#include "base/room.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* The number after `key` at the start of a line ("" : at the start of the file). */
static bool number_in(const char *path, const char *key, uint64_t *out)
{
    char text[8192];
    const size_t n_key = strlen(key);
    const char *at = text;
    size_t used = 0;
    ssize_t n;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    while ((n = read(fd, text + used, sizeof text - 1 - used)) > 0) used += (size_t)n;
    (void)close(fd);
    text[used] = 0;
    while (at && strncmp(at, key, n_key) != 0) {
        at = strchr(at, '\n');
        if (at) at++;
    }
    if (!at) return false;
    at += n_key;
    while (*at == ' ') at++;
    if (*at < '0' || *at > '9') return false; // "max": no limit
    for (*out = 0; *at >= '0' && *at <= '9'; at++)
        if (!sk_mul_u64(*out, 10, out) || !sk_add_u64(*out, (uint64_t)(*at - '0'), out))
            return false;
    return true;
}

/* What a control group leaves; pages of files are given back when others need them. */
static uint64_t group_room(const char *limit, const char *usage, const char *stat, const char *file)
{
    uint64_t most, used, cached = 0;
    if (!number_in(limit, "", &most) || !number_in(usage, "", &used)) return UINT64_MAX;
    if (number_in(stat, file, &cached)) used -= used < cached ? used : cached;
    return most > used ? most - used : 0;
}

uint64_t sk_room(void)
{
    uint64_t room = UINT64_MAX, kib, v1, v2;
    if (number_in("/proc/meminfo", "MemAvailable:", &kib)) room = kib * 1024;
    v2 = group_room("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current",
                    "/sys/fs/cgroup/memory.stat", "file ");
    v1 = group_room("/sys/fs/cgroup/memory/memory.limit_in_bytes",
                    "/sys/fs/cgroup/memory/memory.usage_in_bytes",
                    "/sys/fs/cgroup/memory/memory.stat", "total_cache ");
    if (v2 < room) room = v2;
    return v1 < room ? v1 : room;
}

sk_code sk_room_need(uint64_t bytes, const char *what, sk_status *st)
{
    uint64_t room = sk_room();
    if (bytes <= room) return SK_OK;
    return SK_FAIL(st, SK_NOMEM, "host memory: %llu bytes wanted for %s, %llu available",
                   (unsigned long long)bytes, what, (unsigned long long)room);
}
