/* What Hugging Face folders of qwen4_exp call the tensors of flash_next. Beside the names of GGUF
 * files there are three for what those split or join: indexer.qk_proj (q_proj and k_proj in one),
 * expert.<e>.{gate,up,down} (experts one by one), and ffn_gate_up_exps, which GGUF has too. */
#include "model/names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HYPER(gguf, hf)                                                                            \
    {gguf "_norm.weight", hf ".hc_norm.weight"},                                                   \
        {gguf "_down.weight", hf ".input_mix_weight_down.weight"},                                 \
    {                                                                                              \
        gguf "_up.weight", hf ".input_mix_weight_up.weight"                                        \
    }

typedef const char *const pair[2];

/* Of a block. */
static pair parts[] = {
    HYPER("hc_attn", "attn_hyper_connection"),
    {"hc_attn_inject.weight", "attn_hyper_connection.block_inject_weight.weight"},
    HYPER("hc_ffn", "mlp_hyper_connection"),
    {"hc_ffn_inject.weight", "mlp_hyper_connection.block_inject_weight.weight"},
    {"ffn_gate_inp.weight", "mlp.gate.weight"},
    {"ffn_gate_up_exps.weight", "mlp.experts.gate_up_proj"},
    {"ffn_down_exps.weight", "mlp.experts.down_proj"},
    {"ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight"},
    {"ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight"},
    {"ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight"},
    {"ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight"},
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"attn_q_norm.weight", "self_attn.q_norm.weight"},
    {"attn_k_norm.weight", "self_attn.k_norm.weight"},
    {"indexer.qk_proj.weight", "self_attn.indexer.index_qk_proj.weight"},
    {"indexer.q_norm.weight", "self_attn.indexer.q_layernorm.weight"},
    {"indexer.k_norm.weight", "self_attn.indexer.k_layernorm.weight"},
    {"attn_qkv.weight", "linear_attn.in_proj_qkv.weight"},
    {"attn_gate.weight", "linear_attn.in_proj_z.weight"},
    {"ssm_beta.weight", "linear_attn.in_proj_b.weight"},
    {"ssm_alpha.weight", "linear_attn.in_proj_a.weight"},
    {"ssm_conv1d.weight", "linear_attn.conv1d.weight"},
    {"ssm_a", "linear_attn.A_log"},
    {"ssm_dt.bias", "linear_attn.dt_bias"},
    {"ssm_norm.weight", "linear_attn.norm.weight"},
    {"ssm_out.weight", "linear_attn.out_proj.weight"},
    {"ple_key.weight", "ple.key_proj.weight"},
    {"ple_value.weight", "ple.value_proj.weight"},
    {"ple_norm_key.weight", "ple.norm_key.weight"},
    {"ple_norm_query.weight", "ple.norm_query.weight"},
    {"ple_norm_conv.weight", "ple.norm_conv.weight"},
    {"ple_conv1d.weight", "ple.conv1d.weight"},
    {"ple_multipliers", "ple.ple_embedding.layer_multipliers"},
    {"ple_sizes", "ple.ple_embedding.ngram_heads_vocab_sizes"},
    {"ple_offsets", "ple.ple_embedding.ngram_heads_offsets"},
};

/* Of the draft head, behind "mtp.". */
static pair heads[] = {
    {"nextn.enorm.weight", "pre_fc_norm_embedding.weight"},
    {"nextn.hnorm.weight", "pre_fc_norm_hidden.weight"},
    {"nextn.fc_embd.weight", "fc_embedding.weight"},
    {"nextn.fc_hidden.weight", "fc_hidden.weight"},
    HYPER("nextn.hc", "hyper_connection_mixer"),
};

static pair outer[] = {
    {"token_embd.weight", "model.embed_tokens.weight"},
    {"output.weight", "lm_head.weight"},
    HYPER("output_hc", "model.hyper_connection_mixer"),
};

static const char *find(const pair *table, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(table[i][0], name) == 0) return table[i][1];
    return NULL;
}

/* "expert.3.gate.weight", "ple_shard.12.weight" */
static bool numbered(const char *part, char out[96])
{
    const char *expert = strncmp(part, "expert.", 7) == 0 ? part + 7 : NULL;
    const char *shard = strncmp(part, "ple_shard.", 10) == 0 ? part + 10 : NULL;
    char *rest;
    long number;
    if (!expert && !shard) return false;
    number = strtol(expert ? expert : shard, &rest, 10);
    if (*rest != '.' || (expert && !strchr(rest + 1, '.'))) return false;
    if (shard)
        (void)snprintf(out, 96, "ple.ple_embedding.ngram_embedding.shard_%ld%.40s", number, rest);
    else
        (void)snprintf(out, 96, "mlp.experts.%ld.%.*s_proj%.40s", number,
                       (int)strcspn(rest + 1, "."), rest + 1, strchr(rest + 1, '.'));
    return true;
}

bool sk_flash_tensor(const char *gguf, int32_t draft, char out[SK_TENSOR_NAME_MAX])
{
    const char *hf, *part;
    char text[96];
    char *rest;
    long block;
    if (strncmp(gguf, "blk.", 4) != 0) {
        hf = find(outer, SK_COUNT(outer), gguf);
        if (hf) (void)snprintf(out, SK_TENSOR_NAME_MAX, "%s", hf);
        return hf != NULL;
    }
    block = strtol(gguf + 4, &rest, 10);
    if (*rest != '.') return false;
    part = rest + 1;
    hf = find(parts, SK_COUNT(parts), part);
    if (!hf && numbered(part, text)) hf = text;
    if (hf && block == draft)
        (void)snprintf(out, SK_TENSOR_NAME_MAX, "mtp.layers.0.%s", hf);
    else if (hf)
        (void)snprintf(out, SK_TENSOR_NAME_MAX, "model.layers.%ld.%s", block, hf);
    if (hf || block != draft) return hf != NULL;
    hf = find(heads, SK_COUNT(heads), part);
    if (hf) (void)snprintf(out, SK_TENSOR_NAME_MAX, "mtp.%s", hf);
    return hf != NULL;
}
