/* Folders as Hugging Face lays them out: an index with shards, or one file; config.json beside
 * them. File names come from the index, and never lead out of its folder. */
#include "ckpt/ckpt_impl.h"

#include "base/mem.h"
#include "base/order.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

static bool is_file(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && !S_ISDIR(info.st_mode);
}

sk_code sk_config_beside(sk_ckpt *ck, const char *path, sk_status *st)
{
    char *config = NULL;
    sk_code rc = SK_OK;
    SK_TRY(sk_path_beside(&config, path, "config.json", st));
    if (is_file(config)) {
        (void)sk_quote_path(ck->config_label, sizeof ck->config_label, config);
        rc = sk_map_open(&ck->config_map, config, st);
        if (rc == SK_OK)
            rc = sk_config_json_init(&ck->config, ck->config_map.bytes, ck->config_map.size, config,
                                     st);
    }
    sk_mem_free(config);
    SK_TRY(rc);
    if (!ck->config.bytes) return SK_OK;
    ck->meta = ck->config.meta;
    ck->n_meta = ck->config.n_meta;
    ck->by_key = &ck->config.by_key;
    ck->meta_label = ck->config_label;
    ck->meta_bytes = ck->config.bytes;
    ck->meta_size = ck->config.size;
    return SK_OK;
}

/* ---- an index -------------------------------------------------------------------------------- */

static int compare(sk_str a, sk_str b)
{
    size_t n = (size_t)(a.n < b.n ? a.n : b.n);
    int order = n ? memcmp(a.p, b.p, n) : 0;
    if (order != 0) return order;
    return a.n < b.n ? -1 : a.n > b.n;
}

static bool file_less(const void *items, uint32_t a, uint32_t b)
{
    const sk_mapped *m = items;
    return compare(m[a].file, m[b].file) < 0;
}

static bool new_file(const sk_weight_map *map, const uint32_t *order, uint32_t i)
{
    return i == 0 || compare(map->items[order[i]].file, map->items[order[i - 1]].file) != 0;
}

static sk_code open_files(sk_ckpt *ck, const char *path, const sk_weight_map *map,
                          const uint32_t *order, bool strict, sk_status *st)
{
    size_t n = 0;
    for (uint32_t i = 0; i < map->n; i++) n += new_file(map, order, i);
    if (n > SK_MAX_FILES)
        return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_INDEX", 0,
                             "%s: weight_map: expected at most %u files, found %zu", ck->label,
                             SK_MAX_FILES, n);
    SK_TRY(sk_ckpt_add_shards(ck, n, st));
    n = 0;
    for (uint32_t i = 0; i < map->n; i++) {
        char name[256];
        char *shard = NULL;
        const sk_str file = map->items[order[i]].file; // at most 255 bytes
        sk_code rc;
        if (!new_file(map, order, i)) continue;
        memcpy(name, file.p, (size_t)file.n);
        name[file.n] = 0;
        SK_TRY(sk_path_beside(&shard, path, name, st));
        rc = sk_shard_open(ck, n++, shard, strict, st);
        sk_mem_free(shard);
        SK_TRY(rc);
    }
    return SK_OK;
}

sk_code sk_index_file_open(sk_ckpt *ck, const char *path, bool strict, sk_status *st)
{
    sk_map file = {0};
    uint32_t *order = NULL;
    sk_code rc = sk_map_open(&file, path, st);
    if (rc == SK_OK) rc = sk_weight_map_init(&ck->weights, file.bytes, file.size, path, st);
    sk_map_close(&file); // the map has its own copy of all names
    SK_TRY(rc);
    (void)sk_quote_path(ck->index_label, sizeof ck->index_label, path);
    SK_TRY(sk_order_make(&order, ck->weights.n, file_less, ck->weights.items, "the order of files",
                         st));
    rc = open_files(ck, path, &ck->weights, order, strict, st);
    sk_mem_free(order);
    return rc;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

sk_code sk_index_file_check(const sk_ckpt *ck, sk_status *st)
{
    const sk_weight_map *map = &ck->weights;
    const char *label = ck->index_label;
    char quoted[SK_QUOTE_MAX];
    char file[SK_QUOTE_MAX];
    for (uint32_t i = 0; i < map->n; i++) {
        const sk_mapped *m = &map->items[i];
        const sk_tensor *t = sk_index_find(&ck->by_name, m->name.p, m->name.n);
        const char *found = t ? base_name(ck->shards[t->file].path) : NULL;
        if (!t)
            return SK_FAIL_CHECK(st, SK_FORMAT, "MISSING_TENSOR", 0,
                                 "%s: tensor %s: expected it in file %s, found it nowhere", label,
                                 sk_quote(quoted, sizeof quoted, m->name.p, m->name.n),
                                 sk_quote(file, sizeof file, m->file.p, m->file.n));
        if (strlen(found) != m->file.n || memcmp(found, m->file.p, (size_t)m->file.n) != 0)
            return SK_FAIL_CHECK(st, SK_FORMAT, "WRONG_FILE", 0,
                                 "%s: tensor %s: expected it in file %s, found it in %.80s", label,
                                 sk_quote(quoted, sizeof quoted, m->name.p, m->name.n),
                                 sk_quote(file, sizeof file, m->file.p, m->file.n), found);
    }
    for (size_t i = 0; i < ck->n_tensors; i++) {
        const sk_tensor *t = &ck->tensors[i];
        if (sk_index_find(&map->by_name, t->name.p, t->name.n)) continue;
        return SK_FAIL_CHECK(st, SK_FORMAT, "UNEXPECTED_TENSOR", 0,
                             "%s: tensor %s: expected the tensors of the index, found this one in "
                             "%.80s too",
                             label, sk_quote(quoted, sizeof quoted, t->name.p, t->name.n),
                             base_name(ck->shards[t->file].path));
    }
    return SK_OK;
}

/* ---- a folder -------------------------------------------------------------------------------- */

/* Beside model.safetensors a draft head may lie in a file of its own. */
static sk_code open_inside(sk_ckpt *ck, const char *folder, bool strict, sk_status *st)
{
    char *path = NULL, *draft = NULL;
    bool two;
    sk_code rc;
    SK_TRY(sk_path_beside(&path, folder, "model.safetensors.index.json", st));
    if (is_file(path)) {
        rc = sk_index_file_open(ck, path, strict, st);
        sk_mem_free(path);
        return rc;
    }
    sk_mem_free(path);
    SK_TRY(sk_path_beside(&path, folder, "model.safetensors", st));
    if (!is_file(path)) {
        sk_mem_free(path);
        return SK_FAIL_CHECK(st, SK_IO, "IO", 0,
                             "%s: expected model.safetensors.index.json or model.safetensors in "
                             "the folder, found neither",
                             ck->label);
    }
    rc = sk_path_beside(&draft, folder, "mtp.safetensors", st);
    two = rc == SK_OK && is_file(draft);
    if (rc == SK_OK) rc = sk_ckpt_add_shards(ck, two ? 2 : 1, st);
    if (rc == SK_OK) rc = sk_shard_open(ck, 0, path, strict, st);
    if (rc == SK_OK && two) rc = sk_shard_open(ck, 1, draft, strict, st);
    sk_mem_free(draft);
    sk_mem_free(path);
    return rc;
}

sk_code sk_folder_open(sk_ckpt *ck, const char *path, bool strict, sk_status *st)
{
    char *folder = NULL; // with a '/' at its end
    sk_code rc;
    size_t n = strlen(path);
    SK_TRY(sk_mem_new((void **)&folder, n + 2, 1, "a path", st));
    memcpy(folder, path, n);
    folder[n] = '/';
    rc = open_inside(ck, folder, strict, st);
    if (rc == SK_OK) rc = sk_config_beside(ck, folder, st);
    sk_mem_free(folder);
    return rc;
}
