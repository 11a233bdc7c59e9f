// Softmax cross-entropy of n samples, one a thread; one after the other in a thread go the classes:
//   top = the largest z, the first of equals; total = Σ_c exp(z_c − top), c ascending from +0
//   loss = log(total) − (z_label − top); error_c = exp(z_c − top) ÷ total, − 1 at the label, +0 if below 2⁻⁶²
#include "common.h"
#include "elementary.h"

struct Softmax {
  const float* z;     // (n, classes)
  const int* labels;  // of the data set
  const int* rows;    // (n,): which of the data set's samples these are
  float* losses;      // (n,)
  float* errors;      // (n, classes), or null
  u8* wrong;          // (n,): whether the answer, the first largest z, is not the label; or null
  int n;
  int classes;
};

KERNEL(softmax_cross_entropy, Softmax, 64, 0) {
  const i64 i = blockIdx.x * (i64)64 + threadIdx.x;
  if (i >= p.n) return;
  const float* const z = p.z + i * p.classes;
  const int label = p.labels[p.rows[i]];
  float top = z[0], total = 0.0f;
  int best = 0;
  for (int c = 1; c < p.classes; c++)
    if (z[c] > top) {
      top = z[c];
      best = c;
    }
  for (int c = 0; c < p.classes; c++) total = total + exp32(z[c] - top);
  p.losses[i] = log32(total) - (z[label] - top);
  if (p.wrong) p.wrong[i] = best != label;
  if (p.errors)
    for (int c = 0; c < p.classes; c++) {
      float error = exp32(z[c] - top) / total;
      if (c == label) error = error - 1.0f;
      p.errors[i * p.classes + c] = fabsf(error) < 0x1p-62f ? 0.0f : error;
    }
}
