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

// Blocks of 8 samples × 16 classes; the next STAGES − 1 chunks of inputs and parameters are on their way to shared
// memory while one is used.
KERNEL(outputs, Outputs, 128, 4 * (6 * 32 * 16 + 6 * 8 * 33 + 128)) {
  constexpr int T = 128, S = 8, C = 16, U = 32, STAGES = 6, PU = U + 1;
  SHARED(float, shared);
  float* const weights = shared;                        // [STAGES][U][classes]
  float* const inputs = shared + STAGES * U * C;        // [STAGES][S][PU]
  float* const exponentials = inputs + STAGES * S * PU;  // [S][C]
  const int t = threadIdx.x, b = blockIdx.z, m = t / C, c = t % C, sample0 = blockIdx.x * S;
  const int chunks = (p.inputs + U - 1) / U;
  const float* const w = p.held[b] + p.at;
  const float* from[S * U / T];
  UNROLL for (int i = 0; i < S * U / T; i++) {
    const int s = sample0 + (t + i * T) / U;
    const i64 sample = (i64)b * p.mu + s;
    from[i] = s < p.mu ? p.x + (p.gathered ? (i64)p.rows[sample] : sample) * p.inputs : nullptr;
  }
  auto request = [&](int chunk) {
    const int stage = chunk % STAGES, k0 = chunk * U;
    if (chunk < chunks) {
      for (int id = t; id < U * p.classes; id += T) {
        const bool valid = k0 * p.classes + id < p.inputs * p.classes;
        copy4(weights + stage * U * C + id, valid ? w + k0 * p.classes + id : w, valid);
      }
      UNROLL for (int i = 0; i < S * U / T; i++) {
        const int id = t + i * T, s = id / U, u = id % U;
        const bool valid = from[i] && k0 + u < p.inputs;
        copy4(inputs + (stage * S + s) * PU + u, valid ? from[i] + k0 + u : p.x, valid);
      }
    }
    end_group();
  };
  for (int chunk = 0; chunk < STAGES - 1; chunk++) request(chunk);
  float z = 0.0f;
  for (int chunk = 0; chunk < chunks; chunk++) {
    wait_for<STAGES - 2>();
    barrier();
    request(chunk + STAGES - 1);
    const float* const v = weights + chunk % STAGES * U * C;
    const float* const x = inputs + (chunk % STAGES * S + m) * PU;
    if (c < p.classes)
      UNROLL for (int u = 0; u < U; u++) z = z + x[u] * v[u * p.classes + c];
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
