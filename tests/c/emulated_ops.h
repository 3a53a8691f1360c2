/* One op on the host twice: its definition, and its kernels as emulated_cuda.h runs them. An Op has
 * the contents of all arguments; check() compares both, and the kernels with themselves where the
 * same bits are promised: threads in other orders, rows that lie apart, more room than rows, rows
 * without their neighbours, and all in one launch. */
#pragma once

#include "tests/c/emulated_cuda.h"

#include <map>
#include <string>
#include <vector>

extern "C" { // ahead of what includes them too
#include "base/quant.h"
#include "op/op.h"
}

namespace emulated
{

/* What an argument counts along its first dimension. */
enum class Along { kNothing, kRows, kSlots };

struct Argument {
    Along along = Along::kNothing;
    int32_t dtype = -1; // absent
    std::vector<int64_t> dim;
    std::vector<uint8_t> bytes; // dense
    int32_t gap = 1;            // elements between rows, when these lie apart
    bool packed = false;        // a weight that kernels want in their order
};

struct Op {
    enum sk_op op;
    std::string name;
    std::vector<Argument> arguments; // by field
    std::map<std::string, double> constants;

    explicit Op(const char *op_name);
    int field(const std::string &name) const;
    Argument &of(const std::string &name) { return arguments[static_cast<size_t>(field(name))]; }

    /* Values are random in -1 .. 1 unless given; rounded to the type. */
    Argument &put(const char *field, Along along, int32_t dtype, std::vector<int64_t> dim,
                  const std::vector<float> &values);
    Argument &put(const char *field, Along along, int32_t dtype, std::vector<int64_t> dim,
                  double scale = 1);
    Argument &ints(const char *field, Along along, std::vector<int64_t> dim,
                   const std::vector<int32_t> &values);
    Argument &wide_ints(const char *field, const std::vector<int64_t> &values);
    Argument &raw(const char *field, Along along, int32_t dtype, std::vector<int64_t> dim,
                  const void *bytes);
    /* A result: NaNs at first. */
    Argument &out(const char *field, Along along, int32_t dtype, std::vector<int64_t> dim);
    void set(const char *field, double value) { constants[field] = value; }

    int64_t n_rows() const; // 0: none of the arguments has rows
    Op with_rows(const std::vector<int64_t> &rows) const;
};

/* Contents of all arguments afterwards, dense. */
using Results = std::vector<std::vector<uint8_t>>;

struct How {
    const char *name;
    Order order;
    bool ready;   // count and row table may be read early, and what slots have
    bool apart;   // rows lie apart
    int32_t more; // rows that do not live
    bool fused = false;
    bool bare = false;  // without scratch
    bool reuse = false; // what the step ahead reads lies where this one's factors come
    int32_t n_sm = 3;
};

/* How results are held against the definition's. */
struct Bounds {
    bool exact = false;
    bool whole_rows = false;          // F32: of a row with all its heads
    int32_t fuses = 0;                // so few launches can do it
    int32_t ctx_bound = 0;            // of the tier
    std::vector<int32_t> bounds = {}; // other tiers, of the same bits
    // BF16: how far elements may be off, of the row's largest, and how many of a row; 0: as usual
    double flipped = 0;
};

Results defined(const Op &o);
/* `before`: a hyper_inject that goes out with the step. */
Results computed(const Op &o, const How &how, int32_t ctx_bound, const Op *before = nullptr);
void check(const Op &o, const Bounds &bounds);
/* The step behind a hyper_inject of its streams, together in `fuses` launches: the bits of one
 * after the other. */
void check_after(const Op &before, Op o, int32_t fuses);

int failed(); // of these

extern const How kPlainly;

} // namespace emulated
