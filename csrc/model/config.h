/* Hyper-parameters of a checkpoint, read once and range-checked. Nothing about a released model is
 * assumed: whatever the arithmetic depends on comes from the file. */
#ifndef SK_CONFIG_H
#define SK_CONFIG_H

#include "model/keys.h"

/* Caps that no sane checkpoint reaches; they bound every later product of dimensions. */
#define SK_MAX_LAYERS 4096
#define SK_MAX_DIM    (1 << 20)
#define SK_MAX_VOCAB  (1 << 24)
#define SK_MAX_CTX    (1 << 24)

/* What hybrid models have beside the rest; n_stream 0: it is none. */
typedef struct sk_hybrid {
    uint8_t sparse[SK_MAX_LAYERS]; // 1: block-sparse attention, 0: recurrence
    int32_t n_stream, low_rank;    // hyper-connections: S streams, R
    // Block-sparse attention: heads of the index, tokens of a block, blocks that a row attends to.
    int32_t index_heads, index_dim, ratio, blocks;
    // Recurrence: heads of keys and of values, their widths, taps of the convolution.
    int32_t key_heads, value_heads, key_dim, value_dim, taps;
    int32_t n_expert, n_used, ffn_expert, ffn_shared;
    bool norm_topk; // weights of the chosen experts add up to 1
    // Hashed embedding; ple_layer -1: there is none. Orders 2 .. ngram, heads of each, their width.
    int32_t ple_layer, ngram, heads_per_ngram, ple_dim, ple_taps, ple_eos;
    int32_t n_draft_layer; // blocks behind the model's own that draft
} sk_hybrid;

typedef struct sk_config {
    char arch[32];
    int32_t n_layer;
    int32_t dim;   // H
    int32_t width; // of the residual: H, or S * H
    int32_t n_head, n_kv, head_dim;
    int32_t ffn; // F
    int32_t vocab;
    int32_t ctx_train; // the longest context that the model was made for
    int32_t n_rot;     // rotated dimensions of a head
    float rms_eps;
    float rope_base;
    float rope_scale; // factor on positions: 1 / rope.scaling.factor
    float attn_scale; // factor on q k^T
    // Sliding windows (gemma3): layer i slides unless i % window_pattern == window_pattern - 1.
    int32_t window, window_pattern;
    float rope_base_local; // rotary base of the layers that slide
    // Rotary factors that a file states by rule ("llama3"); llama3_factor 0: it does not.
    float llama3_factor, llama3_low, llama3_high;
    int32_t llama3_ctx;
    const sk_hf_arch *hf; // NULL: a GGUF file
    bool tied;            // Hugging Face: the head is the embedding, whatever the files hold
    bool attn_bias;       // Hugging Face: attention must have biases
    sk_hybrid hybrid;
} sk_config;

/* Keys common to the attention architectures, prefix = general.architecture. FORMAT with check
 * MISSING_KEY, KEY_TYPE or BAD_HPARAM, or UNSUPPORTED, naming the key. */
SK_MUST_USE sk_code sk_config_read(const sk_ckpt *ck, sk_config *out, sk_status *st);

/* What the recipe flash_next reads beyond the keys of all: `c` has those. */
SK_MUST_USE sk_code sk_config_read_hybrid(sk_keys *k, sk_config *c);

/* general.architecture as a terminated string; of a Hugging Face folder, the recipe for its
 * model_type, with *hf set. */
SK_MUST_USE sk_code sk_config_arch(const sk_ckpt *ck, char out[32], const sk_hf_arch **hf,
                                   sk_status *st);

#endif
