/* See keys.h. */
#include "model/keys.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char *sk_keys_hf(sk_keys *k, const char *member)
{
    if (!k->within[0]) return member;
    (void)snprintf(k->name, sizeof k->name, "%s%s", k->within, member);
    return k->name;
}

const char *sk_keys_name(sk_keys *k, const char *rest)
{
    const char *hf = k->hf ? sk_hf_key(rest) : NULL;
    if (hf) return sk_keys_hf(k, hf);
    (void)snprintf(k->name, sizeof k->name, "%s.%s", k->arch, rest);
    return k->name;
}

sk_code sk_keys_bad(sk_keys *k, const char *rest, const char *expected, double found)
{
    return SK_FAIL_CHECK(k->st, SK_FORMAT, "BAD_HPARAM", 0, "%s: %s: expected %s, found %.10g",
                         sk_ckpt_path(k->ck), sk_keys_name(k, rest), expected, found);
}

sk_code sk_keys_dim(sk_keys *k, const char *rest, uint64_t max, int32_t fallback, int32_t *out)
{
    uint64_t x = 0;
    bool found = false;
    char expected[48];
    if (fallback > 0)
        SK_TRY(sk_meta_find_u64(k->ck, sk_keys_name(k, rest), UINT64_MAX, &x, &found, k->st));
    else {
        SK_TRY(sk_meta_need_u64(k->ck, sk_keys_name(k, rest), UINT64_MAX, &x, k->st));
        found = true;
    }
    if (!found) {
        *out = fallback;
        return SK_OK;
    }
    (void)snprintf(expected, sizeof expected, "1 .. %llu", (unsigned long long)max);
    if (x < 1 || x > max) return sk_keys_bad(k, rest, expected, (double)x);
    *out = (int32_t)x;
    return SK_OK;
}

sk_code sk_keys_positive(sk_keys *k, const char *rest, double fallback, float *out)
{
    double x = fallback;
    bool found = false;
    if (fallback > 0)
        SK_TRY(sk_meta_find_f64(k->ck, sk_keys_name(k, rest), &x, &found, k->st));
    else
        SK_TRY(sk_meta_need_f64(k->ck, sk_keys_name(k, rest), &x, k->st));
    if (!isfinite(x) || x <= 0 || !isfinite((float)x) || (float)x <= 0)
        return sk_keys_bad(k, rest, "a finite number above 0", x);
    *out = (float)x;
    return SK_OK;
}

bool sk_str_is(sk_str s, const char *text)
{
    return s.n == strlen(text) && memcmp(s.p, text, s.n) == 0;
}
