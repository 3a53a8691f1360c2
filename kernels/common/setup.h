/* The families of kernels that have something to set up before the first launch: raised limits,
 * carve-outs. Each defines sk_setup_<name>, which returns 0 or the CUDA error number; sk_k_setup
 * calls them all. A name without a definition is a link error. */
#ifndef SK_SETUP_H
#define SK_SETUP_H

#include <stdint.h>

#define SK_SETUPS(X)                                                                               \
    X(linear)                                                                                      \
    X(experts)                                                                                     \
    X(attend)                                                                                      \
    X(ctl_read)                                                                                    \
    X(commit)                                                                                      \
    X(draft)                                                                                       \
    X(draft_ngram)                                                                                 \
    X(round_rows)                                                                                  \
    X(accept)                                                                                      \
    X(publish)                                                                                     \
    X(round_ends)                                                                                  \
    X(elem)                                                                                        \
    X(norm)                                                                                        \
    X(rope)                                                                                        \
    X(argmax)                                                                                      \
    X(state)                                                                                       \
    X(recurrent)                                                                                   \
    X(streams)                                                                                     \
    X(sparse)                                                                                      \
    X(route)                                                                                       \
    X(hyper)

#ifdef __cplusplus
extern "C" {
#endif

#define SK_SETUP(name) int32_t sk_setup_##name(void);
SK_SETUPS(SK_SETUP)
#undef SK_SETUP

#ifdef __cplusplus
}
#endif

#endif
