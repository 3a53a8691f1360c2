/* See ckpt.h: finds the files of a checkpoint, has each parsed, and joins what they hold. */
#include "ckpt/ckpt.h"

#include "ckpt/ckpt_impl.h"

#include "base/mem.h"

#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

/* ---- paths ----------------------------------------------------------------------------------- */

sk_code sk_path_copy(char **out, const char *path, sk_status *st)
{
    size_t room = strlen(path) + 1;
    void *copy = NULL;
    SK_TRY(sk_mem_new(&copy, room, 1, "a path", st));
    memcpy(copy, path, room);
    *out = copy;
    return SK_OK;
}

sk_code sk_path_beside(char **out, const char *path, const char *name, sk_status *st)
{
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) + 1 : 0;
    size_t n_name = strlen(name);
    void *joined = NULL;
    SK_TRY(sk_mem_new(&joined, n + n_name + 1, 1, "a path", st));
    *out = joined;
    memcpy(*out, path, n);
    memcpy(*out + n, name, n_name + 1);
    return SK_OK;
}

static bool ends_in(const char *path, const char *end)
{
    size_t n = strlen(path);
    size_t n_end = strlen(end);
    return n >= n_end && strcmp(path + n - n_end, end) == 0;
}

static bool is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* ---- one file -------------------------------------------------------------------------------- */

static sk_code parse_shard(sk_ckpt *ck, size_t at, const uint8_t *bytes, uint64_t size, bool strict,
                           sk_status *st)
{
    sk_shard *s = &ck->shards[at];
    uint32_t n;
    sk_tensor *tensors;
    s->size = size;
    if (ck->format == SK_FORMAT_GGUF)
        SK_TRY(sk_gguf_init(&s->gguf, bytes, size, s->path, strict, st));
    else
        SK_TRY(sk_safetensors_init(&s->sft, bytes, size, s->path, strict, st));
    tensors = sk_shard_tensors(ck, at, &n);
    for (uint32_t i = 0; i < n; i++) tensors[i].file = (uint32_t)at;
    return SK_OK;
}

sk_code sk_shard_open(sk_ckpt *ck, size_t at, const char *path, bool strict, sk_status *st)
{
    sk_shard *s = &ck->shards[at];
    SK_TRY(sk_path_copy(&s->path, path, st));
    SK_TRY(sk_map_open(&s->map, path, st));
    return parse_shard(ck, at, s->map.bytes, s->map.size, strict, st);
}

sk_code sk_ckpt_add_shards(sk_ckpt *ck, size_t n, sk_status *st)
{
    void *shards = NULL;
    SK_TRY(sk_mem_new(&shards, n, sizeof(sk_shard), "the files of a checkpoint", st));
    if (ck->n_shards) memcpy(shards, ck->shards, ck->n_shards * sizeof(sk_shard));
    sk_mem_free(ck->shards);
    ck->shards = shards;
    ck->n_shards = n;
    if (ck->format == SK_FORMAT_GGUF && ck->by_key) ck->by_key = &ck->shards[0].gguf.by_key;
    return SK_OK;
}

/* ---- joining --------------------------------------------------------------------------------- */

/* The tensors of the only file become those of the checkpoint. */
static void adopt(sk_ckpt *ck)
{
    sk_shard *s = &ck->shards[0];
    bool gguf = ck->format == SK_FORMAT_GGUF;
    sk_tensor **tensors = gguf ? &s->gguf.tensors : &s->sft.tensors;
    sk_index *by_name = gguf ? &s->gguf.by_name : &s->sft.by_name;
    ck->tensors = *tensors;
    ck->n_tensors = gguf ? s->gguf.n_tensors : s->sft.n_tensors;
    ck->by_name = *by_name;
    *tensors = NULL;
    *by_name = (sk_index){0};
}

static sk_code check_names_differ(const sk_ckpt *ck, sk_status *st)
{
    char quoted[SK_QUOTE_MAX];
    char label[SK_LABEL_MAX];
    const sk_tensor *x;
    uint32_t a;
    uint32_t b;
    if (!sk_index_find_twins(&ck->by_name, &a, &b)) return SK_OK;
    x = &ck->tensors[b];
    return SK_FAIL_CHECK(st, SK_FORMAT, "DUPLICATE_TENSOR", 0,
                         "%s: tensor %s: expected it in one file, found it in file %" PRIu32 " too",
                         sk_quote_path(label, sizeof label, ck->shards[x->file].path),
                         sk_quote(quoted, sizeof quoted, x->name.p, x->name.n),
                         ck->tensors[a].file + 1);
}

static sk_code join_shards(sk_ckpt *ck, sk_status *st)
{
    void *tensors = NULL;
    uint64_t total = 0;
    uint32_t n;
    if (ck->n_shards == 1) {
        adopt(ck);
        return SK_OK;
    }
    for (size_t i = 0; i < ck->n_shards; i++) {
        (void)sk_shard_tensors(ck, i, &n);
        total += n;
    }
    if (total > UINT32_MAX)
        return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_COUNT", 0,
                             "%s: expected fewer than 2^32 tensors, found %" PRIu64, ck->label,
                             total);
    SK_TRY(sk_mem_new(&tensors, (size_t)total, sizeof(sk_tensor), "the tensor index", st));
    ck->tensors = tensors;
    for (size_t i = 0; i < ck->n_shards; i++) {
        const sk_tensor *part = sk_shard_tensors(ck, i, &n);
        if (n) memcpy(ck->tensors + ck->n_tensors, part, n * sizeof(sk_tensor));
        ck->n_tensors += n;
    }
    SK_TRY(sk_index_init(&ck->by_name, ck->tensors, sizeof(sk_tensor), (uint32_t)total,
                         "the tensor index", st));
    return check_names_differ(ck, st);
}

/* ---- opening --------------------------------------------------------------------------------- */

static sk_code make(sk_ckpt **out, const char *path, sk_status *st)
{
    void *p = NULL;
    sk_ckpt *ck;
    SK_TRY(sk_mem_new(&p, 1, sizeof(sk_ckpt), "a checkpoint", st));
    ck = p;
    if (sk_path_copy(&ck->path, path, st) != SK_OK) {
        sk_mem_free(ck);
        return SK_NOMEM;
    }
    (void)sk_quote_path(ck->label, sizeof ck->label, path);
    ck->meta_label = ck->label;
    ck->format = ends_in(path, ".safetensors") ? SK_FORMAT_SAFETENSORS : SK_FORMAT_GGUF;
    *out = ck;
    return SK_OK;
}

/* The metadata of shard 0, and the other shards. */
static sk_code finish_gguf(sk_ckpt *ck, bool strict, bool alone, sk_status *st)
{
    const sk_gguf *g = &ck->shards[0].gguf;
    ck->meta = g->meta;
    ck->n_meta = g->n_meta;
    ck->by_key = &g->by_key;
    ck->meta_bytes = g->bytes;
    ck->meta_size = g->size;
    return sk_split_open(ck, strict, alone, st);
}

static sk_code open_path(sk_ckpt *ck, bool strict, sk_status *st)
{
    if (is_folder(ck->path)) {
        ck->format = SK_FORMAT_SAFETENSORS;
        SK_TRY(sk_folder_open(ck, ck->path, strict, st));
    } else if (ends_in(ck->path, ".json")) {
        ck->format = SK_FORMAT_SAFETENSORS;
        SK_TRY(sk_index_file_open(ck, ck->path, strict, st));
        SK_TRY(sk_config_beside(ck, ck->path, st));
    } else {
        SK_TRY(sk_ckpt_add_shards(ck, 1, st));
        SK_TRY(sk_shard_open(ck, 0, ck->path, strict, st));
        SK_TRY(ck->format == SK_FORMAT_GGUF ? finish_gguf(ck, strict, false, st)
                                            : sk_config_beside(ck, ck->path, st));
    }
    SK_TRY(join_shards(ck, st));
    return ck->weights.n ? sk_index_file_check(ck, st) : SK_OK;
}

static sk_code open_bytes(sk_ckpt *ck, const uint8_t *bytes, uint64_t size, bool strict,
                          sk_status *st)
{
    SK_TRY(sk_ckpt_add_shards(ck, 1, st));
    SK_TRY(sk_path_copy(&ck->shards[0].path, ck->path, st));
    SK_TRY(parse_shard(ck, 0, bytes, size, strict, st));
    if (ck->format == SK_FORMAT_GGUF) SK_TRY(finish_gguf(ck, strict, true, st));
    return join_shards(ck, st);
}

sk_code sk_ckpt_open(sk_ckpt **out, const char *path, bool strict, sk_status *st)
{
    sk_ckpt *ck = NULL;
    sk_code rc;
    SK_TRY(make(&ck, path, st));
    rc = open_path(ck, strict, st);
    if (rc != SK_OK) {
        sk_ckpt_close(ck);
        return rc;
    }
    *out = ck;
    return SK_OK;
}

sk_code sk_ckpt_open_bytes(sk_ckpt **out, const uint8_t *bytes, uint64_t size, const char *label,
                           bool strict, sk_status *st)
{
    sk_ckpt *ck = NULL;
    sk_code rc;
    SK_TRY(make(&ck, label, st));
    rc = open_bytes(ck, bytes, size, strict, st);
    if (rc != SK_OK) {
        sk_ckpt_close(ck);
        return rc;
    }
    *out = ck;
    return SK_OK;
}

void sk_ckpt_close(sk_ckpt *ck)
{
    if (!ck) return;
    for (size_t i = 0; i < ck->n_shards; i++) {
        sk_gguf_fini(&ck->shards[i].gguf);
        sk_safetensors_fini(&ck->shards[i].sft);
        sk_map_close(&ck->shards[i].map);
        sk_mem_free(ck->shards[i].path);
    }
    sk_mem_free(ck->shards);
    sk_mem_free(ck->tensors);
    sk_index_fini(&ck->by_name);
    sk_weight_map_fini(&ck->weights);
    sk_config_json_fini(&ck->config);
    sk_map_close(&ck->config_map);
    sk_synthetic_drop(ck->synthetic);
    sk_mem_free(ck->path);
    sk_mem_free(ck);
}

/* ---- what is in it --------------------------------------------------------------------------- */

const char *sk_ckpt_path(const sk_ckpt *ck) { return ck->path; }

sk_format sk_ckpt_format(const sk_ckpt *ck) { return ck->format; }

const char *sk_format_name(sk_format format)
{
    return format == SK_FORMAT_GGUF ? "gguf" : "safetensors";
}

uint64_t sk_ckpt_file_bytes(const sk_ckpt *ck)
{
    uint64_t n = 0;
    for (size_t i = 0; i < ck->n_shards; i++) n += ck->shards[i].size;
    return n;
}

uint32_t sk_ckpt_version(const sk_ckpt *ck) { return ck->shards[0].gguf.version; }

uint64_t sk_ckpt_alignment(const sk_ckpt *ck)
{
    return ck->format == SK_FORMAT_GGUF ? ck->shards[0].gguf.alignment : 1;
}

size_t sk_ckpt_n_files(const sk_ckpt *ck) { return ck->n_shards; }

const char *sk_ckpt_file_path(const sk_ckpt *ck, size_t at)
{
    return at < ck->n_shards ? ck->shards[at].path : NULL;
}

uint64_t sk_ckpt_file_size(const sk_ckpt *ck, size_t at)
{
    return at < ck->n_shards ? ck->shards[at].size : 0;
}

const uint8_t *sk_ckpt_config(const sk_ckpt *ck, uint64_t *n)
{
    *n = ck->config.size;
    return ck->config.bytes;
}

size_t sk_ckpt_n_notes(const sk_ckpt *ck)
{
    size_t n = 0;
    for (size_t i = 0; i < ck->n_shards; i++) n += ck->shards[i].sft.n_meta;
    return n;
}

const sk_meta *sk_ckpt_note(const sk_ckpt *ck, size_t at)
{
    for (size_t i = 0; i < ck->n_shards; i++) {
        if (at < ck->shards[i].sft.n_meta) return &ck->shards[i].sft.meta[at];
        at -= ck->shards[i].sft.n_meta;
    }
    return NULL;
}

size_t sk_ckpt_n_tensors(const sk_ckpt *ck) { return ck->n_tensors; }

const sk_tensor *sk_ckpt_tensor(const sk_ckpt *ck, size_t at)
{
    return at < ck->n_tensors ? &ck->tensors[at] : NULL;
}

const sk_tensor *sk_ckpt_find_tensor(const sk_ckpt *ck, const char *name)
{
    return sk_index_find(&ck->by_name, name, strlen(name));
}
