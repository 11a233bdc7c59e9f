// Embeddings, of B minibatches: rows of a table, chosen by integers.
//
// The order of sums: a sample's own gradient of a row is the sum of the errors at the places where the row occurs, in
// row-major order from +0; the samples are summed by the balanced binary tree, + 0 at the end, then ÷ µ once.
#include "common.h"

struct Embedding {
  const float* const* held;  // (B,)
  const int* x;              // (B, µ, places)
  const float* errors;       // (B, µ, places, width)
  float* out;                // (B, µ, places, width); or the gradients (B, stride); or (B, µ, rows, width)
  i64 weight;                // where the table is in the parameters
  i64 stride;
  int mu;
  int places;
  int rows;
  int width;
  int untrained;             // a row whose gradient is +0, or −1
};

KERNEL(look_up, Embedding, 128, 0) {
  const i64 i = blockIdx.x * (i64)128 + threadIdx.x, first = (i64)blockIdx.z * p.mu * p.places;
  if (i >= (i64)p.mu * p.places * p.width) return;
  const i64 row = p.x[first + i / p.width];
  p.out[first * p.width + i] = p.held[blockIdx.z][p.weight + row * p.width + i % p.width];
}

// The sum over the places of a sample where a row occurs, in one column.
DEVICE float sum_of_places(const Embedding& p, const int* x, const float* errors, int row, int column) {
  float total = 0.0f;
  if (row == p.untrained) return total;
  for (int i = 0; i < p.places; i++)
    if (x[i] == row) total = total + errors[(i64)i * p.width + column];
  return total;
}

// A block has a row; a thread some of its columns.
KERNEL(mean_of_rows, Embedding, 128, 0) {
  const int row = blockIdx.x;
  const i64 first = (i64)blockIdx.z * p.mu * p.places;
  bool occurs = false;
  for (int i = threadIdx.x; i < p.mu * p.places; i += 128) occurs = occurs || p.x[first + i] == row;
  occurs = barrier_or(occurs);
  for (int column = threadIdx.x; column < p.width; column += 128) {
    float waiting[32], total = 0.0f;  // of any µ
    for (int m = 0; occurs && m < p.mu; m++) {
      const i64 sample = first + (i64)m * p.places;
      float sum = sum_of_places(p, p.x + sample, p.errors + sample * p.width, row, column);
      int level = 0;
      for (; m >> level & 1; level++) sum = waiting[level] + sum;
      waiting[level] = sum;
    }
    bool any = false;
    for (int level = 0; occurs && p.mu >> level; level++)
      if (p.mu >> level & 1) {
        total = any ? waiting[level] + total : waiting[level];
        any = true;
      }
    p.out[blockIdx.z * p.stride + p.weight + (i64)row * p.width + column] = mean_of(total, p.mu);
  }
}

// A block has a row and a sample: the samples' own gradients.
KERNEL(sums_of_rows, Embedding, 128, 0) {
  const int row = blockIdx.x, m = blockIdx.y;
  const i64 sample = ((i64)blockIdx.z * p.mu + m) * p.places, to = ((i64)blockIdx.z * p.mu + m) * p.rows + row;
  for (int column = threadIdx.x; column < p.width; column += 128)
    p.out[to * p.width + column] = sum_of_places(p, p.x + sample, p.errors + sample * p.width, row, column);
}
