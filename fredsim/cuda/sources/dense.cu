// Dense layers of B minibatches of µ samples, each at its own parameters.
//
// The order of sums, where w (inputs, width) and then b (width) are a layer's parameters:
//   forward    z[m, j] = (Σ_k x[m, k]·w[k, j], k ascending from +0) + b[j]
//   propagate  e[m, k] = Σ_j d[m, j]·w[k, j], j ascending from +0; then +0 unless z[m, k] > 0
// A thread holds the sums of a few outputs in registers; no sum is divided between threads. Terms beyond the last are
// 0·0, which change no sum: a sum that begins at +0 is never −0.
#include "common.h"

struct Dense {
  const float* const* held;  // (B,): each minibatch's parameters
  const float* x;            // what is combined: the data set, z of the layer below (µ rows a minibatch), or errors
  const int* rows;           // (B, µ): the samples' rows of the data set, of the first layer
  const float* z;            // of the layer below, (B, µ, inputs): which errors pass
  float* out;                // (B, µ, width) or (B, µ, inputs)
  i64 at;                    // where the layer begins in the parameters
  int mu;
  int inputs;
  int width;
};

enum Kind { FIRST, HIDDEN, BACK };

// ---- tiles of M samples × N outputs of one minibatch, for many samples, in blocks of (M / TM)·(N / TN) threads with TM × TN sums each.
// K terms at a time are in shared memory, twice: while one half is used, the other is filled.
template <int M, int N, int K, int TM, int TN, int KIND> DEVICE void tile(const Dense& p) {
  constexpr int T = (M / TM) * (N / TN), PM = M + 4, PN = N + 4, LM = M * K / T, LN = N * K / T;
  SHARED(float, shared);  // [2][K][PM], then [2][K][PN]
  float* const left = shared;
  float* const right = shared + 2 * K * PM;
  const int t = threadIdx.x, b = blockIdx.z, m0 = blockIdx.x * M, n0 = blockIdx.y * N, tm = t / (N / TN), tn = t % (N / TN);
  const int length = KIND == BACK ? p.width : p.inputs, columns = KIND == BACK ? p.inputs : p.width;
  const float* const w = p.held[b] + p.at;
  const float* from[LM];
  UNROLL for (int i = 0; i < LM; i++) {
    const int m = m0 + (t + i * T) / K;
    const i64 sample = (i64)b * p.mu + m;
    from[i] = m < p.mu ? p.x + (KIND == FIRST ? (i64)p.rows[sample] : sample) * length : nullptr;
  }
  float a[LM], c[LN];
  auto fetch = [&](int k0) {
    UNROLL for (int i = 0; i < LM; i++) {
      const int k = k0 + (t + i * T) % K;
      a[i] = from[i] && k < length ? from[i][k] : 0.0f;
      if (KIND == HIDDEN) a[i] = positive(a[i]);
    }
    UNROLL for (int i = 0; i < LN; i++) {
      const int id = t + i * T, k = k0 + (KIND == BACK ? id % K : id / N), n = n0 + (KIND == BACK ? id / K : id % N);
      c[i] = k < length && n < columns ? w[KIND == BACK ? (i64)n * length + k : (i64)k * columns + n] : 0.0f;
    }
  };
  auto put = [&](int half) {
    UNROLL for (int i = 0; i < LM; i++) {
      const int id = t + i * T;
      left[(half * K + id % K) * PM + id / K] = a[i];
    }
    UNROLL for (int i = 0; i < LN; i++) {
      const int id = t + i * T, k = KIND == BACK ? id % K : id / N, n = KIND == BACK ? id / K : id % N;
      right[(half * K + k) * PN + n] = c[i];
    }
  };
  auto row = [&](int i) { return i / 4 * (M / (TM / 4)) + tm * 4 + i % 4; };
  auto column = [&](int j) { return j / 4 * (N / (TN / 4)) + tn * 4 + j % 4; };
  float sum[TM][TN];
  UNROLL for (int i = 0; i < TM; i++)
    UNROLL for (int j = 0; j < TN; j++) sum[i][j] = 0.0f;
  const int steps = (length + K - 1) / K;
  fetch(0);
  put(0);
  barrier();
  for (int step = 0; step < steps; step++) {
    if (step + 1 < steps) fetch((step + 1) * K);
    const float* const A = left + (step & 1) * K * PM;
    const float* const C = right + (step & 1) * K * PN;
    UNROLL for (int k = 0; k < K; k++) {
      float u[TM], v[TN];
      UNROLL for (int i = 0; i < TM; i += 4) *(float4*)(u + i) = *(const float4*)(A + k * PM + row(i));
      UNROLL for (int j = 0; j < TN; j += 4) *(float4*)(v + j) = *(const float4*)(C + k * PN + column(j));
      UNROLL for (int i = 0; i < TM; i++)
        UNROLL for (int j = 0; j < TN; j++) sum[i][j] = sum[i][j] + u[i] * v[j];
    }
    if (step + 1 < steps) put((step + 1) & 1);
    barrier();
  }
  UNROLL for (int j = 0; j < TN; j++) {
    const int n = n0 + column(j);
    if (n >= columns) continue;
    const float bias = KIND == BACK ? 0.0f : w[(i64)length * columns + n];
    UNROLL for (int i = 0; i < TM; i++) {
      const int m = m0 + row(i);
      if (m >= p.mu) continue;
      const i64 place = ((i64)b * p.mu + m) * columns + n;
      if (KIND == BACK) p.out[place] = p.z[place] > 0.0f ? sum[i][j] : 0.0f;
      else p.out[place] = sum[i][j] + bias;
    }
  }
}

KERNEL(forward_first_64, Dense, 128, 4 * 2 * 16 * (68 + 68)) { tile<64, 64, 16, 8, 4, FIRST>(p); }
KERNEL(forward_64, Dense, 128, 4 * 2 * 16 * (68 + 68)) { tile<64, 64, 16, 8, 4, HIDDEN>(p); }
KERNEL(propagate_64, Dense, 128, 4 * 2 * 16 * (68 + 68)) { tile<64, 64, 16, 8, 4, BACK>(p); }

// ---- tiles of 16 samples × 32 outputs, for few samples or few minibatches, where latency counts: a thread has 2 × 4
// sums, and the next STAGES − 1 chunks of K terms are on their way to shared memory while one is used.
template <int KIND> DEVICE void small_tile(const Dense& p) {
  constexpr int T = 64, M = 16, N = 32, K = 32, PM = M + 4, PN = N + 4, STAGES = 4, LM = M * K / T, LN = N * K / T;
  SHARED(float, shared);
  float* const left = shared;                    // [STAGES][K][PM]
  float* const right = shared + STAGES * K * PM;  // [STAGES][K][PN]
  const int t = threadIdx.x, b = blockIdx.z, m0 = blockIdx.x * M, n0 = blockIdx.y * N, tm = t / 8 * 2, tn = t % 8 * 4;
  const int length = KIND == BACK ? p.width : p.inputs, columns = KIND == BACK ? p.inputs : p.width;
  const int chunks = (length + K - 1) / K;
  const float* const w = p.held[b] + p.at;
  const float* from[LM];
  UNROLL for (int i = 0; i < LM; i++) {
    const int m = m0 + (t + i * T) / K;
    const i64 sample = (i64)b * p.mu + m;
    from[i] = m < p.mu ? p.x + (KIND == FIRST ? (i64)p.rows[sample] : sample) * length : nullptr;
  }
  auto request = [&](int chunk) {
    const int stage = chunk % STAGES, k0 = chunk * K;
    if (chunk < chunks) {
      UNROLL for (int i = 0; i < LM; i++) {
        const int id = t + i * T, k = id % K;
        const bool valid = from[i] && k0 + k < length;
        copy4(left + (stage * K + k) * PM + id / K, valid ? from[i] + k0 + k : p.x, valid);
      }
      UNROLL_LITTLE for (int i = 0; i < LN; i++) {
        const int id = t + i * T, k = KIND == BACK ? id % K : id / N, n = KIND == BACK ? id / K : id % N;
        const bool valid = k0 + k < length && n0 + n < columns;
        const i64 place = KIND == BACK ? (i64)(n0 + n) * length + k0 + k : (i64)(k0 + k) * columns + n0 + n;
        copy4(right + (stage * K + k) * PN + n, valid ? w + place : w, valid);
      }
    }
    end_group();
  };
  for (int chunk = 0; chunk < STAGES - 1; chunk++) request(chunk);
  float sum[2][4] = {};
  for (int chunk = 0; chunk < chunks; chunk++) {
    wait_for<STAGES - 2>();
    barrier();
    request(chunk + STAGES - 1);
    const float* const A = left + chunk % STAGES * K * PM + tm;
    const float* const C = right + chunk % STAGES * K * PN + tn;
    UNROLL for (int k = 0; k < K; k++) {
      float v[4];
      *(float4*)v = *(const float4*)(C + k * PN);
      UNROLL for (int i = 0; i < 2; i++) {
        const float u = KIND == HIDDEN ? positive(A[k * PM + i]) : A[k * PM + i];
        UNROLL for (int j = 0; j < 4; j++) sum[i][j] = sum[i][j] + u * v[j];
      }
    }
  }
  UNROLL for (int i = 0; i < 2; i++) {
    const int m = m0 + tm + i;
    if (m >= p.mu) continue;
    UNROLL for (int j = 0; j < 4; j++) {
      const int n = n0 + tn + j;
      if (n >= columns) continue;
      const i64 place = ((i64)b * p.mu + m) * columns + n;
      if (KIND == BACK) p.out[place] = p.z[place] > 0.0f ? sum[i][j] : 0.0f;
      else p.out[place] = sum[i][j] + w[(i64)length * columns + n];
    }
  }
}

KERNEL(forward_first_16, Dense, 64, 4 * 4 * 32 * (20 + 36)) { small_tile<FIRST>(p); }
KERNEL(forward_16, Dense, 64, 4 * 4 * 32 * (20 + 36)) { small_tile<HIDDEN>(p); }
KERNEL(propagate_16, Dense, 64, 4 * 4 * 32 * (20 + 36)) { small_tile<BACK>(p); }

// ---- errors below a layer of at most 16 outputs: a thread has one input of the layer, whose row of w is in registers,
// and up to 8 samples.
KERNEL(propagate_narrow, Dense, 128, 4 * 8 * 16) {
  SHARED(float, errors);  // [8][width]
  const int t = threadIdx.x, b = blockIdx.z, m0 = blockIdx.x * 8, n = blockIdx.y * 128 + t;
  const int count = smaller(8, p.mu - m0);
  const i64 sample = (i64)b * p.mu + m0;
  for (int i = t; i < count * p.width; i += 128) errors[i] = p.x[sample * p.width + i];
  barrier();
  if (n >= p.inputs) return;
  const float* const w = p.held[b] + p.at + (i64)n * p.width;
  float row[16];
  UNROLL for (int j = 0; j < 16; j++) row[j] = j < p.width ? w[j] : 0.0f;
  for (int m = 0; m < count; m++) {
    float sum = 0.0f;
    UNROLL for (int j = 0; j < 16; j++)
      if (j < p.width) sum = sum + errors[m * p.width + j] * row[j];
    const i64 place = (sample + m) * p.inputs + n;
    p.out[place] = p.z[place] > 0.0f ? sum : 0.0f;
  }
}

// ---- at most 8 samples: moving the parameters takes longest. A thread has one output of all MU ≥ µ samples; the next
// STAGES − 1 chunks of parameters and inputs are on their way to shared memory while one is used.
template <int MU, int KIND> DEVICE void thin_forward(const Dense& p) {
  constexpr int T = 64, U = 16, STAGES = 6, LX = (U * MU + T - 1) / T;
  SHARED(float, shared);
  float* const weights = shared;                      // [STAGES][U][T]
  float* const inputs = shared + STAGES * U * T;      // [STAGES][U][MU]
  const int t = threadIdx.x, b = blockIdx.z, n0 = blockIdx.x * T, n = n0 + t, chunks = (p.inputs + U - 1) / U;
  const float* const w = p.held[b] + p.at;
  const bool wide = p.width % 4 == 0 && ((i64)w & 15) == 0;
  const float* from[LX];
  UNROLL for (int i = 0; i < LX; i++) {
    const int m = (t + i * T) / U;
    const i64 sample = (i64)b * p.mu + m;
    from[i] = m < p.mu ? p.x + (KIND == FIRST ? (i64)p.rows[sample] : sample) * p.inputs : nullptr;
  }
  auto request = [&](int chunk) {
    const int stage = chunk % STAGES, k0 = chunk * U;
    if (chunk < chunks) {
      if (wide) {
        UNROLL for (int i = 0; i < U * T / 4 / T; i++) {
          const int id = t + i * T, u = id / (T / 4), c = id % (T / 4) * 4;
          const bool valid = k0 + u < p.inputs && n0 + c < p.width;
          copy16(weights + (stage * U + u) * T + c, valid ? w + (i64)(k0 + u) * p.width + n0 + c : w, valid);
        }
      } else {
        UNROLL_LITTLE for (int u = 0; u < U; u++) {
          const bool valid = k0 + u < p.inputs && n < p.width;
          copy4(weights + (stage * U + u) * T + t, valid ? w + (i64)(k0 + u) * p.width + n : w, valid);
        }
      }
      UNROLL for (int i = 0; i < LX; i++) {
        const int id = t + i * T, m = id / U, u = id % U;
        const bool valid = from[i] && k0 + u < p.inputs;
        if (m < MU) copy4(inputs + (stage * U + u) * MU + m, valid ? from[i] + k0 + u : p.x, valid);
      }
    }
    end_group();
  };
  for (int chunk = 0; chunk < STAGES - 1; chunk++) request(chunk);
  float sum[MU];
  UNROLL for (int m = 0; m < MU; m++) sum[m] = 0.0f;
  for (int chunk = 0; chunk < chunks; chunk++) {
    wait_for<STAGES - 2>();
    barrier();
    request(chunk + STAGES - 1);
    const float* const v = weights + chunk % STAGES * U * T + t;
    const float* const x = inputs + chunk % STAGES * U * MU;
    UNROLL for (int u = 0; u < U; u++)
      UNROLL for (int m = 0; m < MU; m++) {
        const float factor = x[u * MU + m];
        sum[m] = sum[m] + (KIND == FIRST ? factor : positive(factor)) * v[u * T];
      }
  }
  if (n >= p.width) return;
  const float bias = w[(i64)p.inputs * p.width + n];
  UNROLL for (int m = 0; m < MU; m++)
    if (m < p.mu) p.out[((i64)b * p.mu + m) * p.width + n] = sum[m] + bias;
}

// A thread has one input of the layer, that is, a row of w.
template <int MU> DEVICE void thin_propagate(const Dense& p) {
  constexpr int T = 64, J = 32, PJ = J + 4, STAGES = 4, LE = (J * MU + T - 1) / T;
  SHARED(float, shared);
  float* const weights = shared;                     // [STAGES][T][PJ]
  float* const errors = shared + STAGES * T * PJ;    // [STAGES][J][MU]
  const int t = threadIdx.x, b = blockIdx.z, n0 = blockIdx.x * T, n = n0 + t, chunks = (p.width + J - 1) / J;
  const float* const w = p.held[b] + p.at;
  const bool wide = p.width % 4 == 0 && ((i64)w & 15) == 0;
  auto request = [&](int chunk) {
    const int stage = chunk % STAGES, j0 = chunk * J;
    if (chunk < chunks) {
      if (wide) {
        UNROLL for (int i = 0; i < T * J / 4 / T; i++) {
          const int id = t + i * T, r = id / (J / 4), j = id % (J / 4) * 4;
          const bool valid = n0 + r < p.inputs && j0 + j < p.width;
          copy16(weights + (stage * T + r) * PJ + j, valid ? w + (i64)(n0 + r) * p.width + j0 + j : w, valid);
        }
      } else {
        UNROLL_LITTLE for (int i = 0; i < J; i++) {
          const int id = t + i * T, r = id / J, j = id % J;
          const bool valid = n0 + r < p.inputs && j0 + j < p.width;
          copy4(weights + (stage * T + r) * PJ + j, valid ? w + (i64)(n0 + r) * p.width + j0 + j : w, valid);
        }
      }
      UNROLL for (int i = 0; i < LE; i++) {
        const int id = t + i * T, m = id / J, j = id % J;
        const bool valid = m < p.mu && j0 + j < p.width;
        if (m < MU) copy4(errors + (stage * J + j) * MU + m, valid ? p.x + ((i64)b * p.mu + m) * p.width + j0 + j : p.x, valid);
      }
    }
    end_group();
  };
  for (int chunk = 0; chunk < STAGES - 1; chunk++) request(chunk);
  float sum[MU];
  UNROLL for (int m = 0; m < MU; m++) sum[m] = 0.0f;
  for (int chunk = 0; chunk < chunks; chunk++) {
    wait_for<STAGES - 2>();
    barrier();
    request(chunk + STAGES - 1);
    const float* const v = weights + (chunk % STAGES * T + t) * PJ;
    const float* const e = errors + chunk % STAGES * J * MU;
    UNROLL for (int j = 0; j < J; j += 4) {
      float four[4];
      *(float4*)four = *(const float4*)(v + j);
      UNROLL for (int i = 0; i < 4; i++)
        UNROLL for (int m = 0; m < MU; m++) sum[m] = sum[m] + e[(j + i) * MU + m] * four[i];
    }
  }
  if (n >= p.inputs) return;
  UNROLL for (int m = 0; m < MU; m++) {
    const i64 place = ((i64)b * p.mu + m) * p.inputs + n;
    if (m < p.mu) p.out[place] = p.z[place] > 0.0f ? sum[m] : 0.0f;
  }
}

KERNEL(forward_first_thin_1, Dense, 64, 4 * 6 * 16 * (64 + 1)) { thin_forward<1, FIRST>(p); }
KERNEL(forward_first_thin_2, Dense, 64, 4 * 6 * 16 * (64 + 2)) { thin_forward<2, FIRST>(p); }
KERNEL(forward_first_thin_4, Dense, 64, 4 * 6 * 16 * (64 + 4)) { thin_forward<4, FIRST>(p); }
KERNEL(forward_first_thin_8, Dense, 64, 4 * 6 * 16 * (64 + 8)) { thin_forward<8, FIRST>(p); }
KERNEL(forward_thin_1, Dense, 64, 4 * 6 * 16 * (64 + 1)) { thin_forward<1, HIDDEN>(p); }
KERNEL(forward_thin_2, Dense, 64, 4 * 6 * 16 * (64 + 2)) { thin_forward<2, HIDDEN>(p); }
KERNEL(forward_thin_4, Dense, 64, 4 * 6 * 16 * (64 + 4)) { thin_forward<4, HIDDEN>(p); }
KERNEL(forward_thin_8, Dense, 64, 4 * 6 * 16 * (64 + 8)) { thin_forward<8, HIDDEN>(p); }
KERNEL(propagate_thin_1, Dense, 64, 4 * 4 * (64 * 36 + 32 * 1)) { thin_propagate<1>(p); }
KERNEL(propagate_thin_2, Dense, 64, 4 * 4 * (64 * 36 + 32 * 2)) { thin_propagate<2>(p); }
KERNEL(propagate_thin_4, Dense, 64, 4 * 4 * (64 * 36 + 32 * 4)) { thin_propagate<4>(p); }
KERNEL(propagate_thin_8, Dense, 64, 4 * 4 * (64 * 36 + 32 * 8)) { thin_propagate<8>(p); }
