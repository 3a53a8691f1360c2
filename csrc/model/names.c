/* See names.h. */
#include "model/names.h"

#include <stdio.h>
#include <string.h>

static const char *const common[][2] = {
    {"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
    {"attn_q_norm", "self_attn.q_norm"}, {"attn_k_norm", "self_attn.k_norm"},
    {"attn_output", "self_attn.o_proj"}, {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},       {NULL, NULL}};

static const char *const gemma3[][2] = {{"attn_norm", "input_layernorm"},
                                        {"attn_q", "self_attn.q_proj"},
                                        {"attn_k", "self_attn.k_proj"},
                                        {"attn_v", "self_attn.v_proj"},
                                        {"attn_q_norm", "self_attn.q_norm"},
                                        {"attn_k_norm", "self_attn.k_norm"},
                                        {"attn_output", "self_attn.o_proj"},
                                        {"post_attention_norm", "post_attention_layernorm"},
                                        {"ffn_norm", "pre_feedforward_layernorm"},
                                        {"ffn_gate", "mlp.gate_proj"},
                                        {"ffn_up", "mlp.up_proj"},
                                        {"ffn_down", "mlp.down_proj"},
                                        {"post_ffw_norm", "post_feedforward_layernorm"},
                                        {NULL, NULL}};

static const sk_hf_arch archs[] = {
    {"llama", "llama", "silu", false, false, 0, common, NULL},
    {"qwen2", "qwen2", "silu", false, false, 0, common, NULL},
    {"qwen3", "qwen3", "silu", false, false, 128, common, NULL},
    {"gemma3_text", "gemma3", "gelu_pytorch_tanh", true, true, 256, gemma3, NULL},
    {"qwen4_exp", "qwen4exp", "silu", false, true, 0, NULL, sk_flash_tensor},
    {"qwen4_exp_text", "qwen4exp", "silu", false, true, 0, NULL, sk_flash_tensor},
};

/* Outside the layers, the same everywhere. */
static const char *const outer[][2] = {{"token_embd.", "model.embed_tokens."},
                                       {"output_norm.", "model.norm."},
                                       {"output.", "lm_head."}};

static const char *const keys[][2] = {
    {"block_count", "num_hidden_layers"},
    {"context_length", "max_position_embeddings"},
    {"embedding_length", "hidden_size"},
    {"feed_forward_length", "intermediate_size"},
    {"attention.head_count", "num_attention_heads"},
    {"attention.head_count_kv", "num_key_value_heads"},
    {"attention.key_length", "head_dim"},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps"},
    {"attention.sliding_window", "sliding_window"},
    {"attention.sliding_window_pattern", "sliding_window_pattern"},
    {"rope.freq_base", "rope_theta"},
    {"rope.freq_base_swa", "rope_local_base_freq"},
    {"final_logit_softcapping", "final_logit_softcapping"},
    {"expert_count", "num_local_experts"},
    {"vocab_size", "vocab_size"},
    {"expert_used_count", "num_experts_per_tok"},
    {"expert_feed_forward_length", "moe_intermediate_size"},
    {"expert_shared_feed_forward_length", "shared_expert_intermediate_size"},
    {"ssm.conv_kernel", "linear_conv_kernel_dim"},
    {"ssm.state_size", "linear_key_head_dim"},
    {"ssm.group_count", "linear_num_key_heads"},
    {"ssm.time_step_rank", "linear_num_value_heads"},
    {"hyper_connection.count", "hc_count"},
    {"hyper_connection.low_rank", "hc_lowrank"},
    {"attention.indexer.head_count", "indexer_n_heads"},
    {"attention.indexer.key_length", "indexer_head_dim"},
    {"attention.indexer.top_k", "indexer_budget"},
    {"ple.ngram_size", "ngram_size"},
    {"ple.heads_per_ngram", "heads_per_ngram"},
    {"ple.conv_kernel", "ple_conv_kernel_size"},
    {"nextn_predict_layers", "mtp_num_hidden_layers"},
};

const sk_hf_arch *sk_hf_arch_find(const char *model_type, size_t n)
{
    for (size_t i = 0; i < SK_COUNT(archs); i++)
        if (strlen(archs[i].model_type) == n && memcmp(archs[i].model_type, model_type, n) == 0)
            return &archs[i];
    return NULL;
}

static bool hf_layer(const sk_hf_arch *arch, const char *gguf, char out[SK_TENSOR_NAME_MAX])
{
    const char *number = gguf + 4; // behind "blk."
    const char *part = strchr(number, '.');
    const char *rest = part ? strchr(part + 1, '.') : NULL;
    size_t n;
    if (!rest) return false;
    part++;
    n = (size_t)(rest - part);
    for (size_t i = 0; arch->parts[i][0]; i++) {
        if (strlen(arch->parts[i][0]) != n || memcmp(arch->parts[i][0], part, n) != 0) continue;
        (void)snprintf(out, SK_TENSOR_NAME_MAX, "model.layers.%.*s.%s%s", (int)(part - 1 - number),
                       number, arch->parts[i][1], rest);
        return true;
    }
    return false;
}

bool sk_hf_tensor(const sk_hf_arch *arch, const char *gguf, int32_t draft,
                  char out[SK_TENSOR_NAME_MAX])
{
    if (arch->tensor) return arch->tensor(gguf, draft, out);
    if (strncmp(gguf, "blk.", 4) == 0) return hf_layer(arch, gguf, out);
    for (size_t i = 0; i < SK_COUNT(outer); i++) {
        size_t n = strlen(outer[i][0]);
        if (strncmp(gguf, outer[i][0], n) != 0) continue;
        (void)snprintf(out, SK_TENSOR_NAME_MAX, "%s%s", outer[i][1], gguf + n);
        return true;
    }
    return false;
}

const char *sk_hf_key(const char *rest)
{
    for (size_t i = 0; i < SK_COUNT(keys); i++)
        if (strcmp(keys[i][0], rest) == 0) return keys[i][1];
    return NULL;
}
