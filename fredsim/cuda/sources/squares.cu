// Least squares, and a quadratic: fredsim.numerics.squares.
//
// The order of sums: a sample's error e = (Σ_k x[k]·w[k], k ascending from +0) − y; its loss e·e·½. Element i of the
// quadratic's gradient is (½·x[i] − ¼·x[i − 1]) − ¼·x[i + 1], + ¼ at element 0, then + its noise.
#include "common.h"

struct SquaredErrors {
  const float* const* held;  // (B,): each minibatch's parameters
  const float* x;            // the data set
  const float* y;
  const int* rows;           // (B, µ)
  float* losses;             // (B, µ)
  float* errors;             // (B, µ)
  int mu;
  int inputs;
};

KERNEL(squared_errors, SquaredErrors, 64, 0) {
  const int b = blockIdx.z, m = blockIdx.x * 64 + threadIdx.x;
  if (m >= p.mu) return;
  const i64 sample = (i64)b * p.mu + m, row = p.rows[sample];
  const float* const w = p.held[b];
  const float* const x = p.x + row * p.inputs;
  float total = 0.0f;
  for (int k = 0; k < p.inputs; k++) total = total + x[k] * w[k];
  const float error = total - p.y[row];
  p.losses[sample] = error * error * 0.5f;
  p.errors[sample] = error;
}

struct Quadratic {
  const float* const* held;  // (B,)
  const float* noise;        // (B, size), or null
  float* out;                // (B, size)
  int size;
};

KERNEL(quadratic_gradients, Quadratic, 128, 0) {
  const int b = blockIdx.z, i = blockIdx.x * 128 + threadIdx.x;
  if (i >= p.size) return;
  const float* const x = p.held[b];
  const i64 place = (i64)b * p.size + i;
  float total = 0.5f * x[i];
  if (i > 0) total = total - 0.25f * x[i - 1];
  if (i < p.size - 1) total = total - 0.25f * x[i + 1];
  if (i == 0) total = total + 0.25f;
  if (p.noise) total = total + p.noise[place];
  p.out[place] = total;
}
