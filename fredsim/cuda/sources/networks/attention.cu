// Products of matrices that both depend on the sample, and softmax of rows, of B minibatches: what attention is made of.
//
// The order of sums: Σ_k a[m, k]·b[k, n], k ascending from +0, without the terms that a mask leaves out; softmax sums
// exponentials over the columns, ascending from +0; and so does Σ p·δ of its error p·(δ − Σ p·δ).
#include "networks/products.h"
#include "networks/draws.h"
#include "elementary.h"

struct Mask {          // which keys a query sees
  const int* pattern;  // (queries, keys), or null: all
  int causal;          // whether those after the query's own place are left out
  int keys;
};

DEVICE bool sees(const Mask& mask, int query, int key) {
  return (!mask.causal || key <= query) && (!mask.pattern || mask.pattern[query * mask.keys + key]);
}

struct Product {
  const float* a;  // (B, batches) matrices, with the strides below
  const float* b;
  float* out;      // (B, batches, rows, columns)
  i64 a_size;      // of a matrix
  i64 b_size;
  i64 a_row;
  i64 a_term;
  i64 b_term;
  i64 b_column;
  Mask mask;       // of terms
  int masked;      // 0: there is none; 1: rows are queries; 2: terms are
  int batches;
  int rows;
  int columns;
  int length;
  int scaled;
  float scale;     // by which sums are multiplied
};

struct Number {
  const float* from;
  int row;
};

template <bool ROWS_FIRST, bool COLUMNS_FIRST, bool MASKED> struct Matrices {
  static constexpr bool BY_ROW = ROWS_FIRST, BY_COLUMN = COLUMNS_FIRST, SOME = MASKED;
  using Row = Number;
  const Product& p;
  i64 matrix;
  i64 step;
  METHOD Row row(int m) const { return {p.a + matrix * p.a_size + m * p.a_row, m}; }
  METHOD float left(const Row& at, int k, bool valid) const { return value_at(at.from + k * p.a_term, p.a, valid); }
  METHOD bool exists(const Row& at, int k) const {
    return !p.masked || (p.masked == 1 ? sees(p.mask, at.row, k) : sees(p.mask, k, at.row));
  }
  METHOD float right(int k, int n, bool valid) const {
    return value_at(p.b + matrix * p.b_size + k * p.b_term + n * p.b_column, p.b, valid);
  }
  METHOD float* out(int m) const { return p.out + (matrix * p.rows + m) * p.columns; }
  METHOD float finished(int, float sum) const { return p.scaled ? sum * p.scale : sum; }
};

template <bool ROWS_FIRST, bool COLUMNS_FIRST, bool MASKED> DEVICE void multiply(const Product& p) {
  const int tiles = (p.rows + 31) / 32;
  const i64 matrix = (i64)blockIdx.z * p.batches + blockIdx.x / tiles;
  const Matrices<ROWS_FIRST, COLUMNS_FIRST, MASKED> terms = {p, matrix, 1};
  sum_products<32, 32, 16, 4, 4>(terms, blockIdx.x % tiles * 32, blockIdx.y * 32, p.rows, p.columns, p.length);
}

KERNEL(product, Product, 64, 4 * 2 * 16 * (36 + 36)) { multiply<false, true, true>(p); }
KERNEL(product_right_turned, Product, 64, 4 * 2 * 16 * (36 + 36)) { multiply<false, false, false>(p); }
KERNEL(product_left_turned, Product, 64, 4 * 2 * 16 * (36 + 36)) { multiply<true, true, true>(p); }

struct Softmax {
  const float* x;   // (B, rows, columns): what it is of, or the errors
  const float* p;   // of the error: what the forward pass gave
  float* out;       // p, +0 at masked places; or the error of x
  float* left;      // what dropout leaves of p, or null
  Mask mask;        // rows are queries, as many in turn
  Drawn drawn;
  i64 rows;         // of a minibatch
  int columns;
  int queries;
  int dropped;      // whether errors go through dropout
  int scaled;
  float scale;      // by which the error is multiplied
};

// A thread has a row.
KERNEL(softmax, Softmax, 64, 0) {
  const i64 row = blockIdx.x * (i64)64 + threadIdx.x, at = (blockIdx.z * p.rows + row) * p.columns;
  if (row >= p.rows) return;
  const int query = row % p.queries;
  const float* const x = p.x + at;
  float* const out = p.out + at;
  auto value = [&](int j) { return sees(p.mask, query, j) ? x[j] : -INFINITE; };
  float best = value(0), total = 0.0f;
  for (int j = 1; j < p.columns; j++) {
    const float other = value(j);
    best = other > best ? other : best;
  }
  for (int j = 0; j < p.columns; j++) {
    const float part = sees(p.mask, query, j) ? exp32(x[j] - best) : 0.0f;
    out[j] = part;
    total = total + part;
  }
  for (int j = 0; j < p.columns; j++) {
    const float share = sees(p.mask, query, j) ? out[j] / total : 0.0f;
    out[j] = share;
    if (p.left) p.left[at + j] = dropped(p.drawn, row * p.columns + j, share);
  }
}

KERNEL(softmax_back, Softmax, 64, 0) {
  const i64 row = blockIdx.x * (i64)64 + threadIdx.x, at = (blockIdx.z * p.rows + row) * p.columns;
  if (row >= p.rows) return;
  const int query = row % p.queries;
  auto error = [&](int j) {
    return p.dropped ? dropped(p.drawn, row * p.columns + j, p.x[at + j]) : p.x[at + j];
  };
  float mean = 0.0f;
  for (int j = 0; j < p.columns; j++)
    if (sees(p.mask, query, j)) mean = mean + p.p[at + j] * error(j);
  for (int j = 0; j < p.columns; j++) {
    const float own = p.p[at + j] * (error(j) - mean);
    p.out[at + j] = sees(p.mask, query, j) ? p.scaled ? own * p.scale : own : 0.0f;
  }
}

KERNEL(log_softmax, Softmax, 64, 0) {  // p goes to `left`
  const i64 row = blockIdx.x * (i64)64 + threadIdx.x, at = (blockIdx.z * p.rows + row) * p.columns;
  if (row >= p.rows) return;
  const float* const x = p.x + at;
  float best = x[0], total = 0.0f;
  for (int j = 1; j < p.columns; j++) best = x[j] > best ? x[j] : best;
  for (int j = 0; j < p.columns; j++) total = total + exp32(x[j] - best);
  const float log_total = log32(total);
  for (int j = 0; j < p.columns; j++) {
    p.left[at + j] = exp32(x[j] - best) / total;
    p.out[at + j] = (x[j] - best) - log_total;
  }
}

KERNEL(log_softmax_back, Softmax, 64, 0) {
  const i64 row = blockIdx.x * (i64)64 + threadIdx.x, at = (blockIdx.z * p.rows + row) * p.columns;
  if (row >= p.rows) return;
  float total = 0.0f;
  for (int j = 0; j < p.columns; j++) total = total + p.x[at + j];
  for (int j = 0; j < p.columns; j++) p.out[at + j] = p.x[at + j] - p.p[at + j] * total;
}
