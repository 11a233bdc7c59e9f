// Dense layers of B minibatches of µ samples, each at its own parameters.
//
// The order of sums, where w (inputs, width) and then b (width) are a layer's parameters:
//   forward    z[m, j] = (Σ_k x[m, k]·w[k, j], k ascending from +0) + b[j]; of a hidden layer h = z if z > 0, else +0
//   propagate  e[m, k] = Σ_j d[m, j]·w[k, j], j ascending from +0; then +0 unless h[m, k] > 0
// A thread holds the sums of a few outputs in registers; no sum is divided between threads. Terms beyond the last are
// 0·0, which change no sum: a sum that begins at +0 is never −0.
#define RESIDENT 512  // at most 128 registers a thread, which suffice
#include "common.h"

struct Dense {
  const float* const* held;  // (B,): each minibatch's parameters
  const float* x;            // what is combined: the data set, h of the layer below (µ rows a minibatch), or errors
  const int* rows;           // (B, µ): the samples' rows of the data set, of the first layer; else null
  const float* h;            // of the layer below, (B, µ, inputs): which errors pass
  float* out;                // (B, µ, width) or (B, µ, inputs)
  i64 at;                    // where the layer begins in the parameters
  int mu;
  int inputs;
  int width;
  int hidden;                // whether h is written, not z
};

// Where the inputs of sample m of minibatch b begin, of `length` numbers.
DEVICE const float* inputs_of(const Dense& p, int b, int m, int length) {
  const i64 sample = (i64)b * p.mu + m;
  return p.x + (p.rows ? (i64)p.rows[sample] : sample) * length;
}

DEVICE float output_of(const Dense& p, float sum, float bias) { return p.hidden ? positive(sum + bias) : sum + bias; }

// ---- tiles of M samples × N outputs of one minibatch, by blocks of T threads: a thread has TM × TN sums. The next
// STAGES − 1 chunks of K terms are on their way to shared memory while one is used, LM and LN copies of four floats a
// thread. Rows of K terms have 4 floats behind them, so that a warp's are in different banks.
template <int M, int N, int TN, int K, int STAGES, bool BACK> DEVICE void tile(const Dense& p) {
  constexpr int TM = M / 8, T = 8 * N / TN, PK = K + 4, LM = M * K / 4 / T, LN = N * K / 4 / T;
  constexpr int LEFT = M * PK, RIGHT = BACK ? N * PK : K * N;
  SHARED(float, shared);
  float* const left = shared;                    // [STAGES][M][PK]
  float* const right = shared + STAGES * LEFT;   // [STAGES][K][N]; of w's rows, which have the terms, [STAGES][N][PK]
  auto left_at = [](int id) { return id / (K / 4) * PK + id % (K / 4) * 4; };
  auto right_at = [](int id) {
    return BACK ? id / (K / 4) * PK + id % (K / 4) * 4 : id / (N / 4) * N + id % (N / 4) * 4;
  };
  const Lane own = lane_of<N / TN>();
  const int t = threadIdx.x, b = blockIdx.z, m0 = blockIdx.x * M, n0 = blockIdx.y * N;
  const int length = BACK ? p.width : p.inputs, columns = BACK ? p.inputs : p.width, chunks = (length + K - 1) / K;
  const float* const w = p.held[b] + p.at;
  const bool together = lies_in_fours(p.x) && lies_in_fours(p.out) && lies_in_fours(w);
  const bool fours = length % 4 == 0 && columns % 4 == 0 && together;
  // Where a thread's copies of the next chunk begin. What is beyond the last sample or column is that of another or +0,
  // as nobody sees these sums; what is beyond the last term is +0.
  const float* a[LM];
  const float* c[LN];
  UNROLL for (int i = 0; i < LM; i++) {
    const int id = t + i * T;
    a[i] = inputs_of(p, b, smaller(m0 + id / (K / 4), p.mu - 1), length) + id % (K / 4) * 4;
  }
  UNROLL for (int i = 0; i < LN; i++) {
    const int id = t + i * T;
    if (BACK) c[i] = w + (i64)smaller(n0 + id / (K / 4), columns - 1) * length + id % (K / 4) * 4;
    else c[i] = w + (i64)(id / (N / 4)) * columns + (n0 + id % (N / 4) * 4 < columns ? n0 + id % (N / 4) * 4 : 0);
  }
  int terms = length;  // that are not requested yet
  auto request = [&](float* to_left, float* to_right) {
    if (fours && terms >= K) {
      UNROLL for (int i = 0; i < LM; i++) copy16(to_left + left_at(t + i * T), a[i]);
      UNROLL for (int i = 0; i < LN; i++) copy16(to_right + right_at(t + i * T), c[i]);
    } else if (terms > 0) {
      UNROLL for (int i = 0; i < LM; i++) {
        const int id = t + i * T;
        copy_some(to_left + left_at(id), a[i], p.x, terms - id % (K / 4) * 4);
      }
      UNROLL for (int i = 0; i < LN; i++) {
        const int id = t + i * T, n = n0 + id % (N / 4) * 4;
        const int count = BACK ? terms - id % (K / 4) * 4 : id / (N / 4) < terms ? columns - n : 0;
        copy_some(to_right + right_at(id), c[i], w, count);
      }
    }
    end_group();
    UNROLL for (int i = 0; i < LM; i++) a[i] += K;
    UNROLL for (int i = 0; i < LN; i++) c[i] += BACK ? K : (i64)K * columns;
    terms -= K;
  };
  UNROLL for (int stage = 0; stage < STAGES - 1; stage++) request(left + stage * LEFT, right + stage * RIGHT);
  float sum[TM][TN];
  UNROLL for (int i = 0; i < TM; i++)
    UNROLL for (int j = 0; j < TN; j++) sum[i][j] = 0.0f;
  const float* A = left + own.row * PK;  // of the chunk that is used
  const float* C = right + (BACK ? own.column * PK : own.column * TN);
  for (int chunk = 0, stage = 0; chunk < chunks; chunk++) {
    wait_for<STAGES - 2>();
    barrier();
    const int next = stage == 0 ? STAGES - 1 : stage - 1;
    request(left + next * LEFT, right + next * RIGHT);
    UNROLL for (int k = 0; k < K; k += 4) {
      float u[TM][4], v[4][4];  // v of four terms, or of the columns
      UNROLL for (int i = 0; i < TM; i++) *(float4*)u[i] = *(const float4*)(A + 8 * i * PK + k);
      if (BACK) {
        UNROLL for (int j = 0; j < TN; j++) *(float4*)v[j] = *(const float4*)(C + N / TN * j * PK + k);
      } else {
        UNROLL for (int term = 0; term < 4; term++) {
          if (TN == 4) *(float4*)v[term] = *(const float4*)(C + (k + term) * N);
          else *(float2*)v[term] = *(const float2*)(C + (k + term) * N);
        }
      }
      UNROLL for (int term = 0; term < 4; term++)
        UNROLL for (int i = 0; i < TM; i++)
          UNROLL for (int j = 0; j < TN; j++) sum[i][j] = sum[i][j] + u[i][term] * (BACK ? v[j][term] : v[term][j]);
    }
    const bool last = stage == STAGES - 1;
    stage = last ? 0 : stage + 1;
    A += last ? -(STAGES - 1) * LEFT : LEFT;
    C += last ? -(STAGES - 1) * RIGHT : RIGHT;
  }
  // A thread's columns are neighbours, or with w's rows, of which a warp reads neighbours together, N / TN apart.
  const int n = n0 + own.column * (BACK ? 1 : TN), apart = BACK ? N / TN : 1;
  float bias[TN], h[TM][TN];
  UNROLL for (int j = 0; j < TN; j++) bias[j] = !BACK && n + j < columns ? w[(i64)length * columns + n + j] : 0.0f;
  UNROLL for (int i = 0; i < TM; i++)  // all are read before the first is waited for
    UNROLL for (int j = 0; j < TN; j++) {
      const i64 sample = (i64)b * p.mu + smaller(m0 + own.row + 8 * i, p.mu - 1);
      h[i][j] = BACK ? read(p.h + sample * columns + smaller(n + j * apart, columns - 1)) : 0.0f;
    }
  UNROLL for (int i = 0; i < TM; i++) {
    const int m = m0 + own.row + 8 * i;
    const i64 place = ((i64)b * p.mu + m) * columns + n;
    alignas(16) float found[TN];
    UNROLL for (int j = 0; j < TN; j++) {
      found[j] = !BACK ? output_of(p, sum[i][j], bias[j]) : h[i][j] > 0.0f ? sum[i][j] : 0.0f;
      if ((BACK || TN < 4) && m < p.mu && n + j * apart < columns) p.out[place + j * apart] = found[j];
    }
    if (!BACK && TN == 4 && m < p.mu) write_four(p.out + place, found, columns - n, fours && n < columns);
  }
}

// Large tiles for many samples; small ones for few samples or few minibatches, where latency counts.
#define LARGE(M, N, BACK) tile<M, N, 4, 16, 3, BACK>(p)
#define SMALL(M, N, TN, BACK) tile<M, N, TN, 32, 4, BACK>(p)
KERNEL(forward_64x64, Dense, 128, 4 * 3 * (64 * 20 + 16 * 64)) { LARGE(64, 64, false); }
KERNEL(forward_64x32, Dense, 64, 4 * 3 * (64 * 20 + 16 * 32)) { LARGE(64, 32, false); }
KERNEL(forward_16x32, Dense, 64, 4 * 4 * (16 * 36 + 32 * 32)) { SMALL(16, 32, 4, false); }
KERNEL(forward_8x16, Dense, 64, 4 * 4 * (8 * 36 + 32 * 16)) { SMALL(8, 16, 2, false); }
KERNEL(propagate_64x64, Dense, 128, 4 * 3 * (64 * 20 + 64 * 20)) { LARGE(64, 64, true); }
KERNEL(propagate_64x32, Dense, 64, 4 * 3 * (64 * 20 + 32 * 20)) { LARGE(64, 32, true); }
KERNEL(propagate_16x32, Dense, 64, 4 * 4 * (16 * 36 + 32 * 36)) { SMALL(16, 32, 4, true); }
KERNEL(propagate_8x16, Dense, 64, 4 * 4 * (8 * 36 + 16 * 36)) { SMALL(8, 16, 2, true); }

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
    p.out[place] = p.h[place] > 0.0f ? sum : 0.0f;
  }
}

// ---- at most 8 samples: moving the parameters takes longest. A thread has one output of all MU ≥ µ samples; the next
// STAGES − 1 chunks of parameters and inputs are on their way to shared memory while one is used.
template <int MU> DEVICE void thin_forward(const Dense& p) {
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
    from[i] = m < p.mu ? inputs_of(p, b, m, p.inputs) : nullptr;
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
      UNROLL for (int m = 0; m < MU; m++) sum[m] = sum[m] + x[u * MU + m] * v[u * T];
  }
  if (n >= p.width) return;
  const float bias = w[(i64)p.inputs * p.width + n];
  UNROLL for (int m = 0; m < MU; m++)
    if (m < p.mu) p.out[((i64)b * p.mu + m) * p.width + n] = output_of(p, sum[m], bias);
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
    if (m < p.mu) p.out[place] = p.h[place] > 0.0f ? sum[m] : 0.0f;
  }
}

KERNEL(forward_thin_1, Dense, 64, 4 * 6 * 16 * (64 + 1)) { thin_forward<1>(p); }
KERNEL(forward_thin_2, Dense, 64, 4 * 6 * 16 * (64 + 2)) { thin_forward<2>(p); }
KERNEL(forward_thin_4, Dense, 64, 4 * 6 * 16 * (64 + 4)) { thin_forward<4>(p); }
KERNEL(forward_thin_8, Dense, 64, 4 * 6 * 16 * (64 + 8)) { thin_forward<8>(p); }
KERNEL(propagate_thin_1, Dense, 64, 4 * 4 * (64 * 36 + 32 * 1)) { thin_propagate<1>(p); }
KERNEL(propagate_thin_2, Dense, 64, 4 * 4 * (64 * 36 + 32 * 2)) { thin_propagate<2>(p); }
KERNEL(propagate_thin_4, Dense, 64, 4 * 4 * (64 * 36 + 32 * 4)) { thin_propagate<4>(p); }
KERNEL(propagate_thin_8, Dense, 64, 4 * 4 * (64 * 36 + 32 * 8)) { thin_propagate<8>(p); }
