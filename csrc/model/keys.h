/* Reading hyper-parameters by the names of GGUF, whatever the checkpoint's own are. What model/'s
 * configuration files share. */
#ifndef SK_KEYS_H
#define SK_KEYS_H

#include "model/names.h"

typedef struct sk_keys {
    const sk_ckpt *ck;
    const char *arch;
    const sk_hf_arch *hf; // NULL: a GGUF file
    const char *within;   // config.json: member that has the text model's, with a dot, or ""
    sk_status *st;
    char name[128];
} sk_keys;

bool sk_str_is(sk_str s, const char *text);

/* The checkpoint's name of "<architecture>.<rest>". A GGUF name without a counterpart stays as it
 * is, which no config.json has. Valid until the next call. */
const char *sk_keys_name(sk_keys *k, const char *rest);
/* The member of config.json by its own name. Valid as above. */
const char *sk_keys_hf(sk_keys *k, const char *member);

/* FORMAT with check BAD_HPARAM: "path: key: expected ..., found 3". */
sk_code sk_keys_bad(sk_keys *k, const char *rest, const char *expected, double found);

/* An integer in [1, max]; `fallback` > 0 stands in for an absent key. */
SK_MUST_USE sk_code sk_keys_dim(sk_keys *k, const char *rest, uint64_t max, int32_t fallback,
                                int32_t *out);
/* A finite number > 0; `fallback` > 0 stands in for an absent key. */
SK_MUST_USE sk_code sk_keys_positive(sk_keys *k, const char *rest, double fallback, float *out);

#endif
