/* See emulated_ops.h. */
#include "tests/c/emulated_ops.h"

#include <memory>

extern "C" {
#include "op/cpu/cpu.h"
#include "op/cuda/cuda.h"
}

#include "kernels/sk_kernels.h"
#include "tests/c/emulated_tools.h"

/* The launchers that a test program has; those of other ops are nowhere called. */
#define SK_OP(name, fields) __attribute__((weak)) decltype(sk_k_##name) sk_k_##name;
#include "op/ops.def"

const sk_cuda_fn sk_cuda_ops[SK_OP_COUNT] = {
#define SK_OP(name, fields) reinterpret_cast<sk_cuda_fn>(sk_k_##name),
#include "op/ops.def"
};

namespace emulated
{

const How kPlainly = {"plainly", kAscending, false, false, 0};

namespace
{

const How kHows[] = {
    {"backwards", kDescending, false, false, 0},
    {"shuffled, early counts", kShuffled, true, false, 0},
    {"rows apart", kShuffled, false, true, 0},
    {"with room", kAscending, true, false, 3},
    {"apart with room", kDescending, false, true, 5},
};

size_t row_bytes(const Argument &a)
{
    const sk_dtype_info *info = sk_dtype_find(a.dtype);
    return static_cast<size_t>(a.dim.back() / info->block_elems * info->block_bytes);
}

int64_t n_rows_of(const Argument &a)
{
    int64_t n = 1;
    for (size_t i = 0; i + 1 < a.dim.size(); i++) n *= a.dim[i];
    return n;
}

/* Bytes of one along the first dimension. */
size_t item_bytes(const Argument &a) { return a.bytes.size() / static_cast<size_t>(a.dim[0]); }

size_t element_bytes(const Argument &a)
{
    return static_cast<size_t>(sk_dtype_find(a.dtype)->block_bytes);
}

/* An argument in memory of its own. */
struct Placed {
    const Argument &a;
    int64_t items; // along the first dimension
    size_t step;   // bytes between them
    Memory memory;

    Placed(const Argument &arg, const How &how)
        : a(arg), items(arg.dim[0] + (arg.along == Along::kRows ? how.more : 0)),
          step(item_bytes(arg) + (how.apart && arg.along != Along::kNothing && arg.dim.size() > 1
                                      ? static_cast<size_t>(arg.gap) * element_bytes(arg)
                                      : 0)),
          memory(static_cast<size_t>(items) * step)
    {
        for (int64_t i = 0; i < a.dim[0]; i++)
            memcpy(item(i), a.bytes.data() + static_cast<size_t>(i) * item_bytes(a), item_bytes(a));
    }
    uint8_t *item(int64_t i) const { return memory.p + static_cast<size_t>(i) * step; }

    sk_view view(int32_t buf) const
    {
        std::vector<int64_t> dim = a.dim;
        dim[0] = items;
        sk_view v = sk_view_dense(buf, a.dtype, static_cast<int32_t>(dim.size()), dim.data());
        v.p = memory.p;
        if (dim.size() > 1) v.stride[0] = static_cast<int64_t>(step);
        return v;
    }

    /* The argument's own items; the others and what is between them is as it was. */
    std::vector<uint8_t> contents() const
    {
        std::vector<uint8_t> bytes;
        const auto kept = [](uint8_t byte) { return byte == 0xFF; };
        bool clean = memory.intact();
        for (int64_t i = 0; i < items; i++) {
            uint8_t *p = item(i), *end = p + item_bytes(a);
            if (i < a.dim[0])
                bytes.insert(bytes.end(), p, end);
            else
                clean = clean && std::all_of(p, end, kept);
            clean = clean && std::all_of(end, p + step, kept);
        }
        if (!clean) fail("a write outside of what is the kernel's");
        return bytes;
    }
};

struct Bound {
    std::vector<std::unique_ptr<Placed>> placed;
    alignas(16) uint8_t args[SK_ARGS_MAX];

    Bound(const Op &o, const How &how)
    {
        const sk_field *fields = sk_ops[o.op].fields;
        sk_status st = {};
        sk_args_clear(o.op, args);
        for (size_t i = 0; fields[i].kind != SK_FIELD_END; i++) {
            placed.emplace_back();
            if (fields[i].kind == SK_FIELD_VIEW && o.arguments[i].dtype != -1) {
                placed.back() = std::make_unique<Placed>(o.arguments[i], how);
                *sk_field_view(args, fields + i) = placed.back()->view(static_cast<int32_t>(i));
            }
            const auto constant = o.constants.find(fields[i].name);
            if (constant == o.constants.end()) continue;
            const int32_t whole = static_cast<int32_t>(constant->second);
            const float real = static_cast<float>(constant->second);
            memcpy(args + fields[i].at,
                   fields[i].kind == SK_FIELD_I32 ? static_cast<const void *>(&whole) : &real, 4);
        }
        if (sk_op_check(o.op, args, &st) != SK_OK) {
            printf("%s: %s\n", o.name.c_str(), st.msg);
            exit(1);
        }
    }
    Results contents() const
    {
        Results r;
        for (const auto &p : placed) r.push_back(p ? p->contents() : std::vector<uint8_t>());
        return r;
    }
};

/* The weights of a step as its kernels want them. */
void pack_weights(const Op &o, Bound &b, std::vector<std::unique_ptr<Memory>> &packed)
{
    const sk_field *fields = sk_ops[o.op].fields;
    for (size_t i = 0; fields[i].kind != SK_FIELD_END; i++) {
        const Argument &a = o.arguments[i];
        if (!a.packed) continue;
        const uint64_t bytes = sk_k_packed_bytes(a.dtype, a.dim[0], a.dim[1]);
        packed.push_back(std::make_unique<Memory>(static_cast<size_t>(bytes)));
        sk_view *v = sk_field_view(b.args, fields + i);
        if (sk_k_pack(a.dtype, v->p, packed.back()->p, 0, a.dim[0], a.dim[0], a.dim[1], nullptr))
            fail("a weight is not packed");
        v->p = packed.back()->p;
    }
}

bool is_one_of(const char *name, std::initializer_list<const char *> names)
{
    return std::any_of(names.begin(), names.end(),
                       [name](const char *other) { return strcmp(name, other) == 0; });
}

bool is_read_early(const sk_field &f, const How &how)
{
    const bool table = is_one_of(f.name, {"count", "rows", "kept", "pending"});
    return how.ready && ((table && !(f.mode & SK_WRITE)) || is_one_of(f.name, {"m", "window"}));
}

/* The ring of linear waits for its loads in the machine code (tools/check_copies.py). A warp of it
 * that has no tile leaves its copy of the count to the warps that have one. */
bool has_products(enum sk_op op)
{
    return op == SK_OP_linear || op == SK_OP_linear_add || op == SK_OP_linear_argmax ||
           op == SK_OP_hyper_down || op == SK_OP_hyper_mix;
}

} // namespace

Op::Op(const char *op_name) : op(sk_op_find(op_name)), name(op_name)
{
    int n = 0;
    if (op == SK_OP_COUNT) fail("no such op");
    while (sk_ops[op].fields[n].kind != SK_FIELD_END) n++;
    arguments.resize(static_cast<size_t>(n));
}

int Op::field(const std::string &field_name) const
{
    for (int i = 0; sk_ops[op].fields[i].kind != SK_FIELD_END; i++)
        if (field_name == sk_ops[op].fields[i].name) return i;
    printf("%s has no %s\n", name.c_str(), field_name.c_str());
    exit(1);
}

Argument &Op::raw(const char *field_name, Along along, int32_t dtype, std::vector<int64_t> dim,
                  const void *bytes)
{
    Argument &a = of(field_name);
    a = Argument();
    a.along = along;
    a.dtype = dtype;
    a.dim = dim;
    a.bytes.resize(static_cast<size_t>(n_rows_of(a)) * row_bytes(a));
    if (bytes)
        memcpy(a.bytes.data(), bytes, a.bytes.size());
    else
        memset(a.bytes.data(), 0xFF, a.bytes.size());
    return a;
}

Argument &Op::out(const char *field_name, Along along, int32_t dtype, std::vector<int64_t> dim)
{
    return raw(field_name, along, dtype, dim, nullptr);
}

Argument &Op::put(const char *field_name, Along along, int32_t dtype, std::vector<int64_t> dim,
                  const std::vector<float> &values)
{
    std::vector<uint16_t> half;
    if (dtype == SK_F32) return raw(field_name, along, dtype, dim, values.data());
    for (const float v : values) half.push_back(sk_f32_to_bf16(v));
    return raw(field_name, along, dtype, dim, half.data());
}

Argument &Op::put(const char *field_name, Along along, int32_t dtype, std::vector<int64_t> dim,
                  double scale)
{
    std::vector<float> values(1);
    for (const int64_t d : dim) values.resize(values.size() * static_cast<size_t>(d));
    for (float &v : values) v = static_cast<float>(scale) * random_float();
    return put(field_name, along, dtype, dim, values);
}

Argument &Op::ints(const char *field_name, Along along, std::vector<int64_t> dim,
                   const std::vector<int32_t> &values)
{
    return raw(field_name, along, SK_I32, dim, values.data());
}

Argument &Op::wide_ints(const char *field_name, const std::vector<int64_t> &values)
{
    return raw(field_name, Along::kNothing, SK_I64, {static_cast<int64_t>(values.size())},
               values.data());
}

int64_t Op::n_rows() const
{
    for (const Argument &a : arguments)
        if (a.dtype != -1 && a.along == Along::kRows) return a.dim[0];
    return 0;
}

Op Op::with_rows(const std::vector<int64_t> &rows) const
{
    Op o = *this;
    const int32_t n = static_cast<int32_t>(rows.size());
    for (size_t i = 0; i < arguments.size(); i++) {
        const Argument &a = arguments[i];
        if (a.dtype == -1 || a.along != Along::kRows) continue;
        const size_t each = item_bytes(a);
        o.arguments[i].dim[0] = n;
        o.arguments[i].bytes.clear();
        for (const int64_t r : rows)
            o.arguments[i].bytes.insert(o.arguments[i].bytes.end(),
                                        at(a.bytes, r * static_cast<int64_t>(each)),
                                        at(a.bytes, (r + 1) * static_cast<int64_t>(each)));
    }
    o.ints("count", Along::kNothing, {1}, {n});
    return o;
}

Results defined(const Op &o)
{
    Bound b(o, kPlainly);
    sk_status st = {};
    sk_cpu cpu = {};
    if (sk_pool_make(&cpu.pool, 1, &st) != SK_OK) fail("no pool");
    cpu.work_bytes = sk_cpu_work_bytes(o.op, b.args, 1);
    cpu.work = static_cast<uint8_t *>(aligned_alloc(64, cpu.work_bytes + 64));
    cpu.table = sk_cpu_ops;
    sk_cpu_ops[o.op](b.args, &cpu);
    free(cpu.work);
    sk_pool_drop(cpu.pool);
    return b.contents();
}

namespace
{

size_t at_of(const Op &o, const char *field) { return static_cast<size_t>(o.field(field)); }

sk_view *factor_of(const Op &o, Bound &b)
{
    return sk_field_view(b.args, sk_ops[o.op].fields + at_of(o, "factor"));
}

/* What a kernel may not touch ahead of its wait. */
void add_dependent(const Op &o, const Bound &b, const How &how)
{
    const sk_field *fields = sk_ops[o.op].fields;
    for (size_t i = 0; i < b.placed.size(); i++) {
        const Placed *p = b.placed[i].get();
        const bool constant = p && p->a.along == Along::kNothing && !(fields[i].mode & SK_WRITE) &&
                              strcmp(fields[i].name, "count") != 0;
        if (!p || constant || is_read_early(fields[i], how)) continue;
        setting.dependent.push_back({p->memory.p, static_cast<size_t>(p->items) * p->step});
    }
}

} // namespace

Results computed(const Op &o, const How &how, int32_t ctx_bound, const Op *before)
{
    std::vector<std::unique_ptr<Memory>> packed;
    std::unique_ptr<Bound> first;
    Bound b(o, how);
    const uint64_t bytes = sk_cuda_work_bytes(o.op, b.args, ctx_bound);
    Memory work(static_cast<size_t>(bytes)), sync(4 * SK_SYNC_WORDS);
    sk_launch l = {};
    memset(sync.p, 0, 4 * SK_SYNC_WORDS);
    l.work = work.p;
    l.work_bytes = bytes;
    l.sync = reinterpret_cast<uint32_t *>(sync.p);
    l.ctx_bound = ctx_bound;
    l.n_sm = how.n_sm;
    l.edge = 1;
    l.rows_ready = l.state_ready = how.ready;
    l.fused = how.fused;
    if (how.bare) l.work = nullptr;
    if (how.bare) l.work_bytes = 0;
    pack_weights(o, b, packed);
    setting = Setting();
    setting.name = o.name + ", " + how.name;
    setting.order = how.order;
    setting.fences = setting.waits = !has_products(o.op);
    setting.dependent.push_back({work.p, static_cast<size_t>(bytes)});
    if (before) {
        first = std::make_unique<Bound>(*before, how);
        add_dependent(*before, *first, how);
        for (const char *shared : {"s", "count"})
            *sk_field_view(b.args, sk_ops[o.op].fields + o.field(shared)) =
                *sk_field_view(first->args, sk_ops[before->op].fields + before->field(shared));
        if (how.reuse) factor_of(o, b)->p = first->placed[at_of(*before, "x")]->memory.p;
    }
    add_dependent(o, b, how);
    const int32_t rc =
        before ? sk_k_inject_down(reinterpret_cast<const sk_hyper_inject_args *>(first->args),
                                  reinterpret_cast<const sk_hyper_down_args *>(b.args), &l)
               : sk_cuda_ops[o.op](b.args, &l);
    if (rc != 0) fail("the launch is refused");
    for (int i = 0; i < SK_SYNC_WORDS; i++)
        if (l.sync[i] != 0) fail("words of sync are not zero again");
    if (!work.intact()) fail("a write in front of the scratch");
    setting = Setting();
    if (how.reuse) {
        const Placed &own = *b.placed[at_of(o, "factor")];
        memcpy(own.memory.p, factor_of(o, b)->p, own.a.bytes.size());
    }
    Results r = b.contents();
    if (before)
        r[static_cast<size_t>(o.field("s"))] =
            first->contents()[static_cast<size_t>(before->field("s"))];
    return r;
}

void check_after(const Op &before, Op o, int32_t fuses)
{
    const Results first = computed(before, kPlainly, 0, nullptr);
    o.of("s").bytes = first[static_cast<size_t>(before.field("s"))];
    const Results want = computed(o, kPlainly, 0, nullptr);
    for (How how : kHows)
        for (const bool fused : {false, true}) {
            how.fused = fused;
            launches = 0;
            CHECK(computed(o, how, 0, &before) == want, "%s: other bits behind %s, %s",
                  o.name.c_str(), before.name.c_str(), how.name);
            CHECK(!fused || !fuses || launches == fuses, "%s: %d launches", o.name.c_str(),
                  launches);
        }
    for (const Order order : {kAscending, kDescending, kShuffled}) {
        How how = kPlainly;
        how.order = order;
        how.fused = how.reuse = true;
        launches = 0;
        CHECK(computed(o, how, 0, &before) == want, "%s: other bits over what %s reads",
              o.name.c_str(), before.name.c_str());
        CHECK(!fuses || launches == fuses + 1, "%s: %d launches", o.name.c_str(), launches);
    }
}

/* ---- comparing ---------------------------------------------------------------------------------
 */

namespace
{

void close_row(const std::string &what, const Argument &a, const uint8_t *is, const uint8_t *want,
               int64_t n, double flipped, int64_t *off)
{
    double most = 0;
    const bool half = a.dtype == SK_BF16;
    const auto value = [half](const uint8_t *p, int64_t i) {
        float x;
        if (half)
            x = sk_bf16_to_f32(reinterpret_cast<const uint16_t *>(p)[i]);
        else
            memcpy(&x, p + 4 * i, 4);
        return static_cast<double>(x);
    };
    for (int64_t i = 0; i < n; i++) most = fmax(most, fabs(value(want, i)));
    for (int64_t i = 0; i < n; i++) {
        const double x = value(is, i), y = value(want, i), error = fabs(x - y);
        bool close = error <= 1e-5 * most;
        if (half && !close) {
            *off += 1;
            close = flipped > 0 ? error <= flipped * most
                                : steps_between(reinterpret_cast<const uint16_t *>(is)[i],
                                                reinterpret_cast<const uint16_t *>(want)[i]) <= 1;
        }
        CHECK(isfinite(x) && close, "%s, element %d: %g, is %g of at most %g", what.c_str(),
              static_cast<int>(i), y, x, most);
        if (!isfinite(x) || !close) return;
    }
}

void compare(const Op &o, const Results &is, const Results &want, const Bounds &bounds)
{
    for (size_t i = 0; i < o.arguments.size(); i++) {
        const Argument &a = o.arguments[i];
        const sk_field &f = sk_ops[o.op].fields[i];
        if (f.kind != SK_FIELD_VIEW || a.dtype == -1) continue;
        const std::string what = o.name + ", " + f.name;
        if (bounds.exact || !(f.mode & SK_WRITE) || (a.dtype != SK_F32 && a.dtype != SK_BF16)) {
            CHECK(is[i] == want[i], "%s: other bits than the definition's", what.c_str());
            continue;
        }
        const bool whole = bounds.whole_rows && a.along == Along::kRows;
        const int64_t n =
            whole ? static_cast<int64_t>(item_bytes(a) / element_bytes(a)) : a.dim.back();
        const int64_t bytes = n * static_cast<int64_t>(element_bytes(a));
        int64_t off = 0;
        for (int64_t at = 0; at < static_cast<int64_t>(is[i].size()); at += bytes) {
            if (memcmp(is[i].data() + at, want[i].data() + at, static_cast<size_t>(bytes)) == 0)
                continue; // also what nobody has written
            close_row(what, a, is[i].data() + at, want[i].data() + at, n, bounds.flipped, &off);
        }
        const double all = static_cast<double>(is[i].size()) / 2;
        CHECK(off <= fmax(1, (bounds.flipped > 0 ? 0.02 : 0.005) * all),
              "%s: %d of %d elements differ", what.c_str(), static_cast<int>(off),
              static_cast<int>(all));
    }
}

/* The results of some rows, `part`, are those that they had among all; slots without rows are as
 * they were. */
void compare_part(const Op &o, const Results &part, const std::vector<int64_t> &rows, int32_t slot,
                  const Results &all, const char *how)
{
    for (size_t i = 0; i < o.arguments.size(); i++) {
        const Argument &a = o.arguments[i];
        const sk_field &f = sk_ops[o.op].fields[i];
        if (f.kind != SK_FIELD_VIEW || a.dtype == -1 || !(f.mode & SK_WRITE)) continue;
        const size_t each = item_bytes(a);
        const std::string what = o.name + ", " + f.name;
        for (size_t k = 0; a.along == Along::kRows && k < rows.size(); k++)
            CHECK(memcmp(part[i].data() + k * each,
                         all[i].data() + static_cast<size_t>(rows[k]) * each, each) == 0,
                  "%s: row %d has other bits %s", what.c_str(), static_cast<int>(rows[k]), how);
        for (int64_t b = 0; a.along == Along::kSlots && b < a.dim[0]; b++) {
            const size_t at = static_cast<size_t>(b) * each;
            const uint8_t *want = b == slot ? all[i].data() + at : a.bytes.data() + at;
            CHECK(memcmp(part[i].data() + at, want, each) == 0, "%s: slot %d has other bits %s",
                  what.c_str(), static_cast<int>(b), how);
        }
    }
}

/* Rows of one slot at a time, or single ones where there are no slots. */
void check_alone(const Op &o, const Results &all, const Bounds &bounds)
{
    const int64_t n = o.n_rows();
    std::map<int32_t, std::vector<int64_t>> groups;
    const sk_field *fields = sk_ops[o.op].fields;
    const int32_t *table = nullptr;
    for (size_t i = 0; fields[i].kind != SK_FIELD_END; i++)
        if (strcmp(fields[i].name, "rows") == 0 && o.arguments[i].along == Along::kRows)
            table = reinterpret_cast<const int32_t *>(o.arguments[i].bytes.data());
    for (int64_t r = 0; r < n; r++) {
        if (!table && r > 0 && r < n - 1 && r != n / 2) continue;
        groups[table ? table[3 * r] : static_cast<int32_t>(r)].push_back(r);
    }
    for (const auto &g : groups) {
        const Op part = o.with_rows(g.second);
        compare_part(o, computed(part, kHows[1], bounds.ctx_bound), g.second, g.first, all,
                     "without its neighbours");
    }
}

} // namespace

int failed() { return failures; }

void check(const Op &o, const Bounds &bounds)
{
    const Results want = defined(o), first = computed(o, kPlainly, bounds.ctx_bound);
    compare(o, first, want, bounds);
    for (const How &how : kHows) {
        const Results is = computed(o, how, bounds.ctx_bound);
        CHECK(is == first, "%s: other bits %s", o.name.c_str(), how.name);
    }
    if (o.op == SK_OP_linear || o.op == SK_OP_linear_add) {
        How bare = kPlainly;
        bare.bare = true;
        CHECK(computed(o, bare, bounds.ctx_bound) == first, "%s: other bits without scratch",
              o.name.c_str());
    }
    for (How how : kHows) {
        if (!bounds.fuses) break;
        how.fused = true;
        launches = 0;
        CHECK(computed(o, how, bounds.ctx_bound) == first, "%s: other bits fused, %s",
              o.name.c_str(), how.name);
        CHECK(launches == bounds.fuses, "%s: %d launches", o.name.c_str(), launches);
    }
    for (const int32_t bound : bounds.bounds)
        CHECK(computed(o, kHows[1], bound) == first, "%s: other bits in the tier of %d",
              o.name.c_str(), bound);
    if (o.n_rows() > 0) check_alone(o, first, bounds);
}

} // namespace emulated
