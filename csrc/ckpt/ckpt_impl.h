/* What a checkpoint is made of. Private to ckpt/. */
#ifndef SK_CKPT_IMPL_H
#define SK_CKPT_IMPL_H

#include "base/text.h"
#include "ckpt/config_json.h"
#include "ckpt/gguf.h"
#include "ckpt/map.h"
#include "ckpt/safetensors.h"
#include "ckpt/synthetic.h"

#define SK_MAX_FILES 10000u // of one model

/* One file with tensors. Its parser's tensors and name index move to the checkpoint. */
typedef struct sk_shard {
    sk_map map; // empty when the bytes are the caller's
    char *path;
    uint64_t size;
    sk_gguf gguf;       // one of the two, by the format of the checkpoint
    sk_safetensors sft; //
} sk_shard;

struct sk_ckpt {
    sk_format format;
    char *path;               // as given
    char label[SK_LABEL_MAX]; // the path as messages show it
    sk_shard *shards;
    size_t n_shards;
    sk_tensor *tensors; // [n_tensors], in the order of the files
    size_t n_tensors;
    sk_index by_name;
    // Hyper-parameters, and where messages say they come from.
    const sk_meta *meta;
    size_t n_meta;
    const sk_index *by_key; // NULL: none
    const char *meta_label;
    const uint8_t *meta_bytes;
    uint64_t meta_size;
    // An index of safetensors files; empty without one.
    sk_weight_map weights;
    char index_label[SK_LABEL_MAX];
    // config.json
    sk_map config_map;
    sk_config_json config;
    char config_label[SK_LABEL_MAX];
    sk_synthetic *synthetic; // NULL: contents are those of files
};

/* Room for `n` shards; ck had none. */
SK_MUST_USE sk_code sk_ckpt_add_shards(sk_ckpt *ck, size_t n, sk_status *st);
/* Maps and parses the file at `path` as shard `at`, in the format of `ck`. */
SK_MUST_USE sk_code sk_shard_open(sk_ckpt *ck, size_t at, const char *path, bool strict,
                                  sk_status *st);
/* `path` up to and with its last '/', then `name`: into a new string. */
SK_MUST_USE sk_code sk_path_beside(char **out, const char *path, const char *name, sk_status *st);
/* A copy of `path`. */
SK_MUST_USE sk_code sk_path_copy(char **out, const char *path, sk_status *st);

static inline sk_tensor *sk_shard_tensors(sk_ckpt *ck, size_t at, uint32_t *n)
{
    sk_shard *s = &ck->shards[at];
    *n = ck->format == SK_FORMAT_GGUF ? s->gguf.n_tensors : s->sft.n_tensors;
    return ck->format == SK_FORMAT_GGUF ? s->gguf.tensors : s->sft.tensors;
}

/* What makes the weights, with their memory (synthetic.c). Accepts NULL. */
void sk_synthetic_drop(sk_synthetic *s);

/* Shard 0 is open: the rest of a split GGUF model, if it is one (split.c). `alone`: there are no
 * other files to be had. */
SK_MUST_USE sk_code sk_split_open(sk_ckpt *ck, bool strict, bool alone, sk_status *st);

/* An index of safetensors files with the files it lists, or a folder (folder.c). */
SK_MUST_USE sk_code sk_index_file_open(sk_ckpt *ck, const char *path, bool strict, sk_status *st);
SK_MUST_USE sk_code sk_folder_open(sk_ckpt *ck, const char *path, bool strict, sk_status *st);
/* config.json beside `path`, if there is one. */
SK_MUST_USE sk_code sk_config_beside(sk_ckpt *ck, const char *path, sk_status *st);
/* After the merge: every tensor is in the file that the index says. */
SK_MUST_USE sk_code sk_index_file_check(const sk_ckpt *ck, sk_status *st);

#endif
