/* Synthetic weights: what a kernel makes one by one is what the host makes in runs, and any place
 * in the weights leads back to how they are made. */
#include "tests/c/sk_test.h"

#include "base/dtype.h"
#include "base/synth.h"
#include "ckpt/synthetic.h"

#include <string.h>

static void one_by_one(void)
{
    uint8_t run[7 * 256], one[256];
    int32_t n_types = 0;
    for (int32_t type = 0; type < 1100; type++) {
        for (int32_t kind = SK_SYNTH_NORMAL; kind <= SK_SYNTH_UNIFORM; kind++) {
            sk_synth s;
            if (!sk_dtype_find(type) || sk_synth_init(&s, 5, "blk.0.w", 7, type, kind,
                                                      kind == SK_SYNTH_NORMAL ? 0 : -0.5, 2))
                continue;
            n_types += kind == SK_SYNTH_NORMAL;
            SK_EXPECT(s.block_bytes <= 256);
            memset(run, 0xAA, sizeof run);
            sk_synth_fill(&s, 3, 7, run);
            for (uint64_t i = 0; i < 7; i++) {
                const uint64_t n = (uint64_t)s.block_bytes;
                memset(one, 0x55, sizeof one);
                sk_synth_one(&s, 3 + i, one);
                SK_EXPECT(memcmp(one, run + i * n, (size_t)n) == 0);
                SK_EXPECT(n == sizeof one || one[n] == 0x55);
            }
        }
    }
    SK_EXPECT_U64(28, (uint64_t)n_types);
}

typedef struct directory {
    uint8_t bytes[512];
    uint64_t n;
} directory;

static void put(directory *d, uint64_t x, int32_t n)
{
    for (int32_t i = 0; i < n; i++) d->bytes[d->n++] = (uint8_t)(x >> 8 * i);
}

static void put_tensor(directory *d, char name, uint64_t row, uint64_t rows, sk_dtype type,
                       uint64_t off)
{
    put(d, 1, 8);
    put(d, (uint64_t)name, 1);
    put(d, 2, 4);
    put(d, row, 8);
    put(d, rows, 8);
    put(d, (uint64_t)type, 4);
    put(d, off, 8);
}

/* a: 3 rows of 18 bytes, padded to 64; b: 4 rows of 8 floats. */
static sk_code open_two(sk_ckpt **out, uint64_t a_off, uint64_t b_off, sk_status *st)
{
    static const sk_synth_recipe recipes[2] = {{SK_SYNTH_NORMAL, 0, 1}, {SK_SYNTH_NORMAL, 0, 1}};
    directory d = {.n = 0};
    sk_synthetic_plan plan = {
        .label = "two.gguf", .seed = 1, .recipes = recipes, .n = 2, .threads = 1};
    put(&d, 0x46554747, 4); // GGUF
    put(&d, 3, 4);
    put(&d, 2, 8);
    put(&d, 0, 8);
    put_tensor(&d, 'a', 32, 3, SK_Q4_0, a_off);
    put_tensor(&d, 'b', 8, 4, SK_F32, b_off);
    while (d.n % 32) put(&d, 0, 1);
    plan.directory = d.bytes;
    plan.directory_bytes = d.n;
    plan.size = d.n + 64 + 128;
    return sk_synthetic_open(out, &plan, st);
}

static void every_place_has_its_recipe(void)
{
    sk_status st = SK_STATUS_INIT;
    sk_ckpt *ck = NULL;
    const sk_tensor *a, *b;
    uint64_t block = 99;
    SK_EXPECT(open_two(&ck, 0, 64, &st) == SK_OK);
    if (!ck) return;
    a = sk_ckpt_find_tensor(ck, "a");
    b = sk_ckpt_find_tensor(ck, "b");
    SK_EXPECT(sk_ckpt_recipe_at(ck, a->data, &block) == a->synth && block == 0);
    SK_EXPECT(sk_ckpt_recipe_at(ck, a->data + 36, &block) == a->synth && block == 2);
    SK_EXPECT(sk_ckpt_recipe_at(ck, b->data, &block) == b->synth && block == 0);
    SK_EXPECT(sk_ckpt_recipe_at(ck, b->data + 124, &block) == b->synth && block == 31);
    SK_EXPECT(!sk_ckpt_recipe_at(ck, a->data - 1, &block));   // the directory
    SK_EXPECT(!sk_ckpt_recipe_at(ck, a->data + 54, &block));  // padding
    SK_EXPECT(!sk_ckpt_recipe_at(ck, b->data + 128, &block)); // behind the end
    SK_EXPECT(!sk_ckpt_recipe_at(ck, (const uint8_t *)&block, &block));
    // Where it leads is what the host makes there.
    SK_EXPECT(sk_ckpt_need(ck, a, &st) == SK_OK);
    {
        uint8_t made[18];
        sk_synth_one(sk_ckpt_recipe_at(ck, a->data + 18, &block), 1, made);
        SK_EXPECT(memcmp(made, a->data + 18, sizeof made) == 0);
    }
    sk_ckpt_close(ck);
}

static void contents_follow_the_directory(void)
{
    sk_status st = SK_STATUS_INIT;
    sk_ckpt *ck = NULL;
    SK_EXPECT(open_two(&ck, 128, 0, &st) == SK_INVALID);
    SK_EXPECT_STR("two.gguf: directory: expected tensors in the order of their contents, found "
                  "number 1 before number 0",
                  st.msg);
}

const sk_test sk_tests_synth[] = {{"one_by_one", one_by_one},
                                  {"every_place_has_its_recipe", every_place_has_its_recipe},
                                  {"contents_follow_the_directory", contents_follow_the_directory},
                                  {0}};
