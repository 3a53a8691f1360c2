/* See map.h. */
#include "ckpt/map.h"

#include "base/fault.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static sk_code fail_io(const char *path, const char *doing, int error, sk_status *st)
{
    bool first = st && st->code == SK_OK;
    char label[SK_LABEL_MAX];
    sk_code rc =
        SK_FAIL_ERRNO(st, SK_IO, error, "%s: %s", sk_quote_path(label, sizeof label, path), doing);
    if (first) st->check = "IO";
    return rc;
}

static const char *kind(mode_t mode)
{
    if (S_ISDIR(mode)) return "a directory";
    if (S_ISFIFO(mode)) return "a pipe";
    if (S_ISSOCK(mode)) return "a socket";
    return "a device";
}

static sk_code map_fd(sk_map *m, int fd, const char *path, sk_status *st)
{
    struct stat info;
    void *bytes;
    char label[SK_LABEL_MAX];
    if (fstat(fd, &info) != 0) return fail_io(path, "stat", errno, st);
    if (!S_ISREG(info.st_mode))
        return SK_FAIL_CHECK(st, SK_IO, "IO", 0, "%s: expected a regular file, found %s",
                             sk_quote_path(label, sizeof label, path), kind(info.st_mode));
    if (info.st_size == 0) return SK_OK; // cannot be mapped, and needs no mapping
    bytes = SK_FAULT() ? (errno = ENOMEM, MAP_FAILED)
                       : mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (bytes == MAP_FAILED) return fail_io(path, "map", errno, st);
    m->bytes = bytes;
    m->size = (uint64_t)info.st_size;
    return SK_OK;
}

sk_code sk_map_open(sk_map *out, const char *path, sk_status *st)
{
    sk_map m = {0};
    sk_code rc;
    // Without O_NONBLOCK, opening a pipe would wait for its writer.
    int fd = SK_FAULT() ? (errno = EIO, -1) : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return fail_io(path, "open", errno, st);
    rc = map_fd(&m, fd, path, st);
    (void)close(fd); // a model may have more files than a process may have descriptors
    if (rc == SK_OK) *out = m;
    return rc;
}

void sk_map_close(sk_map *map)
{
    // munmap takes the address without const and does not write through it.
    if (map->bytes) (void)munmap((void *)(uintptr_t)map->bytes, (size_t)map->size);
    *map = (sk_map){0};
}
