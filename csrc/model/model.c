/* The table of architectures, and the calls that go through it. */
#include "model/model.h"

#include "base/mem.h"

#include <string.h>

static const sk_arch *const archs[] = {&sk_arch_llama, &sk_arch_qwen2, &sk_arch_qwen3,
                                       &sk_arch_gemma3, &sk_arch_flash_next};

const char *sk_model_archs(void) { return "llama, qwen2, qwen3, gemma3, qwen4exp"; }

sk_code sk_model_open(sk_model **out, const sk_ckpt *ck, sk_space *space, const char *prefix,
                      const sk_state_size *size, sk_status *st)
{
    sk_model *m = NULL;
    const sk_arch *arch = NULL;
    const sk_hf_arch *hf;
    char name[32];
    sk_code rc;
    SK_TRY(sk_config_arch(ck, name, &hf, st));
    for (size_t i = 0; i < SK_COUNT(archs); i++)
        if (strcmp(archs[i]->name, name) == 0) arch = archs[i];
    if (!arch)
        return SK_FAIL(st, SK_UNSUPPORTED, "%s: general.architecture: expected one of %s, found %s",
                       sk_ckpt_path(ck), sk_model_archs(), name);
    SK_TRY(sk_mem_new((void **)&m, 1, sizeof *m, "model", st));
    m->arch = arch;
    rc = sk_config_read(ck, &m->config, st);
    if (rc == SK_OK) rc = arch->open(m, ck, space, prefix, size, st);
    if (rc != SK_OK) {
        sk_model_close(m);
        return rc;
    }
    *out = m;
    return SK_OK;
}

void sk_model_close(sk_model *m)
{
    if (!m) return;
    if (m->self) m->arch->close(m);
    sk_mem_free(m);
}

const sk_config *sk_model_config(const sk_model *m) { return &m->config; }

sk_code sk_model_force(sk_model *m, const sk_forced *f, sk_space *space, const char *prefix,
                       sk_status *st)
{
    if (m->arch->force) return m->arch->force(m, f, space, prefix, st);
    return SK_FAIL(st, SK_UNSUPPORTED, "forced routing: expected a mixture of experts, found %s",
                   m->config.arch);
}

sk_view sk_model_trunk(const sk_model *m, sk_builder *b, const sk_trunk *t)
{
    return m->arch->trunk(m, b, t);
}

void sk_model_commit(const sk_model *m, sk_builder *b, sk_view kept)
{
    if (m->arch->commit) m->arch->commit(m, b, kept);
}

sk_view sk_model_head(const sk_model *m, sk_builder *b, sk_view x)
{
    return m->arch->head(m, b, x);
}

sk_view sk_model_head_argmax(const sk_model *m, sk_builder *b, sk_view x)
{
    return m->arch->head_argmax(m, b, x);
}
