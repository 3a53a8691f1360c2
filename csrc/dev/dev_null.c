/* Stands in for dev_cuda.c in a build without CUDA. */
#include "dev/dev.h"

void sk_dev_probe(sk_dev_env *out) { *out = (sk_dev_env){.built = false}; }

sk_code sk_dev_info_get(int32_t index, sk_dev_info *out, sk_status *st)
{
    sk_dev_env env;
    (void)out;
    sk_dev_probe(&env);
    return sk_dev_env_check(&env, index, st);
}
