// Losses of networks, of B minibatches of µ samples. A loss of several places, or elements, is their sum in row-major
// order from +0, divided once; sums over classes ascend from +0:
//   cross-entropy  log Σ exp(z − top) − (z_label − top), top being the largest z, the first of equals;
//                  the error exp(z − top) ÷ Σ, − 1 at the label, +0 if below 2⁻⁶²
//   smoothed by ε  rest·(this) + share·Σ (log Σ exp(z − top) − (z − top)), share = ε ÷ classes, rest = 1 − ε
//   squared        Σ (z − y)·(z − y); binary: max(z, 0) − z·y + log(1 + exp(−|z|)) in double, each rounded once
#include "common.h"
#include "elementary.h"

struct CrossEntropy {
  const float* z;      // (B, µ, places, classes)
  const int* labels;   // of the data set: (n, places)
  const int* rows;     // (B, µ)
  float* losses;       // (B, µ)
  float* errors;       // as z, or null
  double* wrong;       // (B, µ): the share of wrong answers, or null
  float* each;         // (B, µ, places): the places' losses; null: a sample has one place, which always counts
  int mu;
  int places;
  int classes;
  int ignored;         // the label that does not count,
  int ignores;         // if there is one
  int smooth;
  float share;
  float rest;
};

DEVICE int count_of(const CrossEntropy& p, const int* labels) {
  if (!p.ignores) return p.places;
  int count = 0;
  for (int i = 0; i < p.places; i++) count += labels[i] != p.ignored;
  return count;
}

DEVICE int largest(const float* z, int classes) {
  int best = 0;
  for (int c = 1; c < classes; c++) best = z[c] > z[best] ? c : best;
  return best;
}

KERNEL(cross_entropy, CrossEntropy, 64, 0) {  // a thread has a place of a sample
  const i64 i = blockIdx.x * (i64)64 + threadIdx.x;
  if (i >= (i64)p.mu * p.places) return;
  const i64 sample = blockIdx.z * (i64)p.mu + i / p.places, at = blockIdx.z * (i64)p.mu * p.places + i;
  const int* const labels = p.labels + (i64)p.rows[sample] * p.places;
  const int given = labels[i % p.places];
  const bool counts = !p.ignores || given != p.ignored;
  const int label = counts ? given : 0;
  const float* const z = p.z + at * p.classes;
  float* const errors = p.errors ? p.errors + at * p.classes : nullptr;
  const int best = largest(z, p.classes);
  const float top = z[best];
  float total = 0.0f;
  for (int c = 0; c < p.classes; c++) {
    const float part = exp32(z[c] - top);
    if (errors) errors[c] = part;
    total = total + part;
  }
  const float log_total = log32(total), own = log_total - (z[label] - top);
  float loss = own;
  if (p.smooth) {
    float others = 0.0f;
    for (int c = 0; c < p.classes; c++) others = others + (log_total - (z[c] - top));
    loss = p.rest * own + p.share * others;
  }
  if (!counts) loss = 0.0f;
  if (p.each) p.each[at] = loss;
  else {
    p.losses[sample] = loss;
    if (p.wrong) p.wrong[sample] = best != label;
  }
  if (!errors) return;
  const float count = (float)larger(1, p.each ? count_of(p, labels) : 1);
  for (int c = 0; c < p.classes; c++) {
    float error = errors[c] / total;
    if (p.smooth) error = error - (c == label ? p.rest + p.share : p.share);
    else if (c == label) error = error - 1.0f;
    if (fabsf(error) < 0x1p-62f || !counts) error = 0.0f;
    errors[c] = p.each ? error / count : error;
  }
}

KERNEL(sum_of_places, CrossEntropy, 64, 0) {  // a thread has a sample
  const int m = blockIdx.x * 64 + threadIdx.x;
  if (m >= p.mu) return;
  const i64 sample = blockIdx.z * (i64)p.mu + m;
  const int* const labels = p.labels + (i64)p.rows[sample] * p.places;
  const int count = larger(1, count_of(p, labels));
  float total = 0.0f;
  int wrong = 0;
  for (int i = 0; i < p.places; i++) {
    total = total + p.each[sample * p.places + i];
    if (p.wrong && !(p.ignores && labels[i] == p.ignored))
      wrong += largest(p.z + (sample * p.places + i) * p.classes, p.classes) != labels[i];
  }
  p.losses[sample] = total / (float)count;
  if (p.wrong) p.wrong[sample] = (double)wrong / (double)count;
}

struct Elements {
  const float* z;        // (B, µ, count)
  const float* targets;  // of the data set: (n, count)
  const int* rows;       // (B, µ)
  float* losses;         // (B, µ)
  float* errors;         // as z, or null
  double* wrong;         // (B, µ): the share of wrong answers, NaN if there is none; or null
  int mu;
  int count;
  int half;              // of a squared error: e·e·½, whose error is e
};

template <bool BINARY> DEVICE void elements(const Elements& p) {  // a thread has a sample
  const int m = blockIdx.x * 64 + threadIdx.x;
  if (m >= p.mu) return;
  const i64 sample = blockIdx.z * (i64)p.mu + m;
  const float* const z = p.z + sample * p.count;
  const float* const y = p.targets + (i64)p.rows[sample] * p.count;
  const float count = (float)p.count;
  float total = 0.0f;
  int wrong = 0;
  for (int i = 0; i < p.count; i++) {
    float error;
    if (BINARY) {
      const double wide = z[i], wanted = y[i];
      double loss = (wide > 0.0 ? wide : 0.0) - wide * wanted + log64(1.0 + exp64(-fabs(wide)));
      if (wide != wide) loss = wide;
      total = total + (float)loss;
      wrong += (z[i] > 0.0f) != (y[i] > 0.5f);
      error = (float)(sigmoid64(wide) - wanted) / count;
    } else {
      const float e = z[i] - y[i];
      total = total + e * e;
      error = p.half ? e : e * 2.0f / count;
    }
    if (p.errors) p.errors[sample * p.count + i] = error;
  }
  p.losses[sample] = p.half ? total * 0.5f : total / count;
  if (p.wrong) p.wrong[sample] = BINARY ? (double)wrong / (double)p.count : double_of(0x7ff8000000000000ll);
}

KERNEL(squared_error, Elements, 64, 0) { elements<false>(p); }
KERNEL(binary_cross_entropy, Elements, 64, 0) { elements<true>(p); }
