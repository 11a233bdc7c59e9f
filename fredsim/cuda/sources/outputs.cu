// The last layer of at most 16 classes and its loss, in one launch. The order of sums is that of dense.cu (forward) and
// of losses.cu: a thread has one class of one sample; the sum over the classes is formed by each of them, ascending.
#include "common.h"
#include "elementary.h"

struct Outputs {
  const float* const* held;  // (B,): each minibatch's parameters
  const float* x;            // the data set, or h of the layer below (B, µ, inputs)
  const int* rows;           // (B, µ)
  const int* labels;         // of the data set
  float* z;                  // (B, µ, classes)
  float* errors;             // (B, µ, classes)
  float* losses;             // (B, µ)
  i64 at;                    // where the layer begins in the parameters
  int mu;
  int inputs;
  int classes;
  int gathered;              // whether x is the data set, whose rows are `rows`
};

// Blocks of 8 samples × 16 classes; the next STAGES − 1 chunks of U inputs and their parameters are on their way to
// shared memory while one is used.
KERNEL(outputs, Outputs, 128, 4 * (6 * 32 * 16 + 6 * 8 * 36 + 128)) {
  constexpr int T = 128, S = 8, C = 16, U = 32, STAGES = 6, PU = U + 4;
  SHARED(float, shared);
  float* const weights = shared;                        // [STAGES][U · C], of which U × classes are used
  float* const inputs = shared + STAGES * U * C;        // [STAGES][S][PU]
  float* const exponentials = inputs + STAGES * S * PU;  // [S][C]
  const int t = threadIdx.x, b = blockIdx.z, m = t / C, c = t % C, sample0 = blockIdx.x * S;
  const int chunks = (p.inputs + U - 1) / U;
  const float* const w = p.held[b] + p.at;
  const bool fours = p.inputs % 4 == 0 && lies_in_fours(p.x) && lies_in_fours(w);
  const int s = t / (U / 4), u = t % (U / 4) * 4;  // the first S · U / 4 threads copy four inputs of a sample each
  const i64 copied = (i64)b * p.mu + smaller(sample0 + s % S, p.mu - 1);
  const float* const from = p.x + (p.gathered ? (i64)p.rows[copied] : copied) * p.inputs + u;
  auto request = [&](int chunk) {
    const int stage = chunk % STAGES, k0 = chunk * U, terms = p.inputs - k0;
    float* const to = inputs + (stage * S + s) * PU + u;
    float* const to_weights = weights + stage * U * C;
    const float* const of_weights = w + (i64)k0 * p.classes;
    if (fours && terms >= U) {
      if (s < S) copy16(to, from + k0);
      if (4 * t < U * p.classes) copy16(to_weights + 4 * t, of_weights + 4 * t);
    } else if (terms > 0) {
      if (s < S) copy_some(to, from + k0, p.x, terms - u);
      if (4 * t < U * p.classes) copy_some(to_weights + 4 * t, of_weights + 4 * t, w, terms * p.classes - 4 * t);
    }
    end_group();
  };
  for (int chunk = 0; chunk < STAGES - 1; chunk++) request(chunk);
  float z = 0.0f;
  for (int chunk = 0; chunk < chunks; chunk++) {
    wait_for<STAGES - 2>();
    barrier();
    request(chunk + STAGES - 1);
    const float* const v = weights + chunk % STAGES * U * C + c;
    const float* const x = inputs + (chunk % STAGES * S + m) * PU;
    if (c < p.classes)
      UNROLL for (int k = 0; k < U; k += 4) {
        alignas(16) float four[4];
        *(float4*)four = *(const float4*)(x + k);
        UNROLL for (int i = 0; i < 4; i++) z = z + four[i] * v[(k + i) * p.classes];
      }
  }
  const bool own = c < p.classes && sample0 + m < p.mu;
  if (own) z = z + w[(i64)p.inputs * p.classes + c];
  exponentials[t] = z;
  barrier();
  float top = exponentials[m * C];
  for (int i = 1; i < p.classes; i++) top = exponentials[m * C + i] > top ? exponentials[m * C + i] : top;
  const float mine = own ? exp32(z - top) : 0.0f;
  const i64 sample = (i64)b * p.mu + sample0 + m;
  const int label = own ? p.labels[p.rows[sample]] : 0;
  const float of_label = exponentials[m * C + label] - top;
  barrier();
  exponentials[t] = mine;
  barrier();
  if (!own) return;
  float total = 0.0f;
  for (int i = 0; i < p.classes; i++) total = total + exponentials[m * C + i];
  float error = mine / total;
  if (c == label) error = error - 1.0f;
  p.z[sample * p.classes + c] = z;
  p.errors[sample * p.classes + c] = fabsf(error) < 0x1p-62f ? 0.0f : error;
  if (c == 0) p.losses[sample] = log32(total) - of_label;
}
