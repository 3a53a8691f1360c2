/* Forced routes: rows of different experts, and tables without memory. */
#include "tests/c/sk_test.h"

#include "base/mem.h"
#include "model/forced.h"

#include <string.h>

static void rows_have_different_experts(void)
{
    static const int32_t shapes[][2] = {{1, 1}, {8, 3}, {5, 5}, {512, 10}};
    static int32_t table[SK_FORCED_ENTRIES * 10];
    sk_status st = SK_STATUS_INIT;
    for (int32_t kind = SK_ROUTING_UNIFORM; kind < SK_ROUTING_COUNT; kind++)
        for (size_t i = 0; i < SK_COUNT(shapes); i++) {
            const sk_forced f = {true, (sk_routing)kind, false, -7};
            const int32_t n = shapes[i][0], t = shapes[i][1];
            int64_t wrong = 0;
            SK_REQUIRE(SK_EXPECT_OK(sk_forced_routes(&f, 3, n, t, table, &st), &st));
            for (int64_t r = 0; r < SK_FORCED_ENTRIES; r++) {
                uint8_t seen[512] = {0};
                for (int32_t j = 0; j < t; j++) {
                    const int32_t e = table[r * t + j];
                    SK_REQUIRE(e >= 0 && e < n);
                    wrong += seen[e];
                    seen[e] = 1;
                }
            }
            SK_EXPECT_INT(0, wrong);
        }
}

static sk_code bind_two(void *arg, sk_status *st)
{
    const sk_forced f = {true, SK_ROUTING_PROFILE, true, 1};
    int32_t table[2] = {-1, -1};
    sk_space space;
    sk_code rc;
    (void)arg;
    sk_space_init(&space);
    rc = sk_forced_bind(&f, &space, "target.", 0, 8, 3, &table[0], st);
    if (rc == SK_OK) rc = sk_forced_bind(&f, &space, "drafter.", 1, 8, 3, &table[1], st);
    if (rc == SK_OK) {
        const sk_buf *b = &space.bufs[table[1]];
        SK_EXPECT_STR("drafter.blk.1.forced_routes", b->name);
        SK_EXPECT_INT(SK_ROLE_WEIGHT, (int64_t)b->role);
        SK_EXPECT(b->as_is); // a device does not pack it
        SK_EXPECT_INT(SK_FORCED_ENTRIES * 3 * (int64_t)sizeof(int32_t), (int64_t)b->bytes);
        SK_EXPECT(memcmp(b->source, space.bufs[table[0]].source, b->bytes) != 0);
    }
    sk_space_fini(&space);
    return rc;
}

static void a_table_without_memory(void) { SK_EACH_FAULT(bind_two, NULL); }

const sk_test sk_tests_forced[] = {{"rows_have_different_experts", rows_have_different_experts},
                                   {"a_table_without_memory", a_table_without_memory},
                                   {0}};
