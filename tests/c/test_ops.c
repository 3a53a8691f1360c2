/* Descriptors, contract checks on views that Python cannot make, full tables, and scratch that is a
 * function of shapes alone. What the ops compute is tested from Python (tests/py/test_ops_*.py). */
#include "tests/c/sk_test.h"

#include "op/cpu/cpu.h"

#include <string.h>

static sk_add_args good_add(void)
{
    const int64_t dim[] = {3, 8};
    const int64_t one[] = {1};
    sk_add_args a;
    sk_args_clear(SK_OP_add, &a);
    a.x = sk_view_dense(0, SK_F32, 2, dim);
    a.y = sk_view_dense(1, SK_F32, 2, dim);
    a.count = sk_view_dense(2, SK_I32, 1, one);
    return a;
}

static void refuse(const sk_add_args *a, const char *message)
{
    sk_status st = SK_STATUS_INIT;
    SK_EXPECT_FAIL(SK_INVALID, NULL, sk_op_check(SK_OP_add, a, &st), &st);
    SK_EXPECT_STR(message, st.msg);
}

static void every_view_is_checked(void)
{
    sk_status st = SK_STATUS_INIT;
    sk_add_args a = good_add();
    SK_EXPECT_OK(sk_op_check(SK_OP_add, &a, &st), &st);

    a.x.rank = 5;
    refuse(&a, "add: x: expected rank 1 .. 4, found 5");
    a.x.rank = 0;
    refuse(&a, "add: x: expected rank 1 .. 4, found 0");
    a = good_add();
    a.x.dtype = 4;
    refuse(&a, "add: x: expected a known type, found type id 4");
    a = good_add();
    a.x.stride[0] = -32;
    refuse(&a, "add: x: expected positive dimensions, whole blocks and a span below 2^64, found "
               "[3, 8] F32");
    a = good_add();
    a.x.dim[0] = 0;
    refuse(&a, "add: x: expected positive dimensions, whole blocks and a span below 2^64, found "
               "[0, 8] F32");
    a = good_add();
    a.x.off = UINT64_MAX - 7;
    refuse(&a, "add: x: expected positive dimensions, whole blocks and a span below 2^64, found "
               "[3, 8] F32");
    a = good_add();
    a.x.dim[0] = INT64_C(1) << 31;
    refuse(&a, "add: x: expected dimensions below 2^31, found 2147483648");
    a = good_add();
    a.x.stride[0] = 34;
    refuse(&a, "add: x: expected strides that are multiples of 4, found 34");
    a = good_add();
    a.y.off = 2;
    refuse(&a, "add: y: expected an offset that is a multiple of 4, found 2");
    SK_EXPECT_FAIL(SK_INVALID, NULL, sk_op_check(SK_OP_COUNT, &a, &st), &st);
    SK_EXPECT(sk_op_check(SK_OP_add, &a, NULL) == SK_INVALID); // no status wanted
}

static void overlap(void)
{
    sk_status st = SK_STATUS_INIT;
    sk_add_args a = good_add();
    a.y.buf = 0;
    refuse(&a, "add: y: expected no overlap with x, found both in buffer 0");
    a.y.off = 92; // the last element of x
    refuse(&a, "add: y: expected no overlap with x, found both in buffer 0");
    a.y.off = 96;
    SK_EXPECT_OK(sk_op_check(SK_OP_add, &a, &st), &st);
    a.x.stride[0] = a.y.stride[0] = 64; // halves of packed rows, in either order
    a.y.off = 32;
    SK_EXPECT_OK(sk_op_check(SK_OP_add, &a, &st), &st);
    a.x.off = 32;
    a.y.off = 64;
    SK_EXPECT_OK(sk_op_check(SK_OP_add, &a, &st), &st);
    a.y.off = 60;
    refuse(&a, "add: y: expected no overlap with x, found both in buffer 0");
    a.y.off = 4;
    refuse(&a, "add: y: expected no overlap with x, found both in buffer 0");
}

static void descriptors(void)
{
    sk_cpu_fn fast[SK_OP_COUNT];
    SK_EXPECT(!sk_cpu_table_find(fast, "slow") && fast[SK_OP_linear] == sk_cpu_ops[SK_OP_linear]);
    SK_EXPECT(sk_cpu_table_find(fast, "definition") &&
              fast[SK_OP_linear] == sk_cpu_ops[SK_OP_linear]);
    SK_EXPECT(sk_cpu_table_find(fast, "generic") && sk_cpu_table_find(fast, sk_cpu_isa()));
    SK_EXPECT(sk_cpu_table_find(fast, "fast"));
    for (int op = 0; op < SK_OP_COUNT; op++) {
        uint64_t room[SK_ARGS_MAX / 8];
        const sk_op_desc *d = &sk_ops[op];
        SK_EXPECT_INT(op, sk_op_find(d->name));
        SK_EXPECT(sk_cpu_ops[op] != NULL && fast[op] != NULL);
        memset(room, 0x55, sizeof room);
        sk_args_clear((enum sk_op)op, room);
        for (const sk_field *f = d->fields; f->kind != SK_FIELD_END; f++) {
            size_t size = f->kind == SK_FIELD_VIEW ? sizeof(sk_view) : 4;
            SK_EXPECT(f->at + size <= d->args_bytes);
            if (f->kind == SK_FIELD_VIEW) SK_EXPECT(!sk_view_present(sk_field_view(room, f)));
        }
    }
    SK_EXPECT_INT(SK_OP_COUNT, sk_op_find("no such op"));
}

static void scratch_is_a_function_of_shapes(void)
{
    const int64_t x[] = {5, 512};
    const int64_t w[] = {100, 512};
    const int64_t q[] = {5, 6, 64};
    const int64_t cache[] = {2, 1000, 3, 64};
    sk_linear_args l;
    sk_attend_args at;
    sk_add_args add = good_add();
    uint64_t one;
    sk_args_clear(SK_OP_linear, &l);
    l.x = sk_view_dense(0, SK_BF16, 2, x);
    l.w[0] = sk_view_dense(1, SK_Q4_1, 2, w);
    one = sk_cpu_work_bytes(SK_OP_linear, &l, 1);
    SK_EXPECT(one >= 5 * 512 * sizeof(float));
    SK_EXPECT_U64(one % 64, 0);
    SK_EXPECT(sk_cpu_work_bytes(SK_OP_linear, &l, 4) > one);
    sk_args_clear(SK_OP_attend, &at);
    at.q = sk_view_dense(0, SK_BF16, 3, q);
    at.k_cache = sk_view_dense(1, SK_BF16, 4, cache);
    one = sk_cpu_work_bytes(SK_OP_attend, &at, 1);
    SK_EXPECT(one >= 1000 * sizeof(float) && one % 64 == 0);
    SK_EXPECT_U64(3 * one, sk_cpu_work_bytes(SK_OP_attend, &at, 3));
    SK_EXPECT_U64(0, sk_cpu_work_bytes(SK_OP_add, &add, 8));
}

/* What lies between the parts, and the most that one of them wants. */
static void scratch_of_fused_ops(void)
{
    const int64_t x[] = {50, 512};
    const int64_t w[] = {1000, 512};
    const int64_t y[] = {50, 1000};
    sk_norm_linear_args nl;
    sk_norm_argmax_args na;
    sk_norm_add_args add;
    sk_linear_parts_args lp;
    sk_linear_args l;
    uint64_t product;
    sk_args_clear(SK_OP_linear, &l);
    l.x = sk_view_dense(0, SK_BF16, 2, x);
    l.w[0] = sk_view_dense(1, SK_Q4_1, 2, w);
    product = sk_cpu_work_bytes(SK_OP_linear, &l, 2);
    sk_args_clear(SK_OP_norm_linear, &nl);
    nl.x = sk_view_dense(0, SK_F32, 2, x);
    nl.w[0] = l.w[0];
    nl.y[0] = sk_view_dense(2, SK_F32, 2, y);
    nl.act = SK_BF16;
    SK_EXPECT_U64(product + 50 * 512 * 2, sk_cpu_work_bytes(SK_OP_norm_linear, &nl, 2));
    sk_args_clear(SK_OP_norm_argmax, &na);
    na.x = nl.x;
    na.w = l.w[0];
    na.act = SK_F32;
    // Logits of a few rows at a time only.
    l.x.dim[0] = 16;
    product = sk_cpu_work_bytes(SK_OP_linear, &l, 2);
    SK_EXPECT_U64(product + 16 * (512 + 1000) * 4, sk_cpu_work_bytes(SK_OP_norm_argmax, &na, 2));
    sk_args_clear(SK_OP_norm_add, &add);
    add.x = nl.x;
    SK_EXPECT_U64(50 * 512 * 4, sk_cpu_work_bytes(SK_OP_norm_add, &add, 2));
    sk_args_clear(SK_OP_linear_parts, &lp);
    lp.x = sk_view_dense(0, SK_BF16, 2, x);
    lp.w[0] = l.w[0];
    lp.y[0] = sk_view_dense(2, SK_F32, 3, (const int64_t[]){2, 50, 1000});
    // That of one part.
    l.x.dim[0] = 50;
    l.x.dim[1] = l.w[0].dim[1] = 256;
    SK_EXPECT_U64(sk_cpu_work_bytes(SK_OP_linear, &l, 2),
                  sk_cpu_work_bytes(SK_OP_linear_parts, &lp, 2));
}

const sk_test sk_tests_ops[] = {
    {"every_view_is_checked", every_view_is_checked},
    {"overlap", overlap},
    {"descriptors", descriptors},
    {"scratch_is_a_function_of_shapes", scratch_is_a_function_of_shapes},
    {"scratch_of_fused_ops", scratch_of_fused_ops},
    {0}};
