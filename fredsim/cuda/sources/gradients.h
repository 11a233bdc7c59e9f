// What the kernels of gradients share; the order of the sums is in gradients.cu.
#include "common.h"

#define LAYERS 4
#define LEAVES 128  // the samples that a block of the kernels for many samples sums, as in fredsim/cuda/layers.py
struct Gradients {  // of up to LAYERS layers in one launch: those from `first_tile` on are a layer's
  const float* x[LAYERS];       // the data set, or h of the layer below (B, µ, inputs)
  const float* errors[LAYERS];  // (B, µ, width)
  i64 at[LAYERS];               // where the layer begins in a gradient
  int inputs[LAYERS];
  int width[LAYERS];
  int gathered[LAYERS];         // whether x is the data set, whose rows are `rows`
  int first_tile[LAYERS];
  const int* rows;              // (B, µ)
  float* out;                   // (B, parts, stride): means if there is one part, else sums
  i64 stride;
  int layers;
  int mu;
  int parts;
};

DEVICE int layer_of(const Gradients& p) {
  int l = 0;
  while (l + 1 < p.layers && (int)blockIdx.x >= p.first_tile[l + 1]) l++;
  return l;
}

// ---- at most 8 samples: a thread has a strip, up to ROWS neighbouring rows (inputs) of one column
#define ROWS 4
struct Strip {
  const float* x;
  const float* errors;
  i64 place;     // of its first weight in the parameters
  int inputs;
  int width;
  int column;
  int row;
  int count;     // how many rows there are; at most 0 beyond the last strip
  int gathered;
};

DEVICE Strip strip_of(const Gradients& p) {
  const int l = layer_of(p), width = p.width[l], inputs = p.inputs[l];
  const int id = (blockIdx.x - p.first_tile[l]) * 128 + threadIdx.x, column = id % width, row = id / width * ROWS;
  const i64 place = p.at[l] + (i64)row * width + column;
  return {p.x[l], p.errors[l], place, inputs, width, column, row, smaller(ROWS, inputs + 1 - row), p.gathered[l]};
}

// Write the gradient of minibatch b at a strip's weights to `means` (ROWS,).
template <int MU> DEVICE void strip_gradient(const Gradients& p, const Strip& strip, int b, float* means) {
  float leaves[ROWS][MU];
  UNROLL for (int m = 0; m < MU; m++) {
    const bool valid = m < p.mu;
    const i64 sample = (i64)b * p.mu + m;
    const float e = valid ? read(strip.errors + sample * strip.width + strip.column) : 0.0f;
    const float* const from = strip.x + (strip.gathered && valid ? (i64)read(p.rows + sample) : sample) * strip.inputs;
    UNROLL for (int i = 0; i < ROWS; i++) {
      const int k = strip.row + i;
      float x = k == strip.inputs ? 1.0f : 0.0f;
      if (valid && k < strip.inputs) x = read(from + k);
      leaves[i][m] = x * e;
    }
  }
  UNROLL for (int i = 0; i < ROWS; i++) {
    UNROLL for (int apart = 1; apart < MU; apart *= 2)
      UNROLL for (int m = 0; m + apart < MU; m += 2 * apart) leaves[i][m] = leaves[i][m] + leaves[i][m + apart];
    means[i] = mean_of(leaves[i][0], p.mu);
  }
}
