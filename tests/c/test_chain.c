/* What chains check without a device: numbers, fields, and whether a recorded graph is a row of
 * steps. */
#include "tests/c/sk_test.h"

#include "graph/chain.h"

enum { X, COUNT, W0, W1 }; // fields of linear

static sk_linear_args good_args(void)
{
    const int64_t x[] = {3, 64}, w[] = {16, 64}, y[] = {3, 16}, one[] = {1};
    sk_linear_args a;
    sk_args_clear(SK_OP_linear, &a);
    a.x = sk_view_dense(0, SK_BF16, 2, x);
    a.count = sk_view_dense(1, SK_I32, 1, one);
    a.w[0] = sk_view_dense(2, SK_Q8_0, 2, w);
    a.y[0] = sk_view_dense(3, SK_F32, 2, y);
    return a;
}

static void weights_are_checked(void)
{
    const sk_linear_args a = good_args();
    for (int n = 0; n < 7; n++) {
        sk_chain_weights w = {SK_OP_linear, &a, 1 << W0, 2};
        sk_status st = SK_STATUS_INIT;
        sk_chain *c = NULL;
        if (n == 1) w.n_copies = 0;
        if (n == 2) w.n_copies = SK_CHAIN_MAX_COPIES + 1;
        if (n == 3) w.weights = 0;
        if (n == 4) w.weights |= 1 << W1; // absent
        if (n == 5) w.weights = 1 << 14;  // y[0]
        if (n == 6) w.weights = 1 << 18;  // scale_n[0]
        SK_EXPECT_FAIL(n ? SK_INVALID : SK_OK, NULL, sk_chain_check_weights(&w, &st), &st);
        st = (sk_status)SK_STATUS_INIT;
        SK_EXPECT_FAIL(n ? SK_INVALID : SK_UNSUPPORTED, n ? NULL : "NO_CUDA_BUILD",
                       sk_chain_open(&c, 0, &w, &st), &st);
        SK_EXPECT(c == NULL);
    }
    sk_chain_close(NULL);
}

static void recordings_are_checked(void)
{
    const sk_linear_args a = good_args();
    const uint8_t stack[1] = {0};
    for (int n = 0; n < 8; n++) {
        sk_chain_spec s = {.args = &a, .n_nodes = 4, .rows_ready = -1, .open_early = 1};
        sk_status st = SK_STATUS_INIT;
        s.stack[X] = stack;
        s.n_stack[X] = 2;
        if (n == 1) s.n_nodes = 0;
        if (n == 2) s.n_nodes = SK_CHAIN_MAX_NODES + 1;
        if (n == 3) s.rows_ready = 2;
        if (n == 4) s.open_early = -2;
        if (n == 5) s.n_stack[X] = 0;
        if (n == 6) s.stack[W0] = stack, s.n_stack[W0] = 1; // a weight
        if (n == 7) s.stack[W1] = stack, s.n_stack[W1] = 1; // absent
        SK_EXPECT_FAIL(n ? SK_INVALID : SK_OK, NULL,
                       sk_chain_check_spec(SK_OP_linear, 1 << W0, &s, &st), &st);
    }
}

static bool is_row(int64_t nodes, int64_t edges, int64_t programmatic, bool wanted)
{
    const sk_chain_about a = {.n_nodes = nodes, .n_edges = edges, .n_programmatic = programmatic};
    return sk_chain_is_row(&a, 5, wanted);
}

static void a_row_of_steps_is_told_from_other_graphs(void)
{
    SK_EXPECT(is_row(5, 4, 4, true) && is_row(5, 4, 0, false));
    SK_EXPECT(!is_row(5, 4, 0, true) && !is_row(5, 4, 3, true) && !is_row(5, 4, 4, false));
    SK_EXPECT(!is_row(4, 3, 3, true) && !is_row(6, 5, 5, true)); // no five equal steps
    SK_EXPECT(!is_row(5, 3, 3, true) && !is_row(5, 6, 4, true)); // no single row
    // Two kernels a step: the second one's edge is plain, programmatic, or so but in the first
    // step.
    SK_EXPECT(is_row(10, 9, 4, true) && is_row(10, 9, 9, true) && is_row(10, 9, 8, true));
    SK_EXPECT(is_row(10, 9, 0, false) && is_row(10, 9, 5, false));
    SK_EXPECT(!is_row(10, 9, 7, true) && !is_row(10, 9, 3, true) && !is_row(10, 9, 9, false));
}

const sk_test sk_tests_chain[] = {
    {"weights_are_checked", weights_are_checked},
    {"recordings_are_checked", recordings_are_checked},
    {"a_row_of_steps_is_told_from_other_graphs", a_row_of_steps_is_told_from_other_graphs},
    {0},
};
